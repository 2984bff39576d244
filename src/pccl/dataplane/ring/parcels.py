"""Whole contributions that travel ahead of the start of their collective, and what became of one.

Owns the form of a parcel on its lane and the bound on what is kept of them. Does no input or output, and must not know
peers or votes.

A parcel is announced by the header of a segment: `attempt` is its number, rising with every parcel of its sender, and
`tag` the lowest number that its sender may still be asked for; `hop` and `index` are 0. None is empty.
"""

import ctypes
from collections import deque
from collections.abc import Callable

from pccl.core.rules.schedule import PARCEL_BYTES_MAX, PARCELS_BYTES_MAX, PARCELS_KEPT_MAX, PARCELS_MAX
from pccl.dataplane.offers import Traffic
from pccl.dataplane.ring.segments import HEADER_BYTES, Header, seal
from pccl.dataplane.tensors.buffers import Buffers


class Damaged(Exception):
    """What came over the lane is no parcel; the sentence says why. Nothing that follows on it can be trusted."""


def wrap(number: int, oldest: int, contribution: bytes, check: int) -> bytes:
    """A parcel as it goes over a lane."""
    return Header(oldest, number, 0, 0, len(contribution), 0, check).sealed().pack() + contribution


PARCELS_PER_TURN = PARCELS_MAX
"""Taken at a time: as many as an honest sender has in use, so that none waits for another turn. Some 6 µs each."""


class Inbox:
    """What has come over one lane, until it is used, or its sender sends that it is not needed any more."""

    def __init__(self, check: Callable[[bytes], int]) -> None:
        self.parcels: dict[int, bytes] = {}
        """Contributions by number."""
        self.kept_bytes = 0
        self._check = check
        self._bytes = bytearray()
        self._numbers: deque[int] = deque()
        """Of all that are kept, and of some that were used; rising."""
        self._latest = 0

    def feed(self, data: bytes) -> bool:
        """Bytes have arrived, in any portions. True if a parcel is complete. Raises `Damaged`. Takes
        `PARCELS_PER_TURN`; while it is `full`, feed it nothing and call again."""
        self._bytes += data
        taken = 0
        while taken < PARCELS_PER_TURN and self._take_one():
            taken += 1
        self.full = taken == PARCELS_PER_TURN
        return taken > 0

    full = False
    """There may be more parcels in what has come."""

    def take(self, number: int) -> None:
        """This one was used, or is not needed."""
        self.kept_bytes -= len(self.parcels.pop(number, b""))

    def _take_one(self) -> bool:
        if len(self._bytes) < HEADER_BYTES:
            return False
        header = Header.unpack(self._bytes[:HEADER_BYTES])
        if header.seal != seal(header) or not 0 < header.length <= PARCEL_BYTES_MAX:
            raise Damaged("the header of a parcel arrived damaged, or announces more than any parcel has, or nothing")
        end = HEADER_BYTES + header.length
        if len(self._bytes) < end:
            return False
        self._keep(header, bytes(self._bytes[HEADER_BYTES:end]))
        del self._bytes[:end]
        return True

    def _keep(self, header: Header, contribution: bytes) -> None:
        if self._check(contribution) != header.check:
            raise Damaged("a parcel arrived damaged")
        if header.attempt <= self._latest:
            raise Damaged("the numbers of parcels do not rise")
        while self._numbers and self._numbers[0] < header.tag:
            self.take(self._numbers.popleft())
        kept_bytes = self.kept_bytes + len(contribution)
        if len(self._numbers) >= PARCELS_KEPT_MAX or kept_bytes > PARCELS_BYTES_MAX:
            most = f"{PARCELS_KEPT_MAX} parcels or {PARCELS_BYTES_MAX:,} bytes of them"
            raise Damaged(f"more than {most} wait for collectives that do not start")
        self._latest, self.kept_bytes = header.attempt, kept_bytes
        self.parcels[header.attempt] = contribution
        self._numbers.append(header.attempt)


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
