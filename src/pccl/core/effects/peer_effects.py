"""Effects that come out of a peer's core, answers among them."""

from enum import Enum

from msgspec import Struct

from pccl.core.effects.both import Note
from pccl.core.fields import CollectiveSpec, Concealing
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.to_master import ToMaster
from pccl.types import PeerId


class SendMaster(Struct, frozen=True):
    """Send a message to the master."""

    message: ToMaster
    again: bool = False
    """It was sent before, on a connection that broke."""


class CloseMaster(Struct, frozen=True):
    """Close the control connection after what was sent on it has left. No `MasterClosed` is needed."""


class DialMaster(Struct, frozen=True):
    """Open a control connection in place of an older one. Ends in `MasterUp` or `MasterClosed`."""

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
    TIMED_OUT = "timed out"


class Failure(Struct, frozen=True):
    """Why a call has no answer: facts as fields, the sentence in `reason`."""

    kind: FailureKind
    reason: str
    tag: int | None = None
    lost: tuple[PeerId, ...] = ()
    """Peers that were lost; of one that timed out, those that had not called it."""
    revision: int | None = None
    """Of the shared state that this peer does hold, although another peer does not."""


class Committed(Struct, frozen=True):
    """A collective's result holds on every peer that lives."""

    attempt: int
    epoch: int
    ring: tuple[PeerId, ...]
    last: PeerId = PeerId("")
    """The peer that voted last: the others waited for it."""
    pending: bool = False
    """Candidates waited to be admitted when it started: the same for all who took part."""
    lanes: int = 0
    """Of each link that it ran over; 0 without a ring."""


class InSync(Struct, frozen=True):
    """This peer holds what the group elected."""

    attempt: int
    revision: int


Answer = None | bool | Committed | InSync | Failure


class Resolve(Struct, frozen=True):
    """Answer a call, exactly once."""

    call: int
    answer: Answer


class Dial(Concealing, frozen=True):
    """Open one lane: connect, send the hello, await the answer. Ends in `LaneDialled` or `LaneClosed`."""

    hello: LaneHello
    host: str
    port: int
    timeout_s: float
    pin: bytes = b""
    key: bytes = b""
    """As in `LinkSpec`: what the other end must prove, and both by what."""


class ExpectLanes(Concealing, frozen=True):
    """Offers of lanes of this link must prove to know this key; from now on there is none if it is empty. What comes
    for a link without one waits for it, as long as any connection may that has not said who it is."""

    link: int
    key: bytes


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
    """The other end of a lent lane is out of the run, though its process may still hold the connection: the user
    of the lane must find it broken. It is given back like any other."""

    link: int
    lane: int


class Reduction(Struct, frozen=True):
    """Our part in an attempt, over lanes or by parcels."""

    call: int
    tag: int
    attempt: int
    spec: CollectiveSpec
    rank: int


class StartAttempt(Reduction, frozen=True):
    """Lend these lanes to the data plane and reduce over them. Ends in `AttemptEnded`."""

    size: int
    to_next: tuple[tuple[int, int], ...]
    """(link, lane) of each stripe towards the next peer."""
    from_prev: tuple[tuple[int, int], ...]
    """The same from the previous peer; equal to `to_next` in a ring of two."""
    segment_bytes: int
    root_rank: int = 0
    """Where the tensor of a broadcast comes from."""
    strands: int = 1
    """Parts that run side by side: of S the s-th has the segments with index s modulo S in their chunk, and the stripes
    with place s modulo S."""


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


class StartExchange(Reduction, frozen=True):
    """Reduce our input with the contributions that come, or have come, in parcels. Ends in `AttemptEnded`."""

    parcels: tuple[tuple[tuple[int, int] | None, int], ...]
    """By rank: the express lane (none for our own) and the number of a parcel."""


class StartTransfer(Struct, frozen=True):
    """Lend these lanes to the data plane and pull what was elected over them, or serve it. Ends in `TransferEnded`."""

    attempt: int
    layout: bytes
    content: bytes
    lanes: tuple[tuple[tuple[int, int], ...], ...]
    """(link, lane) of each lane, by peer."""
    pull: bool = False
    """False: serve it."""
    newcomer: bool = False
    """We come from an older revision: what need not be equal among peers is wanted, too."""
    visit: bool = False
    """A visitor pulls while the holders go on: contents may change meanwhile, and what has changed is left out; who
    serves gives no more of its bandwidth than it allows, or declines by breaking the lanes."""


class AbortTransfer(Struct, frozen=True):
    """Make a transfer stop; its `TransferEnded` still comes, exactly once."""

    attempt: int


class AbortAttempt(Struct, frozen=True):
    """Make the work on an attempt stop; its `AttemptEnded` still comes, exactly once."""

    tag: int
    attempt: int


LaneEffect = Dial | ExpectLanes | AcceptLane | RefuseLane | CloseLane | CutLane | CarryParcels
WorkEffect = StartAttempt | SendParcel | StartExchange | StartTransfer | AbortTransfer | AbortAttempt
"""What concerns one lane; and the work of the data plane."""
PeerEffect = SendMaster | CloseMaster | DialMaster | Resolve | LaneEffect | WorkEffect | Note
