"""Where everything is: which chunk travels in which hop, where its segments lie, and what announces them on a lane.

Owns the arithmetic of the ring, for every kind of collective, and the layout of a segment's header
(docs/dataplane.md). Pure. Must not know lanes, elements' types or what is computed. `native/route.hpp` is its twin.

The elements are cut into chunks, each chunk into segments. In every hop a peer sends one chunk to the next peer and
receives one from the previous one, and sends on in the next hop what it received in this. In the first hops it may add
its own share to what it receives; what it has after these is finished, and travels on to be copied.
"""

import struct
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from pccl.core.fields import SEGMENT_BYTES_MAX
from pccl.dataplane.state.digests import digest
from pccl.types import CollectiveKind

_LAYOUT = struct.Struct("<QQIIIIQ")
HEADER_BYTES = _LAYOUT.size


class Header(Struct, frozen=True):
    """What stands before the bytes of a segment."""

    tag: int
    attempt: int
    hop: int
    index: int
    """Of the segment in its chunk."""
    length: int
    """Bytes that follow."""
    seal: int
    """Of all the other fields, so that a damaged header is noticed before it is believed."""
    check: int
    """Of the bytes that follow."""

    def sealed(self) -> "Header":
        """The same, with the seal that belongs to it."""
        return replace(self, seal=seal(self))

    def pack(self) -> bytes:
        """As it goes over a lane."""
        return _LAYOUT.pack(self.tag, self.attempt, self.hop, self.index, self.length, self.seal, self.check)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> "Header":
        """As it came over a lane."""
        return cls(*_LAYOUT.unpack(data))


def seal(header: Header) -> int:
    """32 bits that bind a payload to its place: one that arrives whole but elsewhere is as wrong as a damaged one."""
    state = mixed(header.tag + 0x9E3779B97F4A7C15)
    for field in (header.attempt, header.hop | header.index << 32, header.length, header.check):
        state = mixed(state ^ field)
    return state >> 32


def is_over(header: Header, attempt: int) -> bool:
    """It announces a segment of this attempt or of one before it. Bytes that are no header announce none."""
    return header.seal == seal(header) and 0 < header.length <= SEGMENT_BYTES_MAX and header.attempt <= attempt


def result_digest(checks: bytes) -> bytes:
    """16 bytes that stand for a result, by the checks of its segments, eight bytes each: these are computed anyway, and
    to hash the whole result once more would take some tenths of what moving it takes. Nothing for no segments."""
    return digest(checks) if checks else b""


def mixed(state: int) -> int:
    """64 bits that tell little of what they were made from."""
    state &= 0xFFFF_FFFF_FFFF_FFFF
    return (state ^ state >> 32) * 0xD6E8FEB86659FD93 & 0xFFFF_FFFF_FFFF_FFFF


class Place(Struct, frozen=True):
    """A stretch of the whole that is cut, in bytes."""

    begin: int
    length: int

    def within(self, begin: int) -> slice:
        """Its bytes in a buffer that holds the whole from `begin` on."""
        return slice(self.begin - begin, self.begin - begin + self.length)


def chunk(count: int, chunks: int, index: int) -> range:
    """The elements of one of so many chunks, as equal as can be: the first ones have one more."""
    least, more = divmod(count, chunks)
    begin = index * least + min(index, more)
    return range(begin, begin + least + (index < more))


def output_count(kind: CollectiveKind, count: int, size: int, rank: int) -> int:
    """How many elements the peer of this rank ends with when each of so many brings `count`."""
    match kind:
        case CollectiveKind.ALL_GATHER:
            return size * count
        case CollectiveKind.REDUCE_SCATTER:
            return len(chunk(count, size, rank))
        case _:
            return count


@dataclass(frozen=True)
class Route:
    """How all peers cut one collective, and what the peer of this rank does with the parts."""

    kind: CollectiveKind
    count: int
    """Elements that each peer brings."""
    itemsize: int
    size: int
    rank: int
    root: int
    """The rank whose tensor a broadcast spreads."""
    segment_bytes: int
    block: int = 1
    """Elements that are coded together: segments are whole blocks, so that however a chunk is cut into them, its blocks
    are the same."""

    @property
    def hops(self) -> int:
        return (2 if self.kind is CollectiveKind.ALL_REDUCE else 1) * (self.size - 1)

    @property
    def reducing_hops(self) -> int:
        """In the first so many hops shares are added; adding our own in the last of them finishes the chunk."""
        reduces = self.kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
        return self.size - 1 if reduces else 0

    def chunk_sent(self, hop: int) -> int | None:
        return self._sent_by(self.rank, hop)

    def chunk_received(self, hop: int) -> int | None:
        return self._sent_by((self.rank - 1) % self.size, hop)

    def _sent_by(self, rank: int, hop: int) -> int | None:
        match self.kind:
            case CollectiveKind.BROADCAST:  # one chunk, that passes each peer once
                return 0 if (rank - self.root) % self.size == hop else None
            case CollectiveKind.REDUCE_SCATTER:  # one earlier, so that chunk r is finished at rank r
                return (rank - hop - 1) % self.size
            case _:
                return (rank - hop) % self.size

    @property
    def elements_per_segment(self) -> int:
        return max(1, self.segment_bytes // self.itemsize // self.block) * self.block

    def segments(self, index: int | None) -> int:
        """How many a chunk has."""
        return 0 if index is None else -(-len(self._chunk(index)) // self.elements_per_segment)

    def place(self, index: int, segment: int) -> Place:
        """Where a segment of a chunk lies in the whole that is cut."""
        elements = self._chunk(index)[segment * self.elements_per_segment :][: self.elements_per_segment]
        return Place(elements.start * self.itemsize, len(elements) * self.itemsize)

    @property
    def input_begin(self) -> int:
        """Where in the whole the input begins, in bytes: what a peer brings to an all-gather is its own chunk."""
        return self._own.start * self.itemsize if self.kind is CollectiveKind.ALL_GATHER else 0

    @property
    def output_begin(self) -> int:
        """The same of the output: what a reduce-scatter leaves is the peer's own chunk."""
        return self._own.start * self.itemsize if self.kind is CollectiveKind.REDUCE_SCATTER else 0

    @property
    def _own(self) -> range:
        return self._chunk(self.rank)

    def _chunk(self, index: int) -> range:
        match self.kind:
            case CollectiveKind.BROADCAST:
                return chunk(self.count, 1, index)
            case CollectiveKind.ALL_GATHER:
                return chunk(self.count * self.size, self.size, index)
            case _:
                return chunk(self.count, self.size, index)
