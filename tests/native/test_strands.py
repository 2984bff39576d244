"""Collectives in several strands, each with a thread: the same bits as in one, and ends and aborts like those of one.

Here the tests of other files are played with strands; any of them is with PCCL_TEST_STRANDS=3.
"""

import itertools
import os
import random
import time

import numpy as np
import pytest

from pccl.codec import CODES, SOURCES
from pccl.dataplane.patience import BYTES_MIN_S
from pccl.dataplane.ring.segments import HEADER_BYTES
from pccl.types import CollectiveKind, DataType, ReduceOp
from tests.native import oracle, test_coded_ring, test_kinds, test_ring
from tests.native.rings import Repeats, Rig, Strands, Work
from tests.native.test_aborts import MIXES, Campaign
from tests.native.test_copies import Roomy
from tests.native.test_damage import Relay, Scene, segment
from tests.security.ends import SecuredRig, close_all

every_kind = pytest.mark.parametrize("kind", ["native", "reference"])
SOMETIMES_IN_PLACE = (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST)


@pytest.fixture(params=[1, 2, 3, 4])
def strands(request, monkeypatch):
    """Into so many; one for comparison."""
    monkeypatch.setattr(Strands, "count", request.param)
    return request.param


@pytest.fixture
def rigs():
    made = Roomy()
    yield made
    made.close()


# ── the same bits ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mix", test_kinds.MIXES)
@pytest.mark.parametrize("kind", list(CollectiveKind), ids=lambda kind: kind.name)
def test_kinds_of_collectives(kind, mix, rigs, strands):
    """Also with fewer segments than strands, and with none."""
    draw = random.Random(f"{kind} {mix}")
    for size, count, lanes in itertools.product((2, 3, 5), (0, 1, 13, 257, 1009), (4, 5)):
        work = Work(draw.choice(list(DataType)), draw.choice(list(ReduceOp)), count, 72, kind, draw.randrange(size))
        inputs = oracle.inputs(np.random.default_rng(count), *work[:3], size)
        test_kinds.play(rigs.get(size, lanes), mix, work, inputs, kind in SOMETIMES_IN_PLACE and draw.random() < 0.5)


@pytest.mark.parametrize("op", list(ReduceOp), ids=lambda op: op.name)
def test_elements(op, rigs, strands):
    for seed, dtype in enumerate(DataType):
        for case in itertools.islice(test_ring.sampled(f"strands {dtype} {op}", dtype, op), 2):
            test_ring.run(case, rigs, seed)


@pytest.mark.parametrize("name", CODES)
def test_codes(name, rigs, strands):
    """With what is lost carried on, element by element."""
    draw = random.Random(name)
    for seed, dtype in enumerate(dtype for dtype in SOURCES if test_coded_ring.possible(name, dtype)):
        case = test_coded_ring.draw_case(draw, name, dtype)._replace(feedback=True, lanes=draw.choice((4, 7)))
        test_coded_ring.run(case, rigs, seed)
        test_coded_ring.run_in_vain(case, rigs, seed)


def test_the_digest_is_that_of_one_strand(monkeypatch):
    rig, work = Rig(3, 4), Work(DataType.FLOAT, ReduceOp.AVG, 10_007, 400)
    inputs, digests = oracle.inputs(np.random.default_rng(3), *work[:3], 3), set()
    for strands, mix in itertools.product((1, 2, 3, 4), test_kinds.MIXES):
        monkeypatch.setattr(Strands, "count", strands)
        digests |= {run.digest for run in test_kinds.play(rig, mix, work, inputs, True)}
    assert len(digests) == 1
    assert digests != {b""}
    rig.close()


def test_bytes_are_counted_of_all_strands(strands):
    rig, work = Rig(2, 5), Work(DataType.FLOAT, ReduceOp.SUM, 2_000, 400)
    arrays = oracle.inputs(np.random.default_rng(1), *work[:3], 2)
    runs = rig.start(("native", "reference"), work, arrays, arrays)
    assert all(run.wait() for run in runs)
    assert {run.sent_bytes for run in runs} == {2 * (4_000 + 10 * HEADER_BYTES)}
    assert {run.moved_bytes for run in runs} == {4 * (4_000 + 10 * HEADER_BYTES)}
    rig.close()


@pytest.mark.parametrize("every", [1, 3])
def test_segments_that_are_sent_again(every, rigs, strands, monkeypatch):
    monkeypatch.setattr(Repeats, "every", every)
    for size, mix in itertools.product((2, 3), ("native", "mixed")):
        work = Work(DataType.FLOAT, ReduceOp.SUM, 1009, 24)
        inputs = oracle.inputs(np.random.default_rng(size), *work[:3], size)
        test_kinds.play(rigs.get(size, 4), mix, work, inputs, True)


@pytest.mark.parametrize("kinds", [("native", "native"), ("native", "reference", "native")], ids="-".join)
def test_under_tls(kinds, strands):
    rig = SecuredRig(kinds, 5, rekey_bytes=1 << 19)
    draw = np.random.default_rng(7)
    for count, length in ((100_003, 1 << 14), (1, 4096), (257, 24), (30_011, 4096)):
        work = Work(DataType.FLOAT, ReduceOp.AVG, count, length)
        inputs = oracle.inputs(draw, *work[:3], len(kinds))
        receives = [work.output(len(kinds), rank) for rank in range(len(kinds))]
        runs = rig.start(kinds, work, inputs, receives)
        assert all(run.wait() and (run.cause, run.broken) == ("", ([], [])) for run in runs)
        oracle.assert_equal_bits(receives, oracle.reduced(inputs, *work[:2]), work.dtype)
    rig.close()
    close_all()


# ── other ends ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_abort_at_any_moment(seed, secured, strands):
    """Inputs are put back, and the next attempt on the same lanes is right."""
    make_rig = SecuredRig if secured else lambda kinds, *rest: Rig(len(kinds), *rest)
    campaign = Campaign(seed, 2 + seed % 3, 4 + seed % 3, MIXES[seed % len(MIXES)], make_rig)
    for _ in range(5):
        campaign.aborted()
        campaign.right()
    campaign.rig.close()
    close_all()


@pytest.mark.parametrize("flip", [None, 0x10])
@every_kind
def test_a_strand_whose_lane_is_cut_or_lies_ends_all(kind, flip, strands):
    """Whatever the byte: a failed run or the right sum, and inputs as they were."""
    for seed in (2, 5, 8, 11):  # with three lanes
        place = random.Random(f"{seed} {strands}").randrange(4_000)
        scene = Scene(seed, kind, Relay(place, flip))
        causes = scene.play()
        assert any(causes) or not scene.relay.done
        scene.assert_never_a_wrong_sum(causes)
        scene.close()


@every_kind
def test_the_strand_that_fails_says_why_and_which_lane(kind, monkeypatch):
    """The other strands of the peer stop for it, though nothing is wrong with theirs."""
    monkeypatch.setattr(Strands, "count", 3)
    rig, work = Rig(3, 6), Work(DataType.FLOAT, ReduceOp.SUM, 1_000_000, 4096)
    array = np.ones(work.count, np.float32)
    rig.attempt = 1
    run = rig.start_one(0, kind, work, (array, array), stall_s=0)
    rig.links[2][4][0].close()  # of the second strand, from the previous peer
    assert run.wait()
    assert run.cause == "from the previous peer: the neighbour closed the lane"
    assert run.broken[1] == [4]
    run.restore()
    assert np.all(array == 1)
    rig.close()


@every_kind
def test_what_comes_over_the_lane_of_another_strand_is_refused(kind, monkeypatch):
    taken, refused = "moved for too long", "has no place in this attempt"
    for strands, lane, cause in ((1, 1, taken), (2, 0, taken), (2, 1, refused)):
        monkeypatch.setattr(Strands, "count", strands)
        rig = Rig(2, 2)
        rig.attempt = 5
        theirs = [ends[1] for ends in rig.links[0]]
        work = Work(DataType.FLOAT, ReduceOp.SUM, 40, 40)
        array = np.ones(work.count, np.float32)
        run = rig.start_one(0, kind, work, (array, array), stall_s=0.5)
        theirs[lane].sendall(segment(np.ones(10, np.float32).tobytes(), hop=0, index=0))
        assert run.wait()
        assert cause in run.cause
        rig.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted by way of /proc")
def test_each_strand_has_a_thread(monkeypatch):
    """More than are kept idle, so that they must be new ones; and no more than these stay."""
    many = 40
    monkeypatch.setattr(Strands, "count", many)
    rig, work = Rig(2, many), Work(DataType.FLOAT, ReduceOp.SUM, 100_000, 64)
    array = np.ones(work.count, np.float32)
    rig.attempt = 1
    run = rig.start_one(0, "native", work, (array, array))
    assert len(os.listdir("/proc/self/task")) > many
    run.abort()
    assert run.wait()
    assert run.cause == "aborted"
    run.restore()
    assert np.all(array == 1)
    rig.close()


@pytest.mark.parametrize("count", [1, 4])
def test_an_attempt_has_two_descriptors_whatever_its_strands(count, monkeypatch):
    """One that wakes its threads, and here one by which it tells its end."""
    monkeypatch.setattr(Strands, "count", count)
    rig, work = Rig(2, 4), Work(DataType.FLOAT, ReduceOp.SUM, 1 << 20, 1 << 14)
    array = np.ones(work.count, np.float32)
    before = len(os.listdir("/proc/self/fd"))
    run = rig.start_one(0, "native", work, (array, array))
    assert len(os.listdir("/proc/self/fd")) == before + 2
    run.abort()
    assert run.wait()
    run.restore()
    rig.close()


def test_the_least_rate_is_that_of_all_strands_together(monkeypatch):
    """Each of four brings half of it: that is twice as much as it takes."""
    monkeypatch.setattr(Strands, "count", 4)
    rig, work = Rig(2, 4), Work(DataType.FLOAT, ReduceOp.SUM, 8 << 18, 1 << 20)
    array = np.ones(work.count, np.float32)
    rig.attempt = 5
    run = rig.start_one(0, "native", work, (array, array), stall_s=2.0)
    theirs = [ends[1] for ends in rig.links[0]]
    for index, end in enumerate(theirs):
        end.sendall(segment(bytes(1 << 20), hop=0, index=index, length=1 << 20)[:HEADER_BYTES])
    sent, began = 0, time.monotonic()
    while time.monotonic() - began < 7.0 and not run.wait(0.05):
        due = int((time.monotonic() - began) * BYTES_MIN_S / 2) - sent
        for end in theirs:
            end.sendall(bytes(due))
        sent += due
    assert not run.wait(0)
    run.abort()
    assert run.wait()
    run.restore()
    rig.close()
