"""Both data planes behind the face that the shell uses: buffers by tag, an end for every start, aborts, closing."""

import asyncio
import os
import resource
import threading
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest

from pccl.core.effects.peer_events import AttemptEnded
from pccl.dataplane.native import NativePlane
from pccl.dataplane.reference import ReferencePlane
from pccl.dataplane.tensors.buffers import buffers
from pccl.types import DataType, ReduceOp
from tests.native import oracle
from tests.native.rings import TAG, WAIT_S, Rig, Work, copies

PLANES = [NativePlane, ReferencePlane]
every_plane = pytest.mark.parametrize("kind", PLANES)


class Shell:
    """As much of a peer as a data plane sees. Lives in the running loop."""

    def __init__(self, kind, rig, rank, work):
        self.plane, self._rig, self._rank, self._work = kind(stall_s=30.0), rig, rank, work
        self.ended: asyncio.Queue[AttemptEnded] = asyncio.Queue()

    def start(self):
        loop = asyncio.get_running_loop()
        self.plane.start(
            self._rig.effect(self._rank, self._work),
            *self._rig.sides(self._rank),
            lambda event: loop.call_soon_threadsafe(self.ended.put_nowait, event),
        )

    async def end(self):
        return await asyncio.wait_for(self.ended.get(), WAIT_S)


def shells(kinds, rig, work, arrays):
    made = [Shell(kind, rig, rank, work) for rank, kind in enumerate(kinds)]
    for shell, array in zip(made, arrays, strict=True):
        shell.plane.offers.offer(TAG, buffers(array, array))
    return made


@pytest.mark.parametrize(
    "kinds", [(NativePlane,) * 3, (ReferencePlane,) * 3, (ReferencePlane, NativePlane, NativePlane)]
)
def test_commit_keeps_the_result_and_abort_puts_the_input_back(kinds):
    work = Work(DataType.DOUBLE, ReduceOp.AVG, 1_001, 160)
    inputs = oracle.inputs(np.random.default_rng(0), *work[:3], 3)
    rig = Rig(3, 2)

    async def play(committed):
        arrays = copies(inputs)
        rig.attempt += 1
        made = shells(kinds, rig, work, arrays)
        for shell in made:
            shell.start()
        for shell in made:
            end = await shell.end()
            assert end == AttemptEnded(TAG, rig.attempt, "", digest=end.digest)
            traffic = shell.plane.offers.settle(TAG, committed)
            assert traffic.sent_bytes > 4 / 3 * 8_008
            assert traffic.received_bytes > 4 / 3 * 8_008
            shell.plane.close()
        return arrays

    oracle.assert_equal_bits(asyncio.run(play(True)), oracle.reduced(inputs, *work[:2]), work.dtype)
    for array, untouched in zip(asyncio.run(play(False)), inputs, strict=True):
        assert array.tobytes() == untouched.tobytes()
    rig.close()


@every_plane
def test_abort_ends_the_run_once_and_names_broken_lanes_as_the_core_does(kind):
    work = Work(DataType.FLOAT, ReduceOp.SUM, 4_000_000, 1 << 20)
    rig = Rig(3, 1)
    array = np.ones(work.count, np.float32)

    async def play():
        rig.attempt += 1
        (shell,) = shells((kind,), rig, work, [array])
        shell.start()
        shell.plane.abort(TAG, rig.attempt + 1)  # of somebody else
        rig.links[0][0][1].setblocking(True)
        rig.links[0][0][1].recv(1)  # the run is in the middle of its first segment: it is longer than what fits
        shell.plane.abort(TAG, rig.attempt)
        event = await shell.end()
        shell.plane.abort(TAG, rig.attempt)  # too late, and harmless
        shell.plane.offers.settle(TAG, False)
        shell.plane.close()
        assert shell.ended.empty()
        return event

    event = asyncio.run(play())
    assert event.cause == "aborted"
    assert set(event.broken) <= {(0, 0)}, "nothing came from the previous peer: that lane is clean"
    assert np.all(array == 1)
    rig.close()


@every_plane
def test_run_without_buffers_fails(kind):
    rig = Rig(2, 1)

    async def play():
        shell = Shell(kind, rig, 0, Work(DataType.FLOAT, ReduceOp.SUM, 10, 8))
        shell.start()
        event = await shell.end()
        shell.plane.close()
        return event

    assert asyncio.run(play()).cause == "no buffers were offered for it"
    rig.close()


@every_plane
def test_close_stops_what_runs_and_settling_waits_for_its_end(kind):
    rig = Rig(2, 1)
    array = np.ones(100, np.float32)

    async def play():
        (shell,) = shells((kind,), rig, Work(DataType.FLOAT, ReduceOp.SUM, 100, 8), [array])
        shell.start()
        shell.plane.close()
        return shell.plane

    asyncio.run(play()).offers.settle(TAG, False)
    assert np.all(array == 1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pccl attempt")]
    rig.close()


@contextmanager
def nothing_left(kind):
    """A machine on which no run can begin: one that has no descriptors left, or no threads."""
    if kind is ReferencePlane:
        with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as lowest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@every_plane
def test_a_run_that_cannot_begin_has_failed_like_any_other(kind):
    """The peer is not to blame and must not end for it: it says so, the others are told, and all try again."""
    work = Work(DataType.FLOAT, ReduceOp.SUM, 100, 8)
    rig = Rig(2, 1)
    arrays = [np.ones(work.count, np.float32) for _ in range(2)]

    async def play():
        made = shells((kind, kind), rig, work, arrays)
        with nothing_left(kind):
            made[0].start()
        event = await made[0].end()
        made[0].plane.abort(TAG, rig.attempt)  # too late, and harmless
        made[0].plane.offers.settle(TAG, False)
        rig.attempt += 1
        for shell in made:
            shell.start()
        assert [(await shell.end()).cause for shell in made] == ["", ""]
        for shell in made:
            shell.plane.offers.settle(TAG, True)
            shell.plane.close()
        return event

    event = asyncio.run(play())
    assert event.cause
    assert not event.broken, "no byte has moved"
    assert all(np.all(array == 2) for array in arrays)
    rig.close()
