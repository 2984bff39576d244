"""What hangs on a far lane is sent again over another one: when, of what, and what becomes of a copy at the end."""

import contextlib
import select
import socket
import threading
import time

import numpy as np
import pytest

from pccl.codec import NONE, contribution_bytes
from pccl.dataplane.ring.arithmetic import check
from pccl.dataplane.ring.segments import HEADER_BYTES, Header
from pccl.net import sockets
from pccl.types import DataType, ReduceOp
from tests.native.rings import TAG, Repeats, Rig, Work
from tests.native.test_copies import send_all
from tests.native.test_far import BOUND, make_far
from tests.patience import HANG_S

LINGER_S = 0.5
"""Of `native/lanes.cpp`: no copy is begun later than that after the end."""


class Neighbour:
    """Rank 1 of two, which answers over one of its lanes, and takes nothing from the other: what rank 0 gives to that
    one hangs, but for what the kernel takes, at which it looks."""

    def __init__(self, lanes, work, attempt):
        self.copies, self.work = {}, work
        self._hung, self._lane = lanes
        self._attempt = attempt
        self._parsed = [0, 0]
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def _play(self):
        work = self.work
        per_segment = work.segment_bytes // work.dtype.itemsize
        chunk = work.count // 2
        lengths = [min(per_segment, chunk - first) for first in range(0, chunk, per_segment)]
        wire = [contribution_bytes(work.codec, elements, work.dtype) for elements in lengths]
        for index, length in enumerate(wire):
            self._send(0, index, bytes(length))
        flowed = bytearray()
        while len(self.copies) < 2 * len(wire):
            if select.select([self._lane], [], [], 0.02)[0]:
                flowed += self._lane.recv(1 << 20)
                self._parse(0, flowed)
            with contextlib.suppress(BlockingIOError):
                self._parse(1, self._hung.recv(8 << 20, socket.MSG_PEEK))

    def _parse(self, side, data):
        """Whole segments that were not there before."""
        at = self._parsed[side]
        while len(data) >= at + HEADER_BYTES:
            header = Header.unpack(data[at : at + HEADER_BYTES])
            payload = bytes(data[at + HEADER_BYTES :][: header.length])
            if len(payload) < header.length:
                break
            assert check(np.frombuffer(payload, np.uint8)) == header.check
            at += HEADER_BYTES + header.length
            place = header.hop, header.index
            self.copies[place] = [*self.copies.get(place, []), payload]
            if header.hop == 0 and len(self.copies[place]) == 1:
                self._send(1, header.index, payload)
        self._parsed[side] = at

    def _send(self, hop, index, payload):
        found = check(np.frombuffer(payload, np.uint8))
        send_all(self._lane, Header(TAG, self._attempt, hop, index, len(payload), 0, found).sealed().pack() + payload)

    def join(self):
        self._thread.join(HANG_S)
        assert not self._thread.is_alive(), "it has everything"


@pytest.mark.parametrize("codec", [NONE, "int8.256"])
@pytest.mark.parametrize("in_place", [True, False])
def test_what_hangs_on_a_lane_is_sent_again_over_another(in_place, codec):
    """The lane never flows again, and nobody waits for it."""
    rig = Rig(2, 2)
    make_far(rig)
    rig.attempt = 1
    work = Work(DataType.FLOAT, ReduceOp.SUM, 1 << 20, BOUND // 2, codec=codec)
    array = np.random.default_rng(1).standard_normal(work.count).astype(np.float32)
    given, result = array.copy(), array if in_place else np.zeros_like(array)
    neighbour = Neighbour([ends[1] for ends in rig.links[0]], work, 1)
    run = rig.start_one(0, "native", work, (array, result))
    neighbour.join()
    assert run.wait()
    assert (run.cause, run.broken) == ("", ([], []))
    assert run.repeated_bytes > 0
    assert all(len(copies) <= 2 and len(set(copies)) == 1 for copies in neighbour.copies.values())
    run.restore()
    assert np.array_equal(array, given)
    rig.close()


def test_what_is_only_paced_is_not_sent_again():
    """A lane that is held to a rate is silent for longer than its round trips, and nothing hangs on it."""
    rig = Rig(2, 2)
    make_far(rig)
    for end in (end for ends in rig.links[0] for end in ends):
        sockets.pace(end, 1 << 20)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 1 << 18, BOUND // 2)
    arrays = [np.full(work.count, value, np.float32) for value in (1, 2)]
    runs = rig.start(["native", "native"], work, arrays, arrays)
    assert all(run.wait() and (run.cause, run.broken) == ("", ([], [])) for run in runs)
    assert [run.repeated_bytes for run in runs] == [0, 0]
    assert all((array == 3).all() for array in arrays)
    rig.close()


LONG = Work(DataType.FLOAT, ReduceOp.SUM, 1 << 17, 1 << 18)
"""Of two chunks, each of one segment that is more than a lane of small buffers takes."""


@pytest.fixture
def torn(monkeypatch):
    """A rank that has its result, and on both of its lanes stands in the middle of a copy that nobody reads yet: its
    run (`stall_s` as given), the ends of the lanes, and where the copies end on each."""
    monkeypatch.setattr(Repeats, "every", 1)
    made = []

    def make(stall_s):
        rig = Rig(2, 2, 1 << 14)
        made.append(rig)
        rig.attempt = 1
        array = np.ones(LONG.count, np.float32)
        ends, payload = [ends[1] for ends in rig.links[0]], array[: LONG.count // 2].tobytes()
        run = rig.start_one(0, "native", LONG, (array, array), stall_s)
        first = _read_segment(ends)  # the lane of the first segment carries its copy next
        found = check(np.frombuffer(payload, np.uint8))
        for hop in range(2):
            header = Header(TAG, 1, hop, 0, len(payload), 0, found)
            send_all(ends[first], header.sealed().pack() + payload)
            if hop == 0:
                _read_segment([ends[1 - first]])
        return run, ends

    yield make
    for rig in made:
        rig.close()


def _read_segment(ends):
    """A whole one, from the first of these lanes on which something comes; which one that is."""
    lane = ends.index(select.select(ends, [], [], HANG_S)[0][0])
    _read(ends[lane], HEADER_BYTES + LONG.segment_bytes)
    return lane


def _read(end, count):
    while count > 0:
        select.select([end], [], [], HANG_S)
        count -= len(end.recv(count))


def test_a_copy_that_has_begun_is_sent_to_its_end(torn):
    """Left in the middle of it the lane would be lost, and with its link the collective that others have not done."""
    run, ends = torn(30.0)
    assert not run.wait(2 * LINGER_S)
    for end in ends:
        _read(end, HEADER_BYTES + LONG.segment_bytes)
    assert run.wait()
    assert (run.cause, run.broken) == ("", ([], []))
    assert run.repeated_bytes == 2 * (HEADER_BYTES + LONG.segment_bytes)


def test_not_for_longer_than_an_attempt_may_stall(torn):
    run, _ = torn(2 * LINGER_S)
    assert run.wait()
    assert (run.cause, run.broken) == ("", ([0, 1], []))


def test_beside_a_broken_lane_it_sleeps(torn):
    """Such a lane is always ready, to fail once more."""
    run, ends = torn(30.0)
    assert not run.wait(2 * LINGER_S), "it has all that it needs"
    ends[0].close()
    assert not run.wait(LINGER_S)
    began = time.process_time()
    assert not run.wait(1.0)
    assert time.process_time() - began < 0.1
    _read(ends[1], HEADER_BYTES + LONG.segment_bytes)
    assert run.wait()
    assert run.cause == ""
    assert run.broken[0] == [0]
