"""The engine of the reference data plane: a ring over sockets, one segment after the other, in numpy.

Written to be read: it copies where copying is simpler. It sends and accepts exactly what the native ring does.
Must not know threads, aborts, peers or votes.
"""

import select
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pccl.codec import Codec, contribution_bytes
from pccl.core.effects.peer_effects import StartAttempt
from pccl.core.fields import SEGMENT_BYTES_MAX
from pccl.dataplane.connection import Connection, Rest, leave, receive_into, torn
from pccl.dataplane.ring.arithmetic import STORED, Array, Bytes, check, combine, divide
from pccl.dataplane.ring.coding import CodedShares, Coding, memory
from pccl.dataplane.ring.segments import HEADER_BYTES, Header, Place, Route, is_over, result_digest, seal
from pccl.dataplane.tensors.buffers import Buffers
from pccl.types import CollectiveKind, ReduceOp

COPIES_MAX = 2
"""Of a segment: one, and one more that a neighbour may send when the first hangs."""

SLICE_MS = 50
"""The longest sleep: an abort takes effect within 100 ms."""


class Failed(Exception):
    """The attempt cannot be completed; the sentence says why."""


class LaneBroke(Failed):
    """And it is because of this lane."""


@dataclass
class Sender:
    """One lane to the next peer and the segment that is on its way out."""

    lane: Connection
    strand: int = 0
    """It carries segments of this strand alone."""
    rest: memoryview = field(default_factory=lambda: memoryview(b""))
    """Header and payload, as far as they are not sent."""
    begun: bool = False
    """Some bytes of the segment have left: the lane is of no use before the others have too."""
    broke: bool = False

    @property
    def ready(self) -> bool:
        """A segment that is begun now is normally taken whole: no lane sits on what another could send."""
        poll = select.poll()
        poll.register(self.lane.fileno(), select.POLLOUT)
        return bool(poll.poll(0))

    def send(self) -> int:
        """Hand over what the kernel takes at once; how much that was."""
        try:
            sent = self.lane.send(self.rest)
        except (BlockingIOError, InterruptedError):
            self.begun = self.begun or torn(self.lane)
            return 0
        except OSError as error:
            self.broke = True
            raise LaneBroke(f"to the next peer: send: {error.strerror}") from error
        self.rest = self.rest[sent:]
        self.begun = len(self.rest) > 0
        return sent

    @property
    def clean(self) -> bool:
        return not self.begun and not self.broke


@dataclass
class Receiver:
    """One lane from the previous peer and the segment that is on its way in."""

    lane: Connection
    strand: int = 0
    """It carries segments of this strand alone."""
    header: Header | None = None
    """None while the header itself is being received."""
    data: bytearray = field(default_factory=lambda: bytearray(HEADER_BYTES))
    got: int = 0
    second: bool = False
    """It is a copy of a segment that has begun to come before: it pays for no patience."""
    other: bool = False
    """What came is not of this attempt, nor of one before it: it is for the next user of the lane."""
    broke: bool = False
    """Nothing sensible can follow."""

    def receive(self) -> int:
        """Take what has arrived of what is expected; how much that was."""
        try:
            got = receive_into(self.lane, memoryview(self.data)[self.got :])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.broke = True
            raise LaneBroke(f"from the previous peer: receive: {error.strerror}") from error
        if got == 0:
            self.broke = True
            raise LaneBroke("from the previous peer: the neighbour closed the lane")
        self.got += got
        return got

    def expect(self, header: Header | None) -> None:
        """Receive the payload that a header announces, or the next header."""
        self.header, self.got = header, 0
        self.data = bytearray(HEADER_BYTES if header is None else header.length)

    @property
    def whole(self) -> bool:
        return self.got == len(self.data)

    @property
    def reads_on(self) -> bool:
        return not self.other and not self.broke

    def stop(self) -> None:
        """Leave the rest of what is coming to the next user of the lane."""
        if self.got or self.header:
            leave(
                self.lane, Rest(len(self.data) - self.got) if self.header else Rest(head=bytes(self.data[: self.got]))
            )
        self.expect(None)

    @property
    def clean(self) -> bool:
        return self.header is None and self.got == 0 and not self.broke


class Ring:
    """One attempt, from the first byte to the last, or to its abort."""

    def __init__(
        self, effect: StartAttempt, buffers: Buffers, senders: list[Sender], receivers: list[Receiver]
    ) -> None:
        spec = effect.spec
        self._effect = effect
        self._spec = spec
        codec = Codec.parse(spec.codec)
        cut = (spec.kind, spec.count, spec.dtype.itemsize)
        ring = (effect.size, effect.rank, effect.root_rank)
        self._route = route = Route(*cut, *ring, effect.segment_bytes, 1 if codec is None else codec.block)
        self._shares = None if codec is None else CodedShares(Coding(codec, spec.dtype, spec.op), buffers.feedback)
        """With a codec: what travels are codes."""
        self._input, self._output = memory(buffers.send), memory(buffers.output)
        self._in_place = buffers.in_place
        self._senders, self._receivers = senders, receivers
        self._saved: list[tuple[Place, bytes]] = []
        for stripe, sender in enumerate(senders):
            sender.strand = stripe % effect.strands
        for stripe, receiver in enumerate(receivers):
            receiver.strand = stripe % effect.strands
        # (hop, index, payload) to be sent, by strand
        self._ready: list[deque[tuple[int, int, Bytes]]] = [deque() for _ in range(effect.strands)]
        hops = range(route.hops)
        self._begun = {(hop, index): 0 for hop in hops for index in range(route.segments(route.chunk_received(hop)))}
        """How many copies of each segment have come, or begun to."""
        self._whole: set[tuple[int, int]] = set()
        self._unreceived = len(self._begun)
        self._unsent = sum(route.segments(route.chunk_sent(hop)) for hop in hops)
        self.sent_bytes = self.received_bytes = 0
        self._checks: dict[tuple[int, int], int] = {}  # of the segments of the result, by chunk and index
        self.useful_bytes = 0
        """Of this attempt, both ways: those of earlier ones are no progress."""
        for index in range(route.segments(route.chunk_sent(0)) if route.hops else 0):
            self._push(0, index, self._input[self._own(index).within(route.input_begin)])

    @property
    def finished(self) -> bool:
        return self._unsent == 0 and self._unreceived == 0

    @property
    def open_segments(self) -> int:
        """Those that are still to be sent, and to be received."""
        return self._unsent + self._unreceived

    def advance(self) -> bool:
        """One turn for every lane; False if none had anything to do. Raises `Failed`."""
        moved = [self._send(sender) for sender in self._senders]
        moved += [self._receive(receiver) for receiver in self._receivers]
        return any(moved)

    def wait(self) -> None:
        """Until a lane can go on, but not longer than `SLICE_MS`."""
        poll = select.poll()
        events: dict[int, int] = {}  # in a ring of two a lane is both ways, and `register` would forget the first
        for sender in self._senders if self._unsent else ():
            if sender.rest or self._ready[sender.strand]:
                events[sender.lane.fileno()] = select.POLLOUT
        for receiver in (each for each in self._receivers if each.reads_on):
            events[receiver.lane.fileno()] = events.get(receiver.lane.fileno(), 0) | select.POLLIN
        for fd, mask in events.items():
            poll.register(fd, mask)
        poll.poll(SLICE_MS)

    def leave(self) -> None:
        """At the end, leave to the next user of each lane what is of no use to us."""
        for receiver in self._receivers:
            if not receiver.broke and (receiver.header is None or self._useless(receiver.header)):
                receiver.stop()

    @property
    def broken_next(self) -> list[int]:
        """Stripes to the next peer that do not stand on a segment boundary."""
        return [stripe for stripe, sender in enumerate(self._senders) if not sender.clean]

    @property
    def broken_prev(self) -> list[int]:
        """The same from the previous peer."""
        return [stripe for stripe, receiver in enumerate(self._receivers) if not receiver.clean]

    @property
    def digest(self) -> bytes:
        """Of the whole result, the same at all peers; empty if every peer ends with another part."""
        if self._spec.kind is CollectiveKind.REDUCE_SCATTER:
            return b""
        return result_digest(b"".join(check.to_bytes(8, "little") for _, check in sorted(self._checks.items())))

    def restore(self) -> None:
        """Put back every byte of the input that was overwritten."""
        for place, data in self._saved:
            self._output[place.within(0)] = np.frombuffer(data, np.uint8)
        self._saved.clear()

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, sender: Sender) -> bool:
        if not sender.rest:
            ready = self._ready[sender.strand]
            if not ready or not sender.ready:
                return False
            hop, index, payload = ready.popleft()
            if hop == 0 and self._shares is not None:
                payload = self._shares.encode(payload, self._first(self._own(index)), self._stream(0))
            if hop == 0 and self._route.reducing_hops == 0 and not self._in_place:
                # Where nothing is reduced, what we bring is a part of our own result too.
                self._output[self._own(index).within(self._route.output_begin)] = payload
            sender.rest = memoryview(self._announced(hop, index, payload))
        sent = sender.send()
        self.sent_bytes += sent
        self.useful_bytes += sent
        self._unsent -= not sender.rest
        return sent > 0

    def _push(self, hop: int, index: int, payload: Bytes) -> None:
        self._ready[index % len(self._ready)].append((hop, index, payload))

    def _own(self, index: int) -> Place:
        """Where a segment of what we send first lies."""
        return self._place(self._route.chunk_sent(0), index)

    def _place(self, chunk: int | None, index: int) -> Place:
        assert chunk is not None, "only chunks that travel have segments"
        return self._route.place(chunk, index)

    def _announced(self, hop: int, index: int, payload: Bytes) -> bytes:
        """A segment as it goes over a lane."""
        effect = self._effect
        header = Header(effect.tag, effect.attempt, hop, index, len(payload), 0, check(payload)).sealed()
        if hop == self._route.reducing_hops:
            self._note(self._route.chunk_sent(hop), index, header.check)  # It is a part of our own result.
        return header.pack() + payload.tobytes()

    def _note(self, chunk: int | None, index: int, found: int) -> None:
        assert chunk is not None, "only chunks that travel have segments"
        self._checks[chunk, index] = found

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, receiver: Receiver) -> bool:
        if not receiver.reads_on:
            return False
        try:
            got = receiver.receive()
        except LaneBroke:
            if self._unreceived:
                raise
            return False
        self.received_bytes += got
        if receiver.header is not None and not receiver.second and not self._useless(receiver.header):
            self.useful_bytes += got
        if not receiver.whole:
            return got > 0
        if receiver.header is None:
            header = Header.unpack(receiver.data)
            if self._unreceived == 0:
                # Only copies are left, whose sender must not wait for room until it gives up.
                receiver.other = not is_over(header, self._effect.attempt)
            else:
                receiver.second = self._examined(header, receiver)
            if not receiver.other:
                receiver.expect(header)
        else:
            if not self._useless(receiver.header):
                self._take(receiver.header, np.frombuffer(receiver.data, np.uint8))
            receiver.expect(None)
        return True

    def _useless(self, header: Header) -> bool:
        """The rest of an attempt that was aborted, or of a segment of which another copy has come."""
        return (
            self._unreceived == 0 or header.attempt < self._effect.attempt or (header.hop, header.index) in self._whole
        )

    def _examined(self, header: Header, receiver: Receiver) -> bool:
        try:
            return self._examine(header, receiver.strand)
        except Failed:
            receiver.broke = True
            raise

    def _examine(self, header: Header, strand: int) -> bool:
        """Refuse what cannot be: nothing sensible can follow it. Whether it is the second of its kind."""
        effect, segment = self._effect, (header.hop, header.index)
        if header.seal != seal(header):
            raise Failed("a header from the previous peer arrived damaged")
        if not 0 < header.length <= SEGMENT_BYTES_MAX or header.attempt > effect.attempt:
            raise Failed("a segment from the previous peer makes no sense")
        if header.attempt < effect.attempt:
            return False
        if header.tag != effect.tag or self._begun.get(segment, COPIES_MAX) == COPIES_MAX:
            raise Failed("a segment from the previous peer has no place in this attempt")
        if header.index % len(self._ready) != strand:
            raise Failed("a segment from the previous peer has no place in this attempt")
        if header.length != self._on_lane(self._place(self._route.chunk_received(header.hop), header.index)):
            raise Failed("a segment from the previous peer has no place in this attempt")
        self._begun[segment] += 1
        second = self._begun[segment] > 1
        self.useful_bytes += 0 if second else HEADER_BYTES
        return second

    def _take(self, header: Header, payload: Bytes) -> None:
        """A whole segment is there: check it, reduce it, pass it on."""
        if check(payload) != header.check:
            raise Failed("a segment from the previous peer arrived damaged")
        self._whole.add((header.hop, header.index))
        if header.hop >= self._route.reducing_hops:
            self._note(self._route.chunk_received(header.hop), header.index, header.check)
        place, hops = self._place(self._route.chunk_received(header.hop), header.index), header.hop + 1
        if hops <= self._route.reducing_hops:
            payload = self._reduced(hops, payload, place)
        if hops >= self._route.reducing_hops:
            self._write(place, payload if self._shares is None else self._decoded(payload, place))
        self._unreceived -= 1
        if hops < self._route.hops:
            self._push(hops, header.index, payload)

    def _reduced(self, hops: int, received: Bytes, place: Place) -> Bytes:
        """After so many hops: the last that reduces finishes the chunk."""
        own = self._input[place.within(self._route.input_begin)]
        if self._shares is not None:
            return self._coded(hops, received, own, self._first(place))
        stored, spec = STORED[self._spec.dtype], self._spec
        values: Array = combine(received.view(stored), own.view(stored), spec.dtype, spec.op)
        if hops == self._route.reducing_hops and spec.op is ReduceOp.AVG:
            values = divide(values, spec.dtype, self._route.size)
        return values.view(np.uint8)

    # ── codes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _coded(self, hops: int, received: Bytes, own: Bytes, first: int) -> Bytes:
        """After so many hops: what came, reduced with our own, as codes again."""
        assert self._shares is not None, "it has a codec"
        if hops == self._route.reducing_hops:
            return self._shares.finish(received, own, first, self._stream(hops), self._route.size)
        return self._shares.fold(received, own, first, self._stream(hops))

    def _decoded(self, payload: Bytes, place: Place) -> Bytes:
        """What every peer makes of the codes of a finished chunk, the peer that made them too."""
        assert self._shares is not None, "it has a codec"
        coding = self._shares.coding
        return coding.stored(coding.decode(payload, place.length // self._route.itemsize))

    def _first(self, place: Place) -> int:
        return place.begin // self._route.itemsize

    def _on_lane(self, place: Place) -> int:
        """How long a segment is on a lane."""
        return contribution_bytes(self._spec.codec, place.length // self._route.itemsize, self._spec.dtype)

    def _stream(self, hop: int) -> tuple[int, int, int]:
        """What tells the random numbers of a hop from those of others."""
        return self._effect.tag, self._effect.attempt, hop

    # ── the result ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, place: Place, payload: Bytes) -> None:
        """Each place is written once; in place, what was there is the input, and is kept."""
        there = place.within(self._route.output_begin)
        if self._in_place:
            self._saved.append((place, self._output[there].tobytes()))
        self._output[there] = payload
