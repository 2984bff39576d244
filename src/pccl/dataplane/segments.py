"""Where everything is: which chunk travels in which hop, where its segments lie, and what announces them on a lane.

Owns the arithmetic of the ring and the layout of a segment's header (docs/dataplane.md). Pure. Must not know lanes,
elements' types or what is computed.

The elements are cut into as many chunks as there are peers, each chunk into segments. In hop h the peer of rank r sends
chunk r-h and receives chunk r-h-1, modulo the size of the ring. In the first size-1 hops it adds its own share to what
it receives; what it has after that is finished, and travels around once more to be copied.
"""

import struct
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

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
    state = _mixed(header.tag + 0x9E3779B97F4A7C15)
    for field in (header.attempt, header.hop | header.index << 32, header.length, header.check):
        state = _mixed(state ^ field)
    return state >> 32


def _mixed(state: int) -> int:
    state &= 0xFFFF_FFFF_FFFF_FFFF
    return (state ^ state >> 32) * 0xD6E8FEB86659FD93 & 0xFFFF_FFFF_FFFF_FFFF


class Place(Struct, frozen=True):
    """A stretch of the buffers, in bytes."""

    begin: int
    length: int

    @property
    def bytes(self) -> slice:
        return slice(self.begin, self.begin + self.length)


@dataclass(frozen=True)
class Cut:
    """How all peers cut one collective, and what the peer of this rank does with the parts."""

    count: int
    itemsize: int
    size: int
    rank: int
    segment_bytes: int

    @property
    def hops(self) -> int:
        return 2 * (self.size - 1)

    @property
    def finishing_hop(self) -> int:
        """The hop that brings the last share but one: adding our own finishes the chunk."""
        return self.size - 2

    @property
    def elements_per_segment(self) -> int:
        return max(1, self.segment_bytes // self.itemsize)

    def chunk_sent(self, hop: int) -> int:
        return (self.rank - hop) % self.size

    def chunk_received(self, hop: int) -> int:
        return (self.rank - hop - 1) % self.size

    def chunk_elements(self, chunk: int) -> int:
        """As equal as can be: the first ones have one more."""
        return self.count // self.size + (chunk < self.count % self.size)

    def chunk_begin(self, chunk: int) -> int:
        return chunk * (self.count // self.size) + min(chunk, self.count % self.size)

    def segments(self, chunk: int) -> int:
        return -(-self.chunk_elements(chunk) // self.elements_per_segment)

    def place(self, chunk: int, index: int) -> Place:
        """Where a segment lies in the buffers."""
        first = index * self.elements_per_segment
        elements = min(self.elements_per_segment, self.chunk_elements(chunk) - first)
        return Place((self.chunk_begin(chunk) + first) * self.itemsize, elements * self.itemsize)
