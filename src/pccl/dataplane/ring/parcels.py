"""Whole contributions that travel ahead of the start of their collective, and what became of one.

Owns the form of a parcel on its lane and the bound on what is kept of them. Does no input or output, and must not know
peers or votes.

A parcel is announced by the header of a segment: `attempt` is its number, rising with every parcel of its sender, and
`tag` the lowest number that its sender may still be asked for; `hop` and `index` are 0.
"""

import ctypes
from collections.abc import Callable

from pccl.core.rules.schedule import PARCEL_BYTES_MAX, PARCELS_KEPT_MAX
from pccl.dataplane.offers import Traffic
from pccl.dataplane.ring.segments import HEADER_BYTES, Header, seal
from pccl.dataplane.tensors.buffers import Buffers


class Damaged(Exception):
    """What came over the lane is no parcel; the sentence says why. Nothing that follows on it can be trusted."""


def wrap(number: int, oldest: int, contribution: bytes, check: int) -> bytes:
    """A parcel as it goes over a lane."""
    return Header(oldest, number, 0, 0, len(contribution), 0, check).sealed().pack() + contribution


class Inbox:
    """What has come over one lane."""

    def __init__(self, check: Callable[[bytes], int]) -> None:
        self.parcels: dict[int, bytes] = {}
        """Contributions by number."""
        self._check = check
        self._bytes = bytearray()

    def feed(self, data: bytes) -> bool:
        """Bytes have arrived, in any portions. True if a parcel is complete. Raises `Damaged`."""
        self._bytes += data
        complete = False
        while len(self._bytes) >= HEADER_BYTES:
            header = Header.unpack(self._bytes[:HEADER_BYTES])
            if header.seal != seal(header) or header.length > PARCEL_BYTES_MAX:
                raise Damaged("the header of a parcel arrived damaged, or announces more than any parcel has")
            end = HEADER_BYTES + header.length
            if len(self._bytes) < end:
                break
            self._keep(header, bytes(self._bytes[HEADER_BYTES:end]))
            del self._bytes[:end]
            complete = True
        return complete

    def _keep(self, header: Header, contribution: bytes) -> None:
        if self._check(contribution) != header.check:
            raise Damaged("a parcel arrived damaged")
        for number in [number for number in self.parcels if number < header.tag]:
            del self.parcels[number]
        if len(self.parcels) >= PARCELS_KEPT_MAX:
            raise Damaged(f"more than {PARCELS_KEPT_MAX} parcels wait for collectives that do not start")
        self.parcels[header.attempt] = contribution


class Exchanged:
    """An exchange that is about to write its result; see `offers.Attempt`."""

    def __init__(self, buffers: Buffers, contribution_bytes: int, peers: int) -> None:
        self._buffers = buffers
        self._input = ctypes.string_at(buffers.send.address, buffers.send.nbytes) if buffers.in_place else b""
        one_way = (peers - 1) * (HEADER_BYTES + contribution_bytes)
        self.traffic = Traffic(one_way, one_way)

    commits_at_once = True

    def commit(self) -> None:
        """The result is in its place already."""

    def restore(self) -> None:
        """Put the input back."""
        if self._buffers.in_place:
            ctypes.memmove(self._buffers.output.address, self._input, len(self._input))
