"""Segments that are sent again over another lane: added once, whichever copy is whole first, and never more than twice.

python -m tests.native.test_copies [how many]      random cases of all rings with copies, by hand
"""

import contextlib
import itertools
import random
import select
import socket
import sys
import threading

import numpy as np
import pytest

from pccl.codec import CODES, SOURCES
from pccl.dataplane.connection import Rest, drop, leave, receive_into, rest_of
from pccl.dataplane.ring.segments import HEADER_BYTES, Header
from pccl.dataplane.state.transfer import Lane, Stopped, goodbye
from pccl.types import CollectiveKind, DataType, ReduceOp
from tests.native import oracle, test_coded_ring, test_kinds, test_ring
from tests.native.rings import Repeats, Rig, Work, connection
from tests.native.test_aborts import MIXES, Campaign
from tests.native.test_damage import WORK, segment
from tests.patience import HANG_S
from tests.security.ends import SecuredRig, close_all, receive, secured, wait
from tests.security.ends import send_all as send_tls

every_kind = pytest.mark.parametrize("kind", ["native", "reference"])
pytestmark = pytest.mark.usefixtures("one_strand")


@pytest.fixture(params=[1, 3])
def repeats(request, monkeypatch):
    """Native peers send one of so many segments again, though nothing hangs."""
    monkeypatch.setattr(Repeats, "every", request.param)


@pytest.fixture
def rigs():
    made = Roomy()
    yield made
    made.close()


class Roomy(test_ring.Rigs):
    """Lanes with room for a copy whose receiver is done: no peer's event loop skips here what comes of it then."""

    def get(self, size, lanes):
        if (size, lanes) not in self._rigs:
            self._rigs[size, lanes] = Rig(size, lanes)
        return super().get(size, lanes)


# ── the same bits ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("op", list(ReduceOp), ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", list(DataType), ids=lambda dtype: dtype.name)
def test_elements(dtype, op, rigs, repeats):
    for seed, case in enumerate(itertools.islice(test_ring.sampled(f"copies {dtype} {op}", dtype, op), 4)):
        test_ring.run(case, rigs, seed)


@pytest.mark.parametrize("name", CODES)
def test_codes(name, rigs, repeats):
    draw = random.Random(name)
    for seed, dtype in enumerate(dtype for dtype in SOURCES if test_coded_ring.possible(name, dtype)):
        case = test_coded_ring.draw_case(draw, name, dtype)
        test_coded_ring.run(case, rigs, seed)
        test_coded_ring.run_in_vain(case, rigs, seed)


@pytest.mark.parametrize("mix", ["native", "mixed"])
@pytest.mark.parametrize("kind", list(CollectiveKind), ids=lambda kind: kind.name)
def test_kinds_of_collectives(kind, mix, rigs, repeats):
    for size, count in itertools.product((2, 3, 5), (13, 257)):
        work = Work(DataType.FLOAT, ReduceOp.SUM, count, 24, kind)
        inputs = oracle.inputs(np.random.default_rng(count), *work[:3], size)
        for in_place in (False, True)[: 1 + (kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST))]:
            runs = test_kinds.play(rigs.get(size, 3), mix, work, inputs, in_place)
            if mix == "native" and kind is CollectiveKind.ALL_REDUCE and count > size:
                assert sum(run.repeated_bytes for run in runs) > 0


@pytest.mark.parametrize("kinds", [("native", "native"), ("native", "reference", "native")], ids="-".join)
def test_under_tls(kinds, repeats):
    rig = SecuredRig(kinds, 3, rekey_bytes=1 << 19)
    draw = np.random.default_rng(7)
    for count, length in ((100_003, 1 << 16), (1, 4096), (257, 24), (30_011, 4096)):
        work = Work(DataType.FLOAT, ReduceOp.AVG, count, length)
        inputs = oracle.inputs(draw, *work[:3], len(kinds))
        receives = [work.output(len(kinds), rank) for rank in range(len(kinds))]
        runs = rig.start(kinds, work, inputs, receives)
        assert all(run.wait() and (run.cause, run.broken) == ("", ([], [])) for run in runs)
        oracle.assert_equal_bits(receives, oracle.reduced(inputs, *work[:2]), work.dtype)
    rig.close()
    close_all()


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_abort_at_any_moment(seed, secured, repeats):
    make_rig = SecuredRig if secured else lambda kinds, *rest: Rig(len(kinds), *rest)
    campaign = Campaign(seed, 2 + seed % 3, 2 + seed % 3, MIXES[seed % len(MIXES)], make_rig)
    for _ in range(5):
        campaign.aborted()
        campaign.right()
    campaign.rig.close()
    close_all()


# ── what the receiver does ───────────────────────────────────────────────────────────────────────────────────────────

FIRST = [np.full(10, 100.0 + index, np.float32).tobytes() for index in range(2)]
ALL = [segment(FIRST[index], hop=hop, index=index) for hop in (1, 0) for index in range(2)]
WANTED = np.concatenate([np.repeat([100.0, 101.0], 10), np.arange(20, 40) + np.repeat([100.0, 101.0], 10)])


class Opposed:
    """Rank 0 of two against bytes of our own making, attempt after attempt on the same two lanes."""

    def __init__(self, kind):
        self.kind, self.rig = kind, Rig(2, 2)
        self.rig.attempt = 5
        self.theirs = [ends[1] for ends in self.rig.links[0]]

    def play(self, *data):
        for end, part in zip(self.theirs, data, strict=True):
            end.sendall(part)
        array = np.arange(WORK.count, dtype=np.float32)
        run = self.rig.start_one(0, self.kind, WORK, (array, array))
        assert run.wait()
        return run, array

    def rests(self):
        return [rest_of(lane) for lane in self.rig.sides(0)[1]]


def _again(whole, attempt):
    return segment(whole[HEADER_BYTES:], **{**_fields(whole), "attempt": attempt})


def _fields(whole):
    header = Header.unpack(whole[:HEADER_BYTES])
    return {"hop": header.hop, "index": header.index}


@every_kind
@pytest.mark.parametrize("hop", [0, 1], ids=["reduced", "copied"])
@pytest.mark.parametrize("cut", [1, 20, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 39])
@pytest.mark.parametrize("late", [False, True], ids=["first", "second"])
def test_the_next_attempt_finds_the_lane_as_it_should_be(kind, hop, cut, late):
    """An attempt ends in the middle of a copy, of which the rest comes when the next one is there."""
    play = Opposed(kind)
    copy = segment(FIRST[1], hop=hop, index=1)
    if late:  # the first copy is whole before the second begins
        play.theirs[1].sendall(b"".join(ALL[:3]))
        run, array = play.play(copy[:cut], ALL[3])
    else:
        run, array = play.play(copy[:cut], b"".join(ALL))
    assert (run.cause, run.broken) == ("", ([], []))
    assert np.array_equal(array, WANTED)
    skip, head = play.rests()[0]
    assert skip in (0, len(copy) - cut)
    assert head in (b"", copy[:cut])
    play.rig.attempt = 6
    run, array = play.play(copy[cut:] + _again(ALL[0], 6), b"".join(_again(each, 6) for each in ALL[1:]))
    assert (run.cause, run.broken) == ("", ([], []))
    assert np.array_equal(array, WANTED)
    assert play.rests() == [Rest(), Rest()]
    play.rig.close()


@every_kind
def test_what_is_to_be_skipped_outlives_an_attempt_that_ends_before_it_came(kind):
    play = Opposed(kind)
    copy = segment(FIRST[1], hop=0, index=1)
    play.play(copy[:60], b"".join(ALL))
    for attempt in (6, 7):
        play.rig.attempt = attempt
        piece = copy[60 + 5 * (attempt - 6) :][:5]
        run, array = play.play(piece, b"".join(_again(each, attempt) for each in ALL))
        assert (run.cause, run.broken) == ("", ([], []))
        assert np.array_equal(array, WANTED)
    play.rig.attempt = 8
    run, array = play.play(copy[70:] + b"".join(_again(each, 8) for each in ALL), b"")
    assert (run.cause, run.broken) == ("", ([], []))
    assert np.array_equal(array, WANTED)
    play.rig.close()


@every_kind
def test_abort_in_the_middle_of_a_copy_that_is_of_no_use(kind):
    play = Opposed(kind)
    copy = segment(FIRST[1], hop=0, index=1)
    for end, part in zip(play.theirs, (copy[:60], b"".join(ALL[1:])), strict=True):
        end.sendall(part)
    array = np.arange(WORK.count, dtype=np.float32)
    run = play.rig.start_one(0, kind, WORK, (array, array))
    got = bytearray()
    while len(got) < 4 * len(copy):  # it has reduced all that it had, and sent it on
        select.select(play.theirs, [], [], HANG_S)
        for end in play.theirs:
            try:
                got += end.recv(4096)
            except BlockingIOError:
                continue
    run.abort()
    assert run.wait()
    assert run.broken[1] in ([], [0]), "unless it had not seen yet that the other copy is whole"
    run.restore()
    assert np.array_equal(array, np.arange(WORK.count))
    play.rig.close()


@every_kind
@pytest.mark.parametrize("hop", [0, 1], ids=["reduced", "copied"])
def test_a_copy_with_other_bytes_changes_nothing(kind, hop):
    """It is whole first, and right by its own check: it counts. It comes second: it is not looked at."""
    other = np.full(10, 7.0, np.float32).tobytes()
    play = Opposed(kind)
    false = segment(other, hop=hop, index=1)
    run, array = play.play(b"", b"".join(ALL[:4]) + b"")
    assert run.cause == ""
    assert np.array_equal(array, WANTED)
    play.rig.attempt = 6
    late = [_again(each, 6) for each in (*ALL, false)]
    at = next(place for place, each in enumerate(late[:4]) if _fields(each) == _fields(late[4]))
    run, array = play.play(b"", b"".join([*late[: at + 1], late[4], *late[at + 1 : 4]]))
    assert run.cause == ""
    assert np.array_equal(array, WANTED)
    play.rig.attempt = 7
    damaged = segment(other, hop=hop, index=1, attempt=7, check=1)
    run, array = play.play(damaged, b"".join(_again(each, 7) for each in ALL[:2]))
    assert run.cause == "a segment from the previous peer arrived damaged"
    play.rig.close()


def test_a_transfer_skips_what_is_left_on_a_lane():
    near, far = connection()
    lane = Lane(3, 0, near, 5.0)
    leave(near, Rest(skip=100_000))
    with pytest.raises(BlockingIOError):
        drop(near)
    threading.Thread(target=send_all, args=(far, bytes(99_999))).start()
    assert _arrives_only_when(lane, far, b"\0" + goodbye(3))
    assert lane.receive_header(lambda: False) is None
    assert rest_of(near) == Rest()
    leave(near, Rest(head=goodbye(3)[:7]))
    far.sendall(goodbye(3)[7:])
    assert lane.receive_header(lambda: False) is None
    far.close()
    leave(near, Rest(skip=5))
    select.select([near], [], [], HANG_S)
    assert receive_into(near, memoryview(bytearray(1))) == 0, "the end"
    near.close()


@every_kind
def test_under_tls_what_is_left_on_an_idle_lane_is_skipped(kind):
    """Records of it may be there before others, or in the middle of one."""
    near, far = secured((kind, kind))
    leave(near, Rest(skip=40_000))
    send_tls(far, bytes(39_000)).join()
    while rest_of(near).skip > 1000:
        wait(near)
        with contextlib.suppress(BlockingIOError):
            assert not drop(near)
    with pytest.raises(BlockingIOError):
        drop(near)
    send_tls(far, bytes(1000) + b"next").join()
    wait(near)
    assert drop(near)
    assert rest_of(near) == Rest()
    assert near.recv(1, socket.MSG_PEEK)
    assert receive(near, 4) == b"next"
    close_all()


def send_all(end, data):
    rest = memoryview(data)
    while rest:
        select.select([], [end], [], HANG_S)
        rest = rest[end.send(rest) :]


def _arrives_only_when(lane, far, data):
    """Bytes that are to be skipped are no request."""
    looks = itertools.count()
    with pytest.raises(Stopped):
        lane.await_bytes(lambda: next(looks) > 2)
    far.sendall(data)
    lane.await_bytes(lambda: False)
    return True


def main() -> None:
    """So many random cases, of elements and of codes, with copies of every segment and of every third."""
    draw, made = random.Random(0), Roomy()
    for done in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
        Repeats.every = draw.choice((1, 2, 3, 7))
        if done % 500 == 0:
            print(f"{done} cases", flush=True)
        if draw.random() < 0.5:
            dtype, op = draw.choice(list(DataType)), draw.choice(list(ReduceOp))
            test_ring.run(next(test_ring.sampled(str(done), dtype, op)), made, done)
        else:
            name = draw.choice(list(CODES))
            dtype = draw.choice([each for each in SOURCES if test_coded_ring.possible(name, each)])
            test_coded_ring.run(test_coded_ring.draw_case(draw, name, dtype), made, done)
    made.close()
    print("all equal")


if __name__ == "__main__":
    main()
