"""Lanes that close at any byte, that change a byte, or on which nonsense arrives: a failed run, never a wrong sum."""

import random
import select
import socket
import threading

import numpy as np
import pytest
from msgspec.structs import replace

from pccl.codec import NONE
from pccl.core.fields import SEGMENT_BYTES_MAX
from pccl.dataplane.ring.arithmetic import check
from pccl.dataplane.ring.segments import HEADER_BYTES, Header
from pccl.types import DataType, ReduceOp
from tests.native import oracle
from tests.native.rings import TAG, Rig, Work, connection, copies

KINDS = ["native", "reference"]
every_kind = pytest.mark.parametrize("kind", KINDS)


class Relay:
    """Between the ends of a lane: forwards both ways, and flips a bit of one byte of the first way, or closes there."""

    def __init__(self, at_byte, flip=None):
        self._at_byte, self._flip = at_byte, flip
        self.near, self._near = connection()
        self._far, self.far = connection()
        self._wake, self._woken = socket.socketpair()
        self.done = False
        for end in (self._near, self._far):
            end.setblocking(True)
        self._thread = threading.Thread(target=self._forward)
        self._thread.start()

    def _forward(self):
        to, passed = {self._near: self._far, self._far: self._near}, 0
        while to:
            ready, _, _ = select.select([*to, self._woken], [], [])
            if self._woken in ready:
                return
            for end in ready:
                try:
                    data = bytearray(end.recv(65_536))
                    if end is self._near:
                        data, passed = self._treated(data, passed), passed + len(data)
                    if not data:
                        return
                    to[end].sendall(data)
                except OSError:
                    return
                finally:
                    if self.done and self._flip is None:
                        self._near.close()
                        self._far.close()

    def _treated(self, data, passed):
        place = self._at_byte - passed
        if not 0 <= place < len(data) or self.done:
            return data
        self.done = True
        if self._flip is None:
            self._far.sendall(data[:place])
            return b""
        data[place] ^= self._flip
        return data

    def close(self):
        self._wake.send(b"x")
        self._thread.join()
        for end in (self.near, self._near, self._far, self.far, self._wake, self._woken):
            end.close()


class Scene:
    """A ring of three or two in which the first stripe from rank 0 to rank 1 goes through a relay."""

    def __init__(self, seed, kind, relay, codec=NONE):
        self.draw = random.Random(seed)
        self.rig = Rig(2 + seed % 2, 1 + seed % 3)
        self.relay = relay
        for end in self.rig.links[0][0]:
            end.close()
        self.rig.links[0][0] = (relay.near, relay.far)
        self.rig.attempt = 40  # so that a flipped bit can make it smaller
        dtype = DataType.INT32 if codec == NONE else DataType.FLOAT
        self.work = Work(dtype, ReduceOp.SUM, 3_001, 1_000, codec=codec)
        self.inputs = oracle.inputs(np.random.default_rng(seed), *self.work[:3], self.rig.size)
        self.sends = copies(self.inputs)
        in_place = self.draw.random() < 0.7
        self.receives = self.sends if in_place else [np.zeros_like(array) for array in self.sends]
        others = self.draw.choice(KINDS)
        kinds = [others, kind, others][: self.rig.size]
        self.runs = self.rig.start(kinds, self.work, self.sends, self.receives, stall_s=20.0)

    def play(self):
        """Wait for the first that fails, or all; abort the others, as the master does. The causes."""
        while not all(run.wait(0) for run in self.runs):
            if any(run.wait(0.002) and run.cause for run in self.runs):
                for run in self.runs:
                    run.abort()
        return [run.cause for run in self.runs]

    def close(self):
        self.relay.close()
        self.rig.close()

    def assert_never_a_wrong_sum(self, causes):
        if not any(causes):
            wanted = oracle.reduced(self.inputs, self.work.dtype, self.work.op)
            oracle.assert_equal_bits(self.receives, wanted, self.work.dtype)
        for run, send, untouched in zip(self.runs, self.sends, self.inputs, strict=True):
            run.restore()
            assert send.tobytes() == untouched.tobytes()


@every_kind
@pytest.mark.parametrize("seed", range(20))
def test_lane_closes_at_any_byte(seed, kind):
    scene = Scene(seed, kind, Relay(random.Random(seed).choice([0, 1, 39, 40, 41, *range(100, 6_000, 97)])))
    causes = scene.play()
    if scene.relay.done and any(causes):
        assert any("lane" in cause or "peer" in cause for cause in causes), causes
        assert any(stripe == [0] or 0 in stripe for run in scene.runs for stripe in run.broken)
    scene.assert_never_a_wrong_sum(causes)
    scene.close()


@every_kind
@pytest.mark.parametrize("seed", range(30))
def test_changed_byte_is_a_failed_run(seed, kind):
    """The first bytes are a header and its payload: each byte of the header, and some of the payload."""
    draw = random.Random(seed)
    place = draw.choice([*range(HEADER_BYTES), *range(HEADER_BYTES, HEADER_BYTES + 1_000, 50)])
    scene = Scene(seed, kind, Relay(place, flip=1 << draw.randrange(8)))
    causes = scene.play()
    assert scene.relay.done
    assert "damaged" in causes[1], "the receiver notices, at once"
    assert 0 in scene.runs[1].broken[1], "and gives up the lane"
    scene.assert_never_a_wrong_sum(causes)
    scene.close()


@pytest.mark.parametrize("place", range(HEADER_BYTES))
def test_every_byte_of_the_header_counts(place):
    for kind in KINDS:
        scene = Scene(place, kind, Relay(place, flip=0x10))
        causes = scene.play()
        assert causes[1] == "a header from the previous peer arrived damaged"
        scene.assert_never_a_wrong_sum(causes)
        scene.close()


# ── nonsense that is well sealed ─────────────────────────────────────────────────────────────────────────────────────

WORK = Work(DataType.FLOAT, ReduceOp.SUM, 40, 40)  # two peers: chunks of 20 elements, segments of 10
GOOD = Header(TAG, 5, 0, 0, 40, 0, 0)
NONSENSE = {
    "no length": {"length": 0},
    "absurd length": {"length": SEGMENT_BYTES_MAX + 1},
    "absurd length of an old attempt": {"length": 2**32 - 1, "attempt": 4},
    "no length of an old attempt": {"length": 0, "attempt": 4},
    "longer than its place": {"length": 44},
    "shorter than its place": {"length": 36},
    "hop beyond the last": {"hop": 2},
    "absurd hop": {"hop": 2**32 - 1},
    "index beyond the last": {"index": 2},
    "absurd index": {"index": 2**32 - 1},
    "another tag": {"tag": TAG + 1},
    "an attempt to come": {"attempt": 6},
}


def segment(payload=b"", **fields):
    """A segment with a good check and a good seal, and with these fields instead of the good ones."""
    whole = replace(GOOD, check=check(np.frombuffer(payload, np.uint8)))
    return replace(whole, **fields).sealed().pack() + payload


def opposed(kind, data, stripes=1):
    """A run of rank 0 of two against bytes of our own making; the run, its array, and the rig."""
    rig = Rig(2, stripes)
    rig.attempt = 5
    array = np.arange(WORK.count, dtype=np.float32)
    ends = [ends[1] for ends in rig.links[0]]
    for end, part in zip(ends, data, strict=True):
        end.sendall(part)
    return rig.start_one(0, kind, WORK, (array, array)), array, rig


@every_kind
@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_is_refused(what, kind):
    run, array, rig = opposed(kind, [segment(**NONSENSE[what])])
    assert run.wait()
    assert "segment from the previous peer" in run.cause
    assert run.broken[1] == [0]
    run.restore()
    assert np.array_equal(array, np.arange(WORK.count))
    rig.close()


@every_kind
def test_segment_that_comes_a_third_time_is_refused(kind):
    whole = segment(bytes(40))
    run, array, rig = opposed(kind, [whole + whole + whole])
    assert run.wait()
    assert run.cause == "a segment from the previous peer has no place in this attempt"
    run.restore()
    assert np.array_equal(array, np.arange(WORK.count))
    rig.close()


@pytest.mark.usefixtures("one_strand")
@every_kind
def test_segment_that_is_being_received_on_two_lanes_is_not_accepted_on_a_third(kind):
    whole = segment(bytes(40))
    run, _, rig = opposed(kind, [whole[:60], whole[:50], whole], stripes=3)
    assert run.wait()
    assert run.cause == "a segment from the previous peer has no place in this attempt"
    assert run.broken[1] == [0, 1, 2]
    rig.close()


@pytest.mark.usefixtures("one_strand")
@every_kind
def test_stale_segments_are_drained_and_any_order_is_accepted(kind):
    stale = [segment(bytes(length), length=length, attempt=4, hop=9, index=99) for length in (1, 40, 70_000)]
    mine = [np.full(10, 100.0 + index, np.float32) for index in range(2)]
    first = [segment(values.tobytes(), index=index) for index, values in enumerate(mine)]
    second = [segment(values.tobytes(), hop=1, index=index) for index, values in enumerate(mine)]
    # Of chunk 1 our shares, of chunk 0 what we call finished; hops and indices in reverse.
    lanes = [b"".join(stale) + second[1] + first[1], second[0] + stale[0] + first[0]]
    run, array, rig = opposed(kind, lanes, stripes=2)
    assert run.wait()
    assert run.cause == ""
    assert run.broken == ([], [])
    shares = np.repeat([100.0, 101.0], 10)
    assert np.array_equal(array, np.concatenate([shares, np.arange(20, 40) + shares]).astype(np.float32))
    run.restore()
    assert np.array_equal(array, np.arange(WORK.count))
    rig.close()
