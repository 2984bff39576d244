"""Every control message, one frozen struct each, grouped by direction.

A struct is the whole truth about its message: `wire/` encodes and validates it from these annotations, so a field's
type and bounds (`fields`) are the only checks its receiver gets before the core sees it.
"""

from typing import Annotated

from msgspec import Meta, Struct

from pccl.core.fields import (
    RECALL_LINKS,
    RECALL_OUTCOMES,
    RECALL_RING,
    RECALL_RUNS,
    SEGMENT_BYTES_MAX,
    Agreed,
    CollectiveSpec,
    Count,
    Digest,
    Host,
    Id,
    Lane,
    LaneCount,
    LinkReport,
    LinkSpec,
    Name,
    Number,
    Port,
    RunReport,
    Secret,
    SegmentBytes,
    Tag,
    Text,
    TransferReport,
)
from pccl.types import SharedStateSyncStrategy

# ── peer → master ────────────────────────────────────────────────────────────────────────────────────────────────────


class Join(Struct, frozen=True, tag=True):
    """First message of a control connection: who I am and where my future neighbours can dial me."""

    peer: Id
    group: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    host: Host
    """Empty: use the address that the master sees me come from."""
    port: Port
    lanes: LaneCount
    """Lanes per neighbour that I ask for; 0 leaves it to the group."""
    visits: bool = False
    """I am a visitor: no candidate, only here to `Fetch`."""
    serves: bool = True
    """I let visitors have my shared state beside my other work."""
    begin: bool = True
    """A new run may begin with me. A peer that knows several masters first asks all of them for a run."""
    secret: Secret = ""
    """By which the master knows me again; drawn by me and told to nobody else."""


class Resume(Struct, frozen=True, tag=True):
    """First message of a connection in place of one that was lost: I am on the roster, and this is what I knew last.

    `Recall`s follow. A master that has nobody on its roster goes on with the run that such peers tell it of."""

    peer: Id
    group: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    host: Host
    port: Port
    lanes: LaneCount
    serves: bool
    run: Id
    masters: Annotated[int, Meta(ge=1, le=64)]
    """Addresses of masters that I know."""
    epoch: Count
    global_size: Number
    groups: Number
    last_link: Count
    last_number: Count
    """The highest number of anything that a master has told me of."""
    accepted_at: Number
    """Answers with a number up to this one were given before I was accepted."""
    topology: Number
    """The latest ballot on a topology that I know to be over."""
    updated: Number
    """The last answer to `VoteTopology` that I got."""
    asked: Number
    """The last answer to `AskPending` that I got, which was ..."""
    pending: bool
    agreed: "Agreed | None"
    """The last state that I was told to be in step with."""
    updating: bool
    """I wait in `update_topology`."""
    asking: bool
    """I wait in `are_peers_pending`."""
    claim: "SyncState | None"
    """I wait in `sync_shared_state`, ..."""
    transfer: TransferReport = TransferReport.NONE
    """... and was told to pull or serve."""
    secret: Secret = ""
    master: Name = ""
    """The name of the master that I lost. If that is you, nothing is lost: say what I lack, and hear what you lack."""
    heard: Number = 0
    """How much of what it said I have heard."""
    story: Number = 0
    """How often I have told this since I lost it."""


class Recall(Struct, frozen=True, tag=True):
    """What else I knew last, in portions that fit into a frame."""

    ring: Annotated[tuple[Id, ...], Meta(max_length=RECALL_RING)] = ()
    links: Annotated[tuple[LinkReport, ...], Meta(max_length=RECALL_LINKS)] = ()
    """Those that stand at my end."""
    runs: Annotated[tuple[RunReport, ...], Meta(max_length=RECALL_RUNS)] = ()
    """Collectives that I have called and that have no outcome yet."""
    committed: Annotated[tuple[Number, ...], Meta(max_length=RECALL_OUTCOMES)] = ()
    """Attempts whose outcome I know."""
    aborted: Annotated[tuple[Number, ...], Meta(max_length=RECALL_OUTCOMES)] = ()
    last: bool = False
    """There is no more."""


class Fetch(Struct, frozen=True, tag=True):
    """`prefetch_shared_state`: let me, a visitor, pull what my group last agreed on while it goes on."""


class VoteTopology(Struct, frozen=True, tag=True):
    """`update_topology`: I agree to admit whoever waits."""


class AskPending(Struct, frozen=True, tag=True):
    """`are_peers_pending`: my vote to be told whether candidates wait."""


class Initiate(Struct, frozen=True, tag=True):
    """My vote to run the collective `tag` with exactly these parameters."""

    tag: Tag
    spec: CollectiveSpec
    parcel: Number = 0
    """Number of the parcel in which my whole contribution is on its way to all other peers of the group; 0 for none."""


class Done(Struct, frozen=True, tag=True):
    """My part of this attempt is complete; I hold both input and result until the outcome is known."""

    tag: Tag
    attempt: Number


class Failed(Struct, frozen=True, tag=True):
    """My part of this attempt has stopped without a result; also the answer to `Abort`."""

    tag: Tag
    attempt: Number
    cause: Text


class SyncState(Struct, frozen=True, tag=True):
    """`sync_shared_state`: my vote, and what I hold."""

    revision: Number
    strategy: SharedStateSyncStrategy
    layout: Digest
    """Of names, types and lengths of all entries."""
    content: Digest
    """Of the layout and the content of all entries that must be equal."""


class SyncEnded(Struct, frozen=True, tag=True):
    """My part in the transfer is over: I have what was elected, or have served it, or failed (`cause`)."""

    attempt: Number
    cause: Text


class LinkUp(Struct, frozen=True, tag=True):
    """All lanes of this link stand at my end."""

    link: Number
    round_trip_us: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    """How long a packet takes there and back, from the end that dialled; 0 when that is not known."""


class LinkDown(Struct, frozen=True, tag=True):
    """This link could not be made, or stood and broke; I have closed what was there of it."""

    link: Number
    cause: Text


class Leave(Struct, frozen=True, tag=True):
    """Goodbye."""


# ── master → peer ────────────────────────────────────────────────────────────────────────────────────────────────────


class Welcome(Struct, frozen=True, tag=True):
    """The join was heard: the peer is a candidate of this run. Said again if the run turns out to be an earlier one."""

    run: Id
    tags_max: Number = 4096
    """Collectives that a peer may have in flight: it refuses its user one more, before the master kicks it for that."""
    master: Name = ""


class Resumed(Struct, frozen=True, tag=True):
    """Answer to `Resume`: the run goes on under this master, and you have your place in it. Verdicts follow."""

    tags_max: Number
    master: Name = ""
    story: Number = 0
    """The `Resume` that I went by; you may have told me more than one."""


class Rejoined(Struct, frozen=True, tag=True):
    """Answer to `Resume`: it is me whom you lost, and nothing has changed. What you have not heard of me follows."""

    heard: Number
    """How much of what you said I have heard; say the rest again."""


class Elsewhere(Struct, frozen=True, tag=True):
    """Not here: this master has no run, or too few peers of yours to go on with it. Try your other masters."""

    reason: Text


class Wire(Struct, frozen=True, tag=True):
    """Exactly these links shall stand at your end: make what is missing, close what is not listed."""

    links: Annotated[tuple[LinkSpec, ...], Meta(max_length=4096)]


class Topology(Struct, frozen=True, tag=True):
    """A new epoch. The first one that a candidate receives is its acceptance."""

    epoch: Number
    ring: Annotated[tuple[Id, ...], Meta(max_length=65536)]
    """Your group's ring, the same for every member."""
    global_size: Number
    groups: Number
    largest_group: Number
    parcel_bytes: Number = 0
    """A contribution of up to this many bytes may be sent along with the vote; 0 for none."""
    number: Number = 0
    """Of the latest ballot on a topology that is over. Answers and attempts are numbered in one row, so that it can be
    told which of them came first, by peers who have not heard of all."""


class TopologyUpdated(Struct, frozen=True, tag=True):
    """Answer to `VoteTopology`; the `Topology` before it on this connection is the one agreed on."""

    number: Number = 0


class PendingAnswer(Struct, frozen=True, tag=True):
    """Answer to `AskPending`, the same for every voter."""

    pending: bool
    number: Number = 0


class Start(Struct, frozen=True, tag=True):
    """Every vote is in: run it over the ring of `epoch`, on these lanes of each link, yours until you report.

    Without lanes everything that is needed is on its way already: reduce the contributions in these parcels."""

    tag: Tag
    attempt: Number
    epoch: Number
    lanes: Annotated[tuple[Lane, ...], Meta(max_length=1024)]
    segment_bytes: SegmentBytes
    parcels: Annotated[tuple[Number, ...], Meta(max_length=64)] = ()
    """By rank, the number of each peer's parcel. Far more than the peers of a group that exchanges directly."""


class Abort(Struct, frozen=True, tag=True):
    """Stop this attempt, report, and wait for its outcome."""

    tag: Tag
    attempt: Number
    reason: Text


class Outcome(Struct, frozen=True, tag=True):
    """The one verdict on an attempt, the same for every peer that lives. When aborted, the group is already rewired."""

    tag: Tag
    attempt: Number
    committed: bool
    reason: Text
    lost: Annotated[tuple[Id, ...], Meta(max_length=65536)]


class Synced(Struct, frozen=True, tag=True):
    """Answer to `SyncState`: everybody holds what was elected."""

    attempt: Number
    revision: Number


class StartSync(Struct, frozen=True, tag=True):
    """Bytes must move first: pull what was elected from these peers, or serve it to them, and report."""

    attempt: Number
    pull: bool
    peers: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=4096)]
    lanes: Annotated[tuple[Lane, ...], Meta(min_length=1, max_length=1024)]
    """Of the link to each of them, yours until your part is over."""
    revision: Number
    layout: Digest
    content: Digest


class Serve(Struct, frozen=True, tag=True):
    """Let a visitor pull what your last sync agreed on, beside whatever else you do. Nobody waits for a report."""

    attempt: Number
    peer: Id
    lanes: Annotated[tuple[Lane, ...], Meta(min_length=1, max_length=1024)]
    """Of the link to it, its own until it has what it wants, or breaks."""
    layout: Digest
    content: Digest


class RefusedSync(Struct, frozen=True, tag=True):
    """`SyncState` was not granted, or there is nothing to `Fetch`; nothing of yours was touched."""

    usage: bool
    """True: the election left you out, your layout is another, or others wait in a call that contradicts this one.
    False: somebody did not get what was elected; all shall call again."""
    reason: Text


class RefusedTopology(Struct, frozen=True, tag=True):
    """`VoteTopology` cannot be answered: it contradicts what other peers wait in."""

    reason: Text


class RefusedPending(Struct, frozen=True, tag=True):
    """`AskPending` cannot be answered: it contradicts what other peers wait in."""

    reason: Text


class RefusedCollective(Struct, frozen=True, tag=True):
    """`Initiate` did not lead to a start; no byte has moved."""

    tag: Tag
    too_few: bool
    """True: the group has fewer than two peers. False: the peers disagree; the reason names both sides."""
    reason: Text


class Waiting(Struct, frozen=True, tag=True):
    """Why your call has not been answered yet."""

    reason: Text


class Kick(Struct, frozen=True, tag=True):
    """You are out (or not let in), and why. The connection closes after this."""

    reason: Text


# ── both ways ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Ping(Struct, frozen=True, tag=True):
    """Are you there? Sent while somebody waits for the receiver, to visitors, and after refusals."""


class Pong(Struct, frozen=True, tag=True):
    """I am here."""


# ── peer → peer, first frame of a lane ───────────────────────────────────────────────────────────────────────────────


class LaneHello(Struct, frozen=True, tag=True):
    """First frame of a lane, from the end that dialled."""

    run: Id
    sender: Id
    receiver: Id
    """Whom I mean to reach: behind NAT or a reused port somebody else may answer."""
    link: Number
    lane: Lane
    proof: Annotated[bytes, Meta(max_length=256)] = b""
    """Room for a proof of identity."""


class LaneAnswer(Struct, frozen=True, tag=True):
    """The receiver's answer; after an accepted one the lane belongs to the data plane."""

    accepted: bool
    reason: Annotated[str, Meta(max_length=512)] = ""
    """Short, so that the answer fits the frame that a dialler accepts from a stranger."""


ToMaster = (
    Join
    | Resume
    | Recall
    | Fetch
    | VoteTopology
    | AskPending
    | Initiate
    | Done
    | Failed
    | SyncState
    | SyncEnded
    | LinkUp
    | LinkDown
    | Leave
    | Ping
    | Pong
)
ToPeer = (
    Welcome
    | Resumed
    | Rejoined
    | Elsewhere
    | Wire
    | Topology
    | TopologyUpdated
    | PendingAnswer
    | Start
    | Abort
    | Outcome
    | Synced
    | StartSync
    | Serve
    | RefusedSync
    | RefusedTopology
    | RefusedPending
    | RefusedCollective
    | Waiting
    | Kick
    | Ping
    | Pong
)
Between = LaneHello | LaneAnswer

__all__ = [
    "SEGMENT_BYTES_MAX",
    "Abort",
    "Agreed",
    "AskPending",
    "Between",
    "CollectiveSpec",
    "Done",
    "Elsewhere",
    "Failed",
    "Fetch",
    "Initiate",
    "Join",
    "Kick",
    "LaneAnswer",
    "LaneHello",
    "Leave",
    "LinkDown",
    "LinkReport",
    "LinkSpec",
    "LinkUp",
    "Outcome",
    "PendingAnswer",
    "Ping",
    "Pong",
    "Recall",
    "RefusedCollective",
    "RefusedPending",
    "RefusedSync",
    "RefusedTopology",
    "Rejoined",
    "Resume",
    "Resumed",
    "RunReport",
    "Serve",
    "Start",
    "StartSync",
    "SyncEnded",
    "SyncState",
    "Synced",
    "ToMaster",
    "ToPeer",
    "Topology",
    "TopologyUpdated",
    "TransferReport",
    "VoteTopology",
    "Waiting",
    "Welcome",
    "Wire",
]
