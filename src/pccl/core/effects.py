"""Every event into and effect out of a core: the whole interface between deciding and doing.

A driver turns what happens (bytes, closed connections, calls, finished runs) into events, hands them to
`handle(event, now)`, and carries out the effects in the order given. It decides nothing: an effect that takes time is
started and answered later by the event its docstring names. Between two events the driver calls `handle(Tick(), now)`
as soon as `next_deadline()` has passed.
"""

from enum import Enum

from msgspec import Struct

from pccl.core.messages import CollectiveSpec, LaneHello, ToMaster, ToPeer
from pccl.types import PeerId, SharedStateSyncStrategy

# ── both cores ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Tick(Struct, frozen=True):
    """Event: `next_deadline()` has passed."""


class Note(Struct, frozen=True):
    """Effect: a sentence for whoever operates this process, such as what the run waits for, and on whom.

    Emitted only when it says something new.
    """

    reason: str


# ── master: events ───────────────────────────────────────────────────────────────────────────────────────────────────


class Received(Struct, frozen=True):
    """A message arrived on a control connection. The first of a connection is its `Join`."""

    connection: int
    """Number given by the driver, never reused."""
    message: ToMaster
    host: str = ""
    """The address that this connection comes from, for peers that announce none."""


class Closed(Struct, frozen=True):
    """A control connection ended, and why: end of file, reset, or bytes that are no message."""

    connection: int
    cause: str


MasterEvent = Received | Closed | Tick

# ── master: effects ──────────────────────────────────────────────────────────────────────────────────────────────────


class Send(Struct, frozen=True):
    """Send one message to each of these connections; encode it once."""

    connections: tuple[int, ...]
    message: ToPeer
    again: bool = False
    """It was said before, on a connection that broke."""


class Close(Struct, frozen=True):
    """Close a control connection after what was sent on it has left. The core has forgotten it: no `Closed` is needed,
    and a late one is ignored."""

    connection: int


MasterEffect = Send | Close | Note

# ── peer: events ─────────────────────────────────────────────────────────────────────────────────────────────────────


class MasterUp(Struct, frozen=True):
    """The control connection stands."""

    place: int = 0
    """To which of our masters."""


class FromMaster(Struct, frozen=True):
    """A message arrived from the master."""

    message: ToPeer


class MasterClosed(Struct, frozen=True):
    """The control connection ended, or could not be made, and why. Nothing of it is told after this."""

    cause: str


class UpdateTopology(Struct, frozen=True):
    """Call: admit whoever waits. Resolves with None."""


class ArePeersPending(Struct, frozen=True):
    """Call: do candidates wait? Resolves with bool."""


class Collective(Struct, frozen=True):
    """Call: run this collective with my group. Resolves with `Committed`."""

    tag: int
    spec: CollectiveSpec


class SyncShared(Struct, frozen=True):
    """Call: hold the same shared state as the rest of the group. Resolves with `InSync`."""

    revision: int
    strategy: SharedStateSyncStrategy
    layout: bytes
    content: bytes


class FetchShared(Struct, frozen=True):
    """Call of a visitor: pull what the group last agreed on, as far as it is still there. Resolves with None, also if
    there was nothing to be had."""

    layout: bytes


class WaitAccepted(Struct, frozen=True):
    """Call: `connect`. Resolves with None once this peer is on the roster."""


class SayGoodbye(Struct, frozen=True):
    """Call: leave. Resolves with None when nothing of ours runs any more."""


Request = UpdateTopology | ArePeersPending | Collective | SyncShared | FetchShared | WaitAccepted | SayGoodbye


class Call(Struct, frozen=True):
    """A user's thread made a call and waits for the `Resolve` of the same number."""

    call: int
    """Number given by the driver, never reused."""
    request: Request


class Abandon(Struct, frozen=True):
    """The thread that made this call was interrupted and waits no more. Its vote stands, since others may have been
    told of it already; the next call of the same kind takes it over. A collective goes on to its outcome, a sync to its
    end, without the state."""

    call: int


class LaneOffered(Struct, frozen=True):
    """Somebody dialled our port and sent this hello; the connection waits for `AcceptLane` or `RefuseLane`."""

    offer: int
    """Number given by the driver, never reused."""
    hello: LaneHello


class LaneDialled(Struct, frozen=True):
    """A `Dial` came through and the other end accepted: the lane stands."""

    link: int
    lane: int
    round_trip_us: int = 0
    """How long the kernel saw a packet go there and back; 0 where it does not tell."""


class DialFailed(Struct, frozen=True):
    """A `Dial` did not lead to an accepted lane."""

    link: int
    lane: int
    cause: str


class LaneClosed(Struct, frozen=True):
    """A standing, idle lane was closed by the other end or broke. Lent lanes are reported by `RunEnded` instead."""

    link: int
    lane: int
    cause: str


class RunEnded(Struct, frozen=True):
    """A run or an exchange is over and its lanes are let go of: with a result (`cause` is empty) or without."""

    tag: int
    attempt: int
    cause: str
    broken: tuple[tuple[int, int], ...] = ()
    """(link, lane) of lanes that did not end on a segment boundary: they are closed already."""


class TransferEnded(Struct, frozen=True):
    """The data plane has let go of the lanes of a transfer: all has been pulled or served (`cause` is empty) or not."""

    attempt: int
    cause: str
    broken: tuple[tuple[int, int], ...] = ()
    """(link, lane) of lanes that did not end on the boundary of a message: they are closed already."""


PeerEvent = (
    MasterUp
    | FromMaster
    | MasterClosed
    | Call
    | Abandon
    | LaneOffered
    | LaneDialled
    | DialFailed
    | LaneClosed
    | RunEnded
    | TransferEnded
    | Tick
)

# ── peer: effects ────────────────────────────────────────────────────────────────────────────────────────────────────


class SendMaster(Struct, frozen=True):
    """Send a message to the master."""

    message: ToMaster
    again: bool = False
    """It was said before, on a connection that broke."""


class CloseMaster(Struct, frozen=True):
    """Close the control connection after what was sent on it has left. No `MasterClosed` is needed."""


class DialMaster(Struct, frozen=True):
    """Open a control connection in place of an older one. Ends in `MasterUp` or `MasterClosed`."""

    place: int
    """To which of our masters."""
    timeout_s: float


class FailureKind(Enum):
    """What went wrong with a call; `errors.py` turns each into its exception."""

    USAGE = "usage"
    TAG_IN_USE = "tag in use"
    UNFINISHED_COLLECTIVES = "unfinished collectives"
    MISMATCH = "mismatch"
    TOO_FEW_PEERS = "too few peers"
    ABORTED = "aborted"
    REFUSED = "refused"
    KICKED = "kicked"
    MASTER_LOST = "master lost"
    PROTOCOL = "protocol"
    CLOSED = "closed"
    SYNC_FAILED = "sync failed"


class Failure(Struct, frozen=True):
    """Why a call has no answer: facts as fields, the sentence in `reason`."""

    kind: FailureKind
    reason: str
    tag: int | None = None
    lost: tuple[PeerId, ...] = ()
    revision: int | None = None
    """Of the shared state that this peer does hold, although somebody else does not."""


class Committed(Struct, frozen=True):
    """A collective's result holds on every peer that lives."""

    attempt: int
    epoch: int
    ring: tuple[PeerId, ...]


class InSync(Struct, frozen=True):
    """This peer holds what the group elected."""

    attempt: int
    revision: int


Answer = None | bool | Committed | InSync | Failure


class Resolve(Struct, frozen=True):
    """Answer a call, exactly once."""

    call: int
    answer: Answer


class Dial(Struct, frozen=True):
    """Open one lane: connect, send the hello, await the answer. Ends in `LaneDialled` or `DialFailed`."""

    hello: LaneHello
    host: str
    port: int
    timeout_s: float


class AcceptLane(Struct, frozen=True):
    """Answer an offer with yes; the connection is lane (link, lane) from now on."""

    offer: int
    link: int
    lane: int


class RefuseLane(Struct, frozen=True):
    """Answer an offer with no and a reason, and close it."""

    offer: int
    reason: str


class CloseLane(Struct, frozen=True):
    """Close a lane that stands or is being dialled, if it is there at all; no event follows."""

    link: int
    lane: int


class CutLane(Struct, frozen=True):
    """The other end of a lent lane is out of the run, though its process may still hold the connection: whoever uses
    the lane must find it broken. It is given back like any other."""

    link: int
    lane: int


class StartRun(Struct, frozen=True):
    """Lend these lanes to the data plane and run. Ends in `RunEnded`."""

    call: int
    tag: int
    attempt: int
    spec: CollectiveSpec
    rank: int
    size: int
    to_next: tuple[tuple[int, int], ...]
    """(link, lane) of each stripe towards the next peer."""
    from_prev: tuple[tuple[int, int], ...]
    """The same from the previous peer; equal to `to_next` in a ring of two."""
    segment_bytes: int
    root_rank: int = 0
    """Where the tensor of a broadcast comes from."""


class CarryParcels(Struct, frozen=True):
    """This lane stands and is the express lane of its link: never lent, and all that arrives on it are parcels."""

    link: int
    lane: int


class SendParcel(Struct, frozen=True):
    """Send the input of a collective, whole, on each of these express lanes. What cannot be sent breaks its lane."""

    tag: int
    parcel: int
    """Its number, rising with each parcel of this peer."""
    oldest: int
    """The lowest number that may still be needed: receivers forget what lies below."""
    lanes: tuple[tuple[int, int], ...]
    spec: CollectiveSpec


class StartExchange(Struct, frozen=True):
    """Reduce our input with the contributions that come, or have come, in parcels. Ends in `RunEnded`."""

    call: int
    tag: int
    attempt: int
    spec: CollectiveSpec
    rank: int
    parcels: tuple[tuple[tuple[int, int] | None, int], ...]
    """By rank: the express lane (none for our own) and the number of a parcel."""


class StartTransfer(Struct, frozen=True):
    """Lend these lanes to the data plane and pull what was elected over them, or serve it. Ends in `TransferEnded`."""

    attempt: int
    pull: bool
    newcomer: bool
    """We come from an older revision: what need not be equal among peers is wanted, too."""
    layout: bytes
    content: bytes
    lanes: tuple[tuple[tuple[int, int], ...], ...]
    """(link, lane) of each lane, by peer."""
    visit: bool = False
    """A visitor pulls while the holders go on: contents may change meanwhile, and what has changed is left out; who
    serves gives no more of its bandwidth than it allows, or declines by breaking the lanes."""


class AbortTransfer(Struct, frozen=True):
    """Make a transfer stop; its `TransferEnded` still comes, exactly once."""

    attempt: int


class AbortRun(Struct, frozen=True):
    """Make a run or an exchange stop; its `RunEnded` still comes, exactly once."""

    tag: int
    attempt: int


PeerEffect = (
    SendMaster
    | CloseMaster
    | DialMaster
    | Resolve
    | Dial
    | AcceptLane
    | RefuseLane
    | CloseLane
    | CutLane
    | StartRun
    | CarryParcels
    | SendParcel
    | StartExchange
    | StartTransfer
    | AbortTransfer
    | AbortRun
    | Note
)
