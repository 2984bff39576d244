"""What a master sends to its peers, one frozen struct each."""

from typing import Annotated

from msgspec import Meta, Struct

from pccl.core.fields import (
    Digest,
    Id,
    KickKind,
    Lane,
    LinkSpec,
    Name,
    Number,
    PeerName,
    ResultDigest,
    Run,
    SegmentBytes,
    Tag,
    Text,
    ThreadCount,
    Ticket,
)
from pccl.core.messages.both import Ping, Pong


class Welcome(Struct, frozen=True, tag=True):
    """You are a candidate of this run, or its visitor. Sent again if it turns out to be an earlier one."""

    run: Run
    tags_max: Number = 4096
    """Collectives that a peer may have in flight: it refuses its user one more, before the master kicks it for that."""
    master: Name = ""


class Resumed(Struct, frozen=True, tag=True):
    """Answer to `Resume`, of the same master or of another: you have your place in the run. What you lack follows."""

    tags_max: Number
    master: Name = ""
    received: Number = 0
    """I have your messages up to this number, as such or by what your report says; send the rest again."""


class Wire(Struct, frozen=True, tag=True):
    """Exactly these links shall stand at your end: make what is missing, close what is not listed."""

    links: Annotated[tuple[LinkSpec, ...], Meta(max_length=4096)]


INTRODUCED_MAX = 1024
"""Peers in one message: 660 KB when all of the names are as long as they may be."""


class Named(Struct, frozen=True):
    """What a peer is called."""

    peer: Id
    name: PeerName
    party: PeerName = ""
    """What its party is called; no two parties that are here are called alike. Empty: it is a party of its own."""


class Introduce(Struct, frozen=True, tag=True):
    """What peers of your group are called; sent before the `Topology` in which they are new to you."""

    names: Annotated[tuple[Named, ...], Meta(max_length=INTRODUCED_MAX)]


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
    told which of them came first, by peers that have not received all."""
    news: Text = ""
    """What has changed, in words."""
    lost: bool = False
    """Some peer is gone that did not say goodbye."""
    ticket: Ticket | None = None
    """The peer shows it to the next master; None if the master has no secret."""


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
    last: Annotated[str, Meta(max_length=64, pattern=r"\A[0-9A-Za-z_-]*\Z")] = ""
    """The peer whose vote was the last: the others waited for it."""
    pending: bool = False
    """Candidates wait to be admitted. Here and not in `Outcome`: what is committed was started at all its participants
    by one master, while two masters may tell an outcome, one before the candidates were there and one after."""
    strands: ThreadCount = 1
    """Divide it into so many parts, each with a thread, with segments and with lanes of its own."""


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
    """Answer to `SyncState`: all peers of the group hold what was elected."""

    attempt: Number
    revision: Number
    ticket: ResultDigest = b""
    """As in `Topology`, for what was elected; empty if the master has no secret."""


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
    """Let a visitor pull what your last sync agreed on, beside whatever else you do. No report is wanted."""

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
    False: a peer did not get what was elected; all shall call again."""
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


class Withdrawn(Struct, frozen=True, tag=True):
    """Answer to `Withdraw`, unless one of them has started or has its answer: your votes are taken back."""

    tags: Annotated[tuple[Tag, ...], Meta(min_length=1, max_length=64)]
    missing: Annotated[tuple[Id, ...], Meta(max_length=65536)]
    """The peers of the group that had not called it."""
    reason: Text
    """The same in words, with what they wait in."""


class Waiting(Struct, frozen=True, tag=True):
    """Why your call has not been answered yet."""

    reason: Text


class Awaited(Struct, frozen=True, tag=True):
    """Others have called this, and wait for you since so many milliseconds."""

    call: Text
    age_ms: Number


class Kick(Struct, frozen=True, tag=True):
    """You are out (or not let in), and why. The connection closes after this."""

    kind: KickKind
    reason: Text


ToCalls = TopologyUpdated | PendingAnswer | RefusedTopology | RefusedPending
ToCollectives = Start | Abort | Outcome | RefusedCollective | Withdrawn
ToSync = Synced | StartSync | RefusedSync
ToRoster = Welcome | Resumed | Wire | Introduce | Topology
"""By the part of a peer that they are for."""
ToPeer = ToRoster | ToCalls | ToCollectives | ToSync | Serve | Waiting | Awaited | Kick | Ping | Pong
