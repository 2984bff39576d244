"""After the end: copies that come too late are read on and dropped, by the attempt as long as it is there and on the
idle lane; what is for the next user of the lane stays in front of it."""

import contextlib
import fcntl
import select
import socket
import struct
import threading
import time
from termios import FIONREAD, TIOCOUTQ

import numpy as np
import pytest

from pccl.dataplane import leftovers as leftovers_module
from pccl.dataplane.connection import Rest, leave, rest_of
from pccl.dataplane.leftovers import Leftovers
from pccl.dataplane.ring.arithmetic import check
from pccl.dataplane.ring.segments import HEADER_BYTES, Header, Route
from pccl.dataplane.state.transfer import goodbye
from pccl.types import DataType, ReduceOp
from tests.native.rings import TAG, Repeats, Rig, Work
from tests.native.test_damage import WORK, segment
from tests.patience import HANG_S
from tests.security.ends import SecuredRig, close_all, connection, receive, secured, send_all

pytestmark = pytest.mark.usefixtures("one_strand")
every_kind = pytest.mark.parametrize("kind", ["native", "reference"])
plain_and_secured = pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])

LONG = Work(DataType.FLOAT, ReduceOp.SUM, 1 << 17, 1 << 18)
"""Of two chunks, each of one segment that is more than a lane of small buffers takes."""


def late(attempt, length=1000, **changes):
    """A segment that is of no use to an attempt that has ended."""
    return segment(bytes(length), hop=0, index=0, attempt=attempt, length=length, **changes)


DAMAGED = late(1)[:30] + b"?" + late(1)[31:]


def make_rig(kinds, lanes, tls):
    return SecuredRig(kinds, lanes, 1 << 14) if tls else Rig(len(kinds), lanes, 1 << 14)


# ── an idle lane ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(params=["plain", "native", "reference"])
def ends(request):
    yield connection() if request.param == "plain" else secured((request.param, request.param))
    close_all()


def after(attempt):
    leftovers = Leftovers()
    leftovers.after(attempt)
    return leftovers


def begun(leftovers, lane):
    """What it finds once all that was sent has been looked at: None while it waits for more."""
    with contextlib.suppress(BlockingIOError):
        return leftovers.begun(lane)
    return None


def look_until(leftovers, lane, holds):
    until = time.monotonic() + HANG_S
    while not holds(found := begun(leftovers, lane)):
        assert time.monotonic() < until, "it never comes"
        select.select([lane], [], [], 0.01)
    return found


def test_segments_of_attempts_that_have_ended_are_dropped_in_whatever_pieces_they_come(ends):
    far, near = ends
    leftovers = after(5)
    leave(near, Rest(skip=300))
    data = bytes(300) + late(5) + late(4, 100_000) + late(5, 1) + late(6)
    for at in range(0, len(data), 17_001):
        send_all(far, data[at : at + 17_001]).join()
        begun(leftovers, near)
    assert look_until(leftovers, near, lambda found: found is not None)
    assert rest_of(near) == Rest(head=late(6)[:HEADER_BYTES])
    assert receive(near, 1000) == bytes(1000)


@pytest.mark.parametrize(
    "message",
    [late(6), DAMAGED, segment(bytes(40), length=0, attempt=5), goodbye(6), b"PCST" + bytes(60)],
    ids=["later", "damaged", "empty", "goodbye", "other"],
)
def test_what_is_for_the_next_user_stays_in_front_of_it(message, ends):
    far, near = ends
    send_all(far, late(5) + message).join()
    assert look_until(after(5), near, lambda found: found is not None)
    assert rest_of(near) == Rest(head=message[:HEADER_BYTES])


def test_the_beginning_of_a_header_too(ends):
    far, near = ends
    leftovers = after(5)
    for piece in (slice(0, 7), slice(7, 39)):
        send_all(far, late(6)[piece]).join()
        look_until(leftovers, near, lambda found, end=piece.stop: rest_of(near).head == late(6)[:end])
    assert begun(leftovers, near) is None
    far.shutdown(socket.SHUT_RDWR)
    assert look_until(leftovers, near, lambda found: found is not None) is False, "the end of the lane"


@pytest.mark.parametrize("cut", [HEADER_BYTES, 500])
def test_the_end_of_a_lane_in_a_segment_is_noticed(cut, ends):
    far, near = ends
    send_all(far, late(5)[:cut]).join()
    leftovers = after(5)
    look_until(leftovers, near, lambda found: rest_of(near).skip == HEADER_BYTES + 1000 - cut)
    far.shutdown(socket.SHUT_RDWR)
    assert look_until(leftovers, near, lambda found: found is not None) is False


def test_a_lane_that_no_attempt_had_is_not_read(ends):
    far, near = ends
    send_all(far, late(0)).join()
    assert look_until(Leftovers(), near, lambda found: found is not None)
    assert rest_of(near) == Rest()
    assert receive(near, 40) == late(0)[:40]


def test_a_neighbour_that_sends_them_for_ever_is_not_read_for_ever(ends, monkeypatch):
    monkeypatch.setattr(leftovers_module, "SKIPPED_MAX", 64)
    far, near = ends
    leftovers = after(5)
    thread = send_all(far, late(5, 1) * 65)
    assert look_until(leftovers, near, lambda found: found is not None)
    thread.join()
    assert receive(near, 41) == late(5, 1)
    send_all(far, late(5, 1)).join()
    leftovers.after(0)
    look_until(leftovers, near, lambda found: rest_of(near) == Rest() and found is None)


# ── an attempt that is still there ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def torn(monkeypatch):
    """A rank that has its result, and on both of its lanes stands in the middle of a copy that no end reads yet: its
    rig, its run, and the other ends of the lanes."""
    monkeypatch.setattr(Repeats, "every", 1)
    made = []

    def make(tls):
        rig = make_rig(("native", "native"), 2, tls)
        made.append(rig)
        rig.attempt = 1
        array = np.ones(LONG.count, np.float32)
        ends, payload = [ends[1] for ends in rig.links[0]], array[: LONG.count // 2].tobytes()
        run = rig.start_one(0, "native", LONG, (array, array))
        found = check(np.frombuffer(payload, np.uint8))
        whole = [Header(TAG, 1, hop, 0, len(payload), 0, found).sealed().pack() + payload for hop in range(2)]
        first = _read_one(ends)  # its copy comes next on this lane
        send_all(ends[first], whole[0]).join()
        _read_one([ends[1 - first]])
        send_all(ends[first], whole[1]).join()
        until = time.monotonic() + HANG_S
        while waiting(ends[first], TIOCOUTQ) or waiting(rig.links[0][first][0], FIONREAD):
            assert time.monotonic() < until, "it never reads it"
            assert not run.wait(0.001)
        return rig, run, ends, whole[1]

    yield make
    for rig in made:
        rig.close()
    close_all()


def waiting(lane, queue):
    """Bytes in one of the kernel's queues of a lane: those that it is to send, or that it has received."""
    return struct.unpack("i", fcntl.ioctl(lane.fileno(), queue, bytes(4)))[0]


def _read_one(ends):
    """A whole segment, from the first of these lanes on which something comes; which one that is."""
    lane = ends.index(select.select(ends, [], [], HANG_S)[0][0])
    receive(ends[lane], HEADER_BYTES + LONG.segment_bytes)
    return lane


@plain_and_secured
@pytest.mark.parametrize("then", [b"", late(2, 100), DAMAGED], ids=["nothing", "the next attempt", "damage"])
def test_a_peer_with_its_result_reads_copies_as_long_as_it_is_there(then, tls, torn):
    rig, run, ends, copy = torn(tls)
    threads = [send_all(end, copy * 3 + then) for end in ends]
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive(), "it waits for room"
    assert not run.wait(0)
    for end in ends:
        receive(end, HEADER_BYTES + LONG.segment_bytes)
    assert run.wait()
    assert (run.cause, run.broken) == ("", ([], []))
    for lane in rig.sides(0)[1]:
        look_until(after(1), lane, lambda found: bool(found) == bool(then))
        assert rest_of(lane).head == then[:HEADER_BYTES]


@plain_and_secured
def test_the_end_of_a_lane_after_the_result_breaks_that_lane_alone(tls, torn):
    _, run, ends, _ = torn(tls)
    ends[0].close()
    receive(ends[1], HEADER_BYTES + LONG.segment_bytes)
    assert run.wait()
    assert run.cause == ""
    assert run.broken == ([0], [0])


@every_kind
@plain_and_secured
def test_a_peer_that_has_all_and_is_to_send_more_reads_copies(kind, tls):
    """Its next peer takes nothing yet; the previous one waits in the middle of a copy."""
    rig = make_rig((kind, "native", "native"), 1, tls)
    rig.attempt = 1
    work = Work(DataType.FLOAT, ReduceOp.SUM, 1 << 20, 1 << 18)
    array = np.ones(work.count, np.float32)
    next_end, prev_end = rig.links[0][0][1], rig.links[2][0][0]
    run = rig.start_one(0, kind, work, (array, array))
    everything = [
        segment(bytes(length), hop=hop, index=index, attempt=1, length=length) for hop, index, length in _received(work)
    ]
    thread = send_all(prev_end, b"".join(everything + everything[:4]))
    thread.join(HANG_S)
    assert not thread.is_alive(), "it waits for room"
    assert not run.wait(0)
    sink = threading.Thread(target=_sink, args=(next_end, run), daemon=True)
    sink.start()
    assert run.wait()
    assert (run.cause, run.broken) == ("", ([], []))
    sink.join()
    rig.close()
    close_all()


def _received(work):
    """Hop, index and length of all that rank 0 of three receives."""
    route = Route(work.kind, work.count, work.dtype.itemsize, 3, 0, 0, work.segment_bytes)
    for hop in range(route.hops):
        chunk = route.chunk_received(hop)
        for index in range(route.segments(chunk)):
            yield hop, index, route.place(chunk, index).length


def _sink(end, run):
    room = memoryview(bytearray(1 << 20))
    while not run.wait(0):
        if select.select([end], [], [], 0.02)[0]:
            with contextlib.suppress(BlockingIOError):
                end.recv_into(room)


# ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@plain_and_secured
@pytest.mark.parametrize("kinds", [("native", "native"), ("native", "reference"), ("native",) * 3], ids="-".join)
@pytest.mark.parametrize("lanes", [2, 5])
def test_no_peer_waits_until_another_gives_up(kinds, lanes, tls, monkeypatch):
    """All send everything twice, over lanes that hold less than a copy; each is done before it has read all of them."""
    monkeypatch.setattr(Repeats, "every", 1)
    rig = make_rig(kinds, lanes, tls)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 1 << 18, 1 << 17)
    for _ in range(3):
        arrays = [np.ones(work.count, np.float32) for _ in kinds]
        runs = rig.start(kinds, work, arrays, arrays, stall_s=0)
        idle = {}
        until = time.monotonic() + HANG_S
        while not all(run.wait(0.001) for run in runs):
            assert time.monotonic() < until, "they wait for each other"
            for rank, run in enumerate(runs):
                if run.wait(0):
                    for lane in {*rig.sides(rank)[0], *rig.sides(rank)[1]}:
                        begun(idle.setdefault((rank, lane), after(rig.attempt)), lane)
        assert [(run.cause, run.broken) for run in runs] == [("", ([], []))] * len(kinds)
        assert all((array == len(kinds)).all() for array in arrays)
    rig.close()
    close_all()


@every_kind
@plain_and_secured
@pytest.mark.parametrize("cut", [1, HEADER_BYTES - 1])
def test_an_abort_in_a_header_leaves_it_to_the_next_attempt(kind, tls, cut):
    rig = SecuredRig((kind, "native"), 1) if tls else Rig(2, 1)
    far = rig.links[0][0][1]
    payload = np.full(10, 100.0, np.float32).tobytes()
    rig.attempt = 1
    array = np.arange(WORK.count, dtype=np.float32)
    run = rig.start_one(0, kind, WORK, (array, array))
    send_all(far, segment(payload, hop=0, index=0, attempt=1)[:cut]).join()
    until = time.monotonic() + HANG_S
    while run.moved_bytes < 2 * (HEADER_BYTES + 40) + cut:
        assert time.monotonic() < until, "it never reads it"
        assert not run.wait(0.001)
    run.abort()
    assert run.wait()
    assert (run.cause, run.broken) == ("aborted", ([], []))
    run.restore()
    rig.attempt = 2
    run = rig.start_one(0, kind, WORK, (array, array))
    rest = segment(payload, hop=0, index=0, attempt=1)[cut:]
    now = b"".join(segment(payload, hop=hop, index=index, attempt=2) for hop in range(2) for index in range(2))
    send_all(far, rest + now).join()
    assert run.wait()
    assert (run.cause, run.broken) == ("", ([], []))
    assert np.array_equal(array, np.concatenate([np.full(20, 100.0), np.arange(20, 40) + 100.0]))
    rig.close()
    close_all()
