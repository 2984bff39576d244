"""Events into a peer's core, calls among them."""

from msgspec import Struct

from pccl.core.effects.both import Tick
from pccl.core.fields import CollectiveSpec, Flow
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.to_peer import ToPeer
from pccl.types import SharedStateSyncStrategy


class MasterUp(Struct, frozen=True):
    """The control connection stands."""


class FromMaster(Struct, frozen=True):
    """A message arrived from the master."""

    message: ToPeer


class MasterClosed(Struct, frozen=True):
    """The control connection ended, or could not be made, and why. No message of it follows."""

    cause: str


class UpdateTopology(Struct, frozen=True):
    """Call: admit the candidates that wait. Resolves with None."""


class ArePeersPending(Struct, frozen=True):
    """Call: do candidates wait? Resolves with bool."""


class CallCollective(Struct, frozen=True):
    """Call: run this collective with my group. Resolves with `Committed`."""

    tag: int
    spec: CollectiveSpec


class SyncShared(Struct, frozen=True):
    """Call: hold the same shared state as the rest of the group. Resolves with `InSync`."""

    revision: int
    strategy: SharedStateSyncStrategy
    layout: bytes
    content: bytes
    torn: bool = False
    """It is a mixture of two states, to be given to no other peer."""


class FetchShared(Struct, frozen=True):
    """Call of a visitor: pull what the group last agreed on, as far as it is still there. Resolves with None, also if
    there was nothing to be had."""

    layout: bytes


class WaitAccepted(Struct, frozen=True):
    """Call: `connect`. Resolves with None once this peer is on the roster."""


class SayGoodbye(Struct, frozen=True):
    """Call: leave. Resolves with None when nothing of ours runs any more."""


Request = UpdateTopology | ArePeersPending | CallCollective | SyncShared | FetchShared | WaitAccepted | SayGoodbye


class Call(Struct, frozen=True):
    """A user's thread made a call and waits for the `Resolve` of the same number."""

    call: int
    """Number given by the driver, never reused."""
    request: Request


class Abandon(Struct, frozen=True):
    """The thread that made this call was interrupted and waits no more. Its vote stands, since others may know
    of it already; the next call of the same kind takes it over. A collective goes on to its outcome, a sync to its
    end, without the state."""

    call: int


class Expire(Struct, frozen=True):
    """The time for these collectives is over, which belong together. If none has started the votes are taken back, and
    the calls fail once the master has confirmed it; if one has, each is answered with its outcome."""

    calls: tuple[int, ...]


class LaneOffered(Struct, frozen=True):
    """Another process dialled our port and sent this hello; the connection waits for `AcceptLane` or `RefuseLane`."""

    offer: int
    """Number given by the driver, never reused."""
    hello: LaneHello


class LaneDialled(Struct, frozen=True):
    """A `Dial` came through and the other end accepted: the lane stands."""

    link: int
    lane: int
    round_trip_us: int = 0
    """How long the kernel saw a packet go there and back; 0 where it does not tell."""


class LaneClosed(Struct, frozen=True):
    """A `Dial` did not lead to an accepted lane, or a standing, idle one was closed by the other end or broke. Lent
    lanes are reported by `AttemptEnded` instead."""

    link: int
    lane: int
    cause: str


class AttemptEnded(Struct, frozen=True):
    """The work on an attempt is over and its lanes are let go of: with a result (`cause` is empty) or without."""

    tag: int
    attempt: int
    cause: str
    broken: tuple[tuple[int, int], ...] = ()
    """(link, lane) of lanes that did not end on a segment boundary: they are closed already."""
    digest: bytes = b""
    """Of the result; empty without one, or where peers have different ones by design."""
    flow: Flow = Flow()
    """On the lanes to the next peer."""


class TransferEnded(Struct, frozen=True):
    """The data plane has let go of the lanes of a transfer: all has been pulled or served (`cause` is empty) or not."""

    attempt: int
    cause: str
    broken: tuple[tuple[int, int], ...] = ()
    """(link, lane) of lanes that did not end on the boundary of a message: they are closed already."""
    flow: Flow = Flow()
    """On all of its lanes."""


ConnectionEvent = MasterUp | MasterClosed | Tick
LaneEvent = LaneOffered | LaneDialled | LaneClosed
PeerEvent = ConnectionEvent | FromMaster | Call | Abandon | Expire | LaneEvent | AttemptEnded | TransferEnded
