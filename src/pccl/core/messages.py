"""Every control message, one frozen struct each, grouped by direction.

A struct is the whole truth about its message: `wire/` encodes and validates it from these annotations, so a field's
type and bounds are the only checks its receiver gets before the core sees it. Bounds exist so that a hostile sender
cannot make the receiver allocate or print much; each is far above what an honest one needs.
"""

from typing import Annotated

from msgspec import Meta, Struct

from pccl.types import CollectiveKind, DataType, PeerId, ReduceOp, SharedStateSyncStrategy

Id = Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z_-]+\Z")]
"""Ids end up in sentences and on terminals, so nothing that could play tricks there is allowed in one."""
Text = Annotated[str, Meta(max_length=4096)]
"""A sentence for a person; 4096 characters hold the names of a hundred peers."""
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Tag = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Digest = Annotated[bytes, Meta(min_length=16, max_length=16)]
Lane = Annotated[int, Meta(ge=0, le=1024)]
"""The highest is the express lane of a link with as many others as there may be."""
LaneCount = Annotated[int, Meta(ge=0, le=1024)]
"""1,024 connections to one neighbour are four times what PCCL's authors needed for 45 Gbit/s over a continent."""
SEGMENT_BYTES_MAX = 16 * 1024 * 1024
"""The data plane accepts no longer segment, whoever announces it."""
SegmentBytes = Annotated[int, Meta(ge=8, le=SEGMENT_BYTES_MAX)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Host = Annotated[str, Meta(max_length=255, pattern=r"\A[0-9A-Za-z._:%-]*\Z")]
"""A name, an IPv4 or an IPv6 address; 255 is the longest name DNS allows."""


class CollectiveSpec(Struct, frozen=True):
    """What the peers of a group must agree on before a collective moves a byte."""

    count: Number
    dtype: DataType
    op: ReduceOp
    codec: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z_.-]*\Z")] = "none"
    layout: Annotated[str, Meta(max_length=16, pattern=r"\A[0-9A-Za-z]*\Z")] = ""
    """A digest of how the elements are divided among several tensors; empty for a single one. Without it peers that
    pass different tensors of the same total would add what does not belong together."""
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    root: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z_-]*\Z")] = ""
    """The id of the peer whose tensor a broadcast spreads; empty for every other kind."""

    def __str__(self) -> str:
        root = f" from {self.root[:8]}" if self.root else ""
        layout = f" layout={self.layout}" if self.layout else ""
        return f"{self.kind.name}{root} {self.count} x {self.dtype.name} {self.op.name} codec={self.codec}{layout}"


class LinkSpec(Struct, frozen=True):
    """One link that a peer shall have: all lanes between it and one neighbour, numbered as one thing."""

    number: Number
    peer: Id
    dial: bool
    """True at exactly one end: this end opens the connections."""
    host: Host
    port: Port
    lanes: Annotated[int, Meta(ge=1, le=1024)]
    """Lanes that are lent to runs, numbered from 0. Every link has one more, of the next number: the express lane."""


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
    """The join was heard: the peer is a candidate of this run."""

    run: Id
    tags_max: Number = 4096
    """Collectives that a peer may have in flight: it refuses its user one more, before the master kicks it for that."""


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


class TopologyUpdated(Struct, frozen=True, tag=True):
    """Answer to `VoteTopology`; the `Topology` before it on this connection is the one agreed on."""


class PendingAnswer(Struct, frozen=True, tag=True):
    """Answer to `AskPending`, the same for every voter."""

    pending: bool


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
    """Are you there? Sent only while somebody waits for the receiver, and to visitors."""


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
    "Abort",
    "AskPending",
    "Between",
    "CollectiveSpec",
    "Done",
    "Failed",
    "Fetch",
    "Initiate",
    "Join",
    "Kick",
    "LaneAnswer",
    "LaneHello",
    "Leave",
    "LinkDown",
    "LinkSpec",
    "LinkUp",
    "Outcome",
    "PeerId",
    "PendingAnswer",
    "Ping",
    "Pong",
    "RefusedCollective",
    "RefusedPending",
    "RefusedSync",
    "RefusedTopology",
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
    "VoteTopology",
    "Waiting",
    "Welcome",
    "Wire",
]
