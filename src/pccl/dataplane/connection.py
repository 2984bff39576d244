"""What a lane is to the code that moves bytes over it: a connected, non-blocking socket, or what behaves like one.

Owns the one face of plain and secured lanes, and what the last user of a lane has left in front of the next message. A
plain lane is the socket itself and costs nothing. Must not know how records are made, nor what they prove.
"""

import socket
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

Bytes = bytes | bytearray | memoryview


class Connection(Protocol):
    """As of `socket.socket`: `BlockingIOError` where nothing moves now, any other `OSError` where nothing will.

    Bytes of which it raised `BlockingIOError` must be sent again, from the same one on. A readable descriptor may have
    nothing to read, and what was received may be inside already: receive until it would block, then wait."""

    def fileno(self) -> int:
        """Of its socket, to wait for."""

    def send(self, data: Bytes, /) -> int:
        """How many bytes were taken."""

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        """What has arrived, at most so much; empty at the end. `MSG_PEEK` is the only flag."""

    def recv_into(self, into: memoryview, /) -> int:
        """The same into memory of the caller; 0 at the end."""

    def shutdown(self, how: int, /) -> None:
        """Of the socket, from any thread: its user finds it broken."""

    def close(self) -> None:
        """And free the descriptor."""


class Secured(Connection, Protocol):
    """A connection under TLS."""

    @property
    def torn(self) -> bool:
        """A record was made that the kernel has not taken whole: nothing else can be sent before its rest."""

    def hello(self) -> None:
        """Of the end that dials: send what comes first, and read nothing."""

    def handshake(self) -> int:
        """Go on with it: 0 when it is over, else what to wait for, `selectors.EVENT_READ` or `EVENT_WRITE`. Raises
        `OSError`."""

    def certificate(self) -> bytes:
        """The one that the other end has shown, in DER; empty if none."""


class Tls(Protocol):
    """Secures the connections of one peer."""

    def wrap(self, sock: socket.socket, dials: bool, first: bytes) -> Secured:
        """TLS on a connected socket; `first` is sent in the clear, in one segment with the first records."""


def torn(connection: Connection) -> bool:
    """See `Secured`; a socket has no records."""
    return bool(getattr(connection, "torn", False))


# ── what is left on a lane ───────────────────────────────────────────────────────────────────────────────────────────


class Rest(NamedTuple):
    """What the next user of a lane finds in front of the first message. An attempt is over when it has one copy of each
    segment; of a second copy the lane may be in the middle."""

    skip: int = 0
    """Bytes that are of no use."""
    head: bytes = b""
    """Bytes that were read already; never beside some to skip."""


_DROPPED_BYTES = 64 << 10
"""At a time."""

_rests: WeakKeyDictionary[Connection, Rest] = WeakKeyDictionary()
"""Of few lanes, and for as long as these live. Each lane has one user at a time, and one operation on a dictionary is
atomic."""


def rest_of(lane: Connection) -> Rest:
    """What is left on it now."""
    return _rests.get(lane, _NOTHING)


_NOTHING = Rest()


def leave(lane: Connection, rest: Rest = _NOTHING) -> None:
    """For the next user of the lane, instead of what was there."""
    if rest == _NOTHING:
        _rests.pop(lane, None)
    else:
        _rests[lane] = rest


def receive_into(lane: Connection, into: memoryview) -> int:
    """As `recv_into`, behind what is left on the lane."""
    skip, head = rest_of(lane)
    if head:
        portion = min(len(head), len(into))
        into[:portion] = head[:portion]
        leave(lane, Rest(head=head[portion:]))
        return portion
    return lane.recv_into(into) if not skip or drop(lane) else 0


def drop(lane: Connection) -> bool:
    """Skip what is to be skipped; False at the end of the lane. Raises `BlockingIOError` before all of it has come."""
    skip = rest_of(lane).skip
    scratch = memoryview(bytearray(min(skip, _DROPPED_BYTES)))
    while skip:
        portion = lane.recv_into(scratch[:skip])
        if not portion:
            return False
        skip -= portion
        leave(lane, Rest(skip))
    return True
