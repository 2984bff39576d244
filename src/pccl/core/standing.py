"""Who a peer is, and where it stands in its membership. Pure data."""

from enum import Enum

from msgspec import Struct

from pccl.types import PeerId


class PeerIdentity(Struct, frozen=True):
    """Who we are and where we can be dialled."""

    peer: PeerId
    group: int
    host: str
    """Empty: let the master use the address that it sees."""
    port: int
    lanes: int
    """Lanes per neighbour; 0 leaves it to the group."""
    visits: bool = False
    """We come for the shared state only."""
    serves: bool = True
    """We let visitors have it."""
    masters: int = 1
    """Addresses of masters that we know."""
    secret: str = ""
    """By which a master knows us again after our connection broke; empty: it does not."""


class Sizes(Struct, frozen=True):
    """The attributes, as of the latest epoch; ours alone once we are out."""

    global_size: int = 0
    group_size: int = 0
    groups: int = 0
    largest_group: int = 0


class PeerStage(Enum):
    """Where this peer is in its membership."""

    OUTSIDE = "outside"
    JOINING = "joining"
    CANDIDATE = "candidate"
    VISITOR = "visitor"
    ACCEPTED = "accepted"
    AWAY = "away"
    RETURNING = "returning"
    GONE = "gone"


PEER_STAGES: dict[PeerStage, tuple[str, tuple[PeerStage, ...]]] = {
    PeerStage.OUTSIDE: ("no connection to a master yet, or not any more", (PeerStage.JOINING, PeerStage.GONE)),
    PeerStage.JOINING: (
        "`Join` is sent",
        (PeerStage.CANDIDATE, PeerStage.VISITOR, PeerStage.OUTSIDE, PeerStage.GONE),
    ),
    PeerStage.CANDIDATE: ("welcomed; waits to be admitted", (PeerStage.ACCEPTED, PeerStage.OUTSIDE, PeerStage.GONE)),
    PeerStage.VISITOR: ("welcomed to fetch the shared state; never admitted", (PeerStage.GONE,)),
    PeerStage.ACCEPTED: ("on the roster", (PeerStage.AWAY, PeerStage.GONE)),
    PeerStage.AWAY: ("on the roster, but without a master: dials", (PeerStage.RETURNING, PeerStage.GONE)),
    PeerStage.RETURNING: (
        "`Resume` is sent; what else there is to say is held back",
        (PeerStage.ACCEPTED, PeerStage.AWAY, PeerStage.GONE),
    ),
    PeerStage.GONE: ("left, refused, kicked or without a master: every call fails with the reason", ()),
}
"""Meaning and successors of each stage; `docs/protocol.md` is checked against this table."""
