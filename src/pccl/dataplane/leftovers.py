"""What comes on an idle lane of attempts that have ended here: it is skipped, up to what is for the next user.

Owns what tells the two apart. An attempt ends when it has one copy of each segment, and its neighbour may be about to
send another; if it were not read, that neighbour would stand in the middle of it until its patience ends, and break the
lane. Must not know what the next user makes of its bytes, nor judge them.
"""

import socket

from pccl.dataplane.connection import Connection, Rest, drop, leave, receive_into
from pccl.dataplane.ring.segments import HEADER_BYTES, Header, is_over

SKIPPED_MAX = 4096
"""Segments on an idle lane. No honest neighbour sends so many of an attempt that has ended here, and one that goes on
for ever must not keep us busy: what comes then stays where it is."""


class Leftovers:
    """Of one lane, between its users."""

    def __init__(self) -> None:
        self._ended = self._skipped = 0

    def after(self, attempt: int) -> None:
        """The lane is idle again; the latest attempt that it was lent to is this one, or unknown if 0."""
        self._ended, self._skipped = max(self._ended, attempt), 0

    def begun(self, lane: Connection) -> bool:
        """Whether something for the next user has begun to come; False at the end of the lane. Raises
        `BlockingIOError` as long as neither is known, and behind each segment that it skips: no neighbour keeps its
        caller for long."""
        if not drop(lane):
            return False
        if self._ended == 0 or self._skipped >= SKIPPED_MAX:
            return bool(lane.recv(1, socket.MSG_PEEK))
        data = _read_header(lane)
        if len(data) < HEADER_BYTES:
            return False
        if not is_over(header := Header.unpack(data), self._ended):
            return True  # Bytes that are no header are refused by the next user.
        self._skipped += 1
        leave(lane, Rest(skip=header.length))
        if not drop(lane):
            return False
        raise BlockingIOError


def _read_header(lane: Connection) -> bytes:
    """The next one, which is left on the lane as its head; shorter at the end of the lane. Raises `BlockingIOError`
    before all of it has come."""
    data, got = memoryview(bytearray(HEADER_BYTES)), 0
    try:
        while got < HEADER_BYTES and (portion := receive_into(lane, data[got:])):
            got += portion
    finally:
        leave(lane, Rest(head=bytes(data[:got])))
    return bytes(data[:got])
