"""What a run is at one moment: the one description that every view reads, from `pccl status` to a page.

Pure data, and versioned: a field may be added within a version, none may change its meaning. All of it is bounded, for
it travels in one frame; texts in it may hold names, which come from the network, and are printable. Times are ages in
seconds, since the clocks of two machines differ.
"""

from typing import Annotated

from msgspec import Meta, Struct

STATUS_VERSION = 1

PEERS_LISTED = 4096
LINKS_LISTED = 6144
GROUPS_LISTED = 256
WAITS_LISTED = 64
IDS_LISTED = 64
"""Ids of a wait that are listed."""
EVENTS_KEPT = 200
"""Bounds that keep the longest status, in which every name and host is as long as it may be, within a frame."""

Id = Annotated[str, Meta(max_length=64)]
Word = Annotated[str, Meta(max_length=64)]
Where = Annotated[str, Meta(max_length=255)]
CAUSE_MAX, SENTENCE_MAX = 160, 1000
Cause = Annotated[str, Meta(max_length=CAUSE_MAX)]
Sentence = Annotated[str, Meta(max_length=SENTENCE_MAX)]
Number = Annotated[int, Meta(ge=0)]


class PeerStatus(Struct, frozen=True):
    """One peer that is connected to the master, or away from it."""

    peer: Id
    name: Word
    stage: Word
    """`accepted`, `away`, `candidate`, `tried`, `visitor` or `returning`."""
    group: Number
    rank: Number | None
    """Its place in the ring of its group; None outside of one."""
    machine: Word
    pid: Number
    release: Word
    announced: Where
    """Where it says that others can dial it; empty: where the master sees it come from."""
    seen: Where
    """Where the master sees it come from."""
    port: Number
    age_s: float
    """Since it joined."""
    round_trip_s: float | None
    """Between it and the master, the shortest that was measured."""
    party: Word = ""
    """Empty: it is a party of its own."""


class LinkStatus(Struct, frozen=True):
    """All lanes between two peers."""

    dialler: Id
    """The end that dials, or did."""
    target: Id
    """The end that is dialled."""
    stage: Word
    """`standing`, `dialling` or `resting`."""
    round_trip_s: float | None
    cause: Cause = ""
    """Why it failed last, since it last stood."""


class RoundStatus(Struct, frozen=True):
    """The last collective that a group has committed."""

    group: Number
    number: Number
    """How many it has committed under this master."""
    kind: Word
    tag: Number
    peers: Number
    seconds: float
    """From the first vote to the outcome."""
    waited_s: float
    """From the first vote to the start, ..."""
    waited_for: Id
    """... which came with the vote of this peer."""
    bytes: Number
    """That each peer sent to others, without headers."""
    mbps: float
    """Megabits a second that each peer sent, from the start to the outcome."""
    ago_s: float


class LanesStatus(Struct, frozen=True):
    """How many lanes the links of a group have; none for a group of one."""

    group: Number
    lanes: Number
    """To each neighbour."""
    reason: Cause
    """Who chose the number, or what it follows from."""


class WaitStatus(Struct, frozen=True):
    """Something that is waited for."""

    sentence: Sentence
    call: Word
    age_s: float
    bound_s: float | None
    """How much longer it may last; None if it has no limit while those who are missing answer pings."""
    works: bool
    """It is no wait for a peer to make a call: bytes move."""
    waiting: Annotated[tuple[Id, ...], Meta(max_length=IDS_LISTED)]
    missing: Annotated[tuple[Id, ...], Meta(max_length=IDS_LISTED)]


class EventStatus(Struct, frozen=True):
    """Something that happened."""

    ago_s: float
    event: Word
    warns: bool
    text: Sentence


class Status(Struct, frozen=True, tag=True):
    """The run, as its master knows it."""

    version: Number
    release: Word
    """Of the master's library."""
    run: Id
    epoch: Number
    unix_s: float
    """The master's clock."""
    age_s: float
    """Of the master."""
    seen: Where
    """Where the master sees the observer come from."""
    peers: Annotated[tuple[PeerStatus, ...], Meta(max_length=PEERS_LISTED)]
    links: Annotated[tuple[LinkStatus, ...], Meta(max_length=LINKS_LISTED)]
    rounds: Annotated[tuple[RoundStatus, ...], Meta(max_length=GROUPS_LISTED)]
    waits: Annotated[tuple[WaitStatus, ...], Meta(max_length=WAITS_LISTED)]
    events: Annotated[tuple[EventStatus, ...], Meta(max_length=EVENTS_KEPT)]
    """The latest last."""
    size: Number
    """Peers that are connected, listed or not."""
    lanes: Annotated[tuple[LanesStatus, ...], Meta(max_length=GROUPS_LISTED)] = ()
