"""Events into the master's core, and the effects that come out of it."""

from msgspec import Struct

from pccl.core.effects.both import Note, Tick
from pccl.core.fields import KickKind
from pccl.core.messages.observers import ToObserver
from pccl.core.messages.to_master import ToMaster
from pccl.core.messages.to_peer import Kick, ToPeer
from pccl.core.rights import Rights


class Received(Struct, frozen=True):
    """A message arrived on a control connection. The first of a connection is a `Join`, a `Resume`, or an observer's
    question."""

    connection: int
    """Number given by the driver, never reused."""
    message: ToMaster
    host: str = ""
    """The address that this connection comes from, for peers that announce none."""
    unix_s: float = 0.0
    """The clock of this machine, for observers that compare theirs."""
    rights: Rights = Rights.ALL
    """What its sender has proved that it may do."""


class Closed(Struct, frozen=True):
    """A control connection ended, and why: end of file, reset, or bytes that are no message."""

    connection: int
    cause: str


class Exceeded(Struct, frozen=True):
    """A control connection sent more than it may for so long that it is an offence; a last message of it is dropped."""

    connection: int
    how: str

    @property
    def kick(self) -> Kick:
        """What becomes of its peer."""
        return Kick(KickKind.PROTOCOL, f"it broke the protocol: {self.how}")


class Revoked(Struct, frozen=True):
    """What admitted a control connection is not valid any more."""

    connection: int
    how: str

    @property
    def kick(self) -> Kick:
        """What becomes of its peer."""
        return Kick(KickKind.NO_RIGHT, self.how)


class DialledBack(Struct, frozen=True):
    """A `DialBack` is over."""

    connection: int
    host: str
    cause: str
    """Why it failed; empty if it came through."""
    seconds: float


MasterEvent = Received | Closed | Exceeded | Revoked | DialledBack | Tick


class Send(Struct, frozen=True):
    """Send one message to each of these connections; encode it once."""

    connections: tuple[int, ...]
    message: ToPeer | ToObserver
    again: bool = False
    """It was sent before, on a connection that broke."""


class Close(Struct, frozen=True):
    """Close a control connection after what was sent on it has left. The core has forgotten it: no `Closed` is needed,
    and a late one is ignored."""

    connection: int


class DialBack(Struct, frozen=True):
    """Dial this address for the observer on this connection, as a neighbour would. Ends in `DialledBack`."""

    connection: int
    host: str
    port: int
    nonce: str
    """For the hello, as the peer that is meant."""
    timeout_s: float


MasterEffect = Send | Close | DialBack | Note
