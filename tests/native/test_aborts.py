"""Aborts at any moment: soon, without a thread left, inputs as they were, lanes clean or reported broken."""

import os
import random
import statistics
import threading
import time

import numpy as np
import pytest

from pccl.dataplane.state.transfer import goodbye
from pccl.types import DataType, ReduceOp
from tests.native import oracle
from tests.native.rings import Rig, Work, copies
from tests.patience import HANG_S, allow, slowness

ABORTS = 200
IDLE_THREADS_MAX = 16  # kept by the native part for the next run
ABORT_S = 0.1
"""How soon a run has ended after its abort."""

MIXES = (("native",) * 4, ("native",) * 4, ("reference", "native", "native", "native"), ("reference",) * 4)


def assert_soon(took):
    """Any one abort may take longer, since its processor may have been given to another process: most are quick."""
    assert statistics.median(took) < ABORT_S * slowness()
    assert max(took) < allow(ABORT_S)


def threads():
    return len(os.listdir("/proc/self/task"))


def passed(moment, runs, began):
    """True once the moment has come: so many microseconds, or so many bytes moved by the first peer."""
    unit, amount = moment
    return time.perf_counter() - began >= amount / 1e6 if unit == "us" else runs[0].moved_bytes >= amount


def abort_at(moment, runs, order):
    """Abort all, as a master does, beginning at a moment; how long each took to end."""
    began = time.perf_counter()
    while not passed(moment, runs, began) and not runs[0].wait(0):
        pass
    aborted_at = {}
    for rank in order:
        aborted_at[rank] = time.perf_counter()
        runs[rank].abort()
    took = []
    for rank in order:
        assert runs[rank].wait(HANG_S), f"rank {rank} goes on after its abort"
        took.append(time.perf_counter() - aborted_at[rank])
    return took


class Campaign:
    """Attempts on the lanes of one rig: some are aborted, and after each the next one must be right."""

    def __init__(self, seed, size, lanes, kinds, make_rig=lambda kinds, *rest: Rig(len(kinds), *rest)):
        self.draw = random.Random(seed)
        self.kinds = kinds[:size]
        self.rig = make_rig(self.kinds, lanes, self.draw.choice((0, 0, 16_384)))
        slow = "reference" in self.kinds
        self.work = Work(DataType.FLOAT, ReduceOp.SUM, 50_003 if slow else 500_009, 16_384 if slow else 8_192)
        self.inputs = oracle.inputs(np.random.default_rng(seed), *self.work[:3], size)
        self.wanted = oracle.reduced(self.inputs, *self.work[:2])
        self.took, self.completed, self.broken = [], 0, 0

    def moment(self):
        whole = 4 * self.work.count * 4 * (self.rig.size - 1) // self.rig.size
        return self.draw.choice([("us", self.draw.randrange(20_000)), ("bytes", self.draw.randrange(whole))])

    def attempt(self, in_place):
        sends = copies(self.inputs)
        receives = sends if in_place else [np.zeros_like(array) for array in sends]
        return sends, receives, self.rig.start(self.kinds, self.work, sends, receives)

    def aborted(self):
        """One attempt that is aborted, whether or not it was done by then: its inputs are put back."""
        sends, _, runs = self.attempt(self.draw.random() < 0.7)
        order = self.draw.sample(range(self.rig.size), self.rig.size)
        self.took += abort_at(self.moment(), runs, order)
        self.completed += sum(run.cause == "" for run in runs)
        assert {run.cause for run in runs} <= {"", "aborted"}
        for run, send, untouched in zip(runs, sends, self.inputs, strict=True):
            run.restore()
            assert send.tobytes() == untouched.tobytes()
        self.broken += self.rig.repair(runs)

    def right(self):
        """The next attempt on the same lanes, which may still hold segments of the aborted one."""
        _, receives, runs = self.attempt(self.draw.random() < 0.5)
        for run in runs:
            assert run.wait()
            assert run.cause == ""
        oracle.assert_equal_bits(receives, self.wanted, self.work.dtype)
        self.rig.repair(runs)  # a lane may still have been draining when the last segment came over another


@pytest.mark.parametrize("seed", range(20))
def test_abort_at_any_moment(seed):
    kinds = MIXES[seed % len(MIXES)]
    campaign = Campaign(seed, 2 + seed % 3, 1 + seed % 4, kinds)
    campaign.right()
    before = threads()
    for _ in range(ABORTS // 20):
        campaign.aborted()
        campaign.right()
    campaign.rig.close()
    assert_soon(campaign.took)
    assert threads() <= before + IDLE_THREADS_MAX
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pccl attempt")]
    # For whoever runs with -s: how many runs were done, how many lanes broken, and the slowest abort.
    print(campaign.completed, campaign.broken, f"{max(campaign.took) * 1e3:.1f} ms")


@pytest.mark.parametrize("kind", ["native", "reference"])
def test_threads_are_used_again(kind):
    """Many runs one after the other leave no more than the threads kept for the next."""
    before = threads()
    campaign = Campaign(1, 2, 1, (kind, kind))
    campaign.work = campaign.work._replace(count=101)
    campaign.inputs = [array[:101] for array in campaign.inputs]
    for _ in range(100):
        campaign.aborted()
    kept = threads() - before
    campaign.rig.close()
    assert kept <= 2 * IDLE_THREADS_MAX + 8


@pytest.mark.parametrize("kind", ["native", "reference"])
@pytest.mark.parametrize("size", [2, 3])
def test_abort_while_nothing_moves(kind, size):
    """The neighbours have not even begun: our buffers in the kernel are full, and nothing comes."""
    rig = Rig(size, 2)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 4_000_003, 65_536)
    array = np.ones(work.count, np.float32)
    rig.attempt = 1
    run = rig.start_one(0, kind, work, (array, array))
    seen, still_since = -1, time.perf_counter()
    while time.perf_counter() - still_since < 0.05:
        if run.moved_bytes != seen:
            seen, still_since = run.moved_bytes, time.perf_counter()
    assert not run.wait(0)
    began = time.perf_counter()
    run.abort()
    assert run.wait(HANG_S)
    assert time.perf_counter() - began < allow(2 * ABORT_S)
    run.restore()
    assert run.cause == "aborted"
    assert np.all(array == 1)
    rig.close()


@pytest.mark.parametrize("kind", ["native", "reference"])
def test_the_goodbye_of_a_transfer_that_nobody_heard_is_dropped(kind):
    """See `pccl.dataplane.state.transfer.goodbye`."""
    rig = Rig(2, 2)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 1_000, 64)
    arrays = [np.ones(work.count, np.float32) for _ in range(2)]
    rig.attempt = 1
    for near, _ in rig.links[0]:
        near.send(goodbye(rig.attempt))
    runs = rig.start((kind,) * 2, work, arrays, arrays)
    assert all(run.wait() and (run.cause, run.broken) == ("", ([], [])) for run in runs)
    assert all(np.all(array == 2) for array in arrays)
    rig.close()


@pytest.mark.parametrize("kind", ["native", "reference"])
def test_stall_is_noticed(kind):
    rig = Rig(2, 1)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 100, 64)
    array = np.ones(work.count, np.float32)
    rig.attempt = 1
    run = rig.start_one(0, kind, work, (array, array), stall_s=0.3)
    assert run.wait()
    assert run.cause == "no byte moved for too long"
    assert run.broken == ([], [])
    rig.close()


@pytest.mark.parametrize("kind", ["native", "reference"])
@pytest.mark.parametrize("in_place", [True, False])
def test_input_is_back_after_the_ring_was_done(kind, in_place):
    """The outcome may be an abort although this peer was done."""
    campaign = Campaign(3, 3, 2, (kind,) * 3)
    sends, receives, runs = campaign.attempt(in_place)
    assert all(run.wait() and run.cause == "" for run in runs)
    oracle.assert_equal_bits(receives, campaign.wanted, campaign.work.dtype)
    for run, send, untouched in zip(runs, sends, campaign.inputs, strict=True):
        run.abort()
        run.restore()
        assert send.tobytes() == untouched.tobytes()
    assert [run.broken for run in runs] == [([], [])] * 3
    campaign.rig.close()
