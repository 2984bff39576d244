"""Where a peer stands in its membership. Pure data. (protocol.md, Membership, as the peer sees it)"""

from enum import Enum

from msgspec import Struct

from pccl.core.staged import Table


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


PEER_STAGES: Table[PeerStage] = {
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
        "`Resume` is sent; numbered messages wait in the log until it is answered",
        (PeerStage.ACCEPTED, PeerStage.AWAY, PeerStage.GONE),
    ),
    PeerStage.GONE: ("left, refused, kicked or without a master: every call fails with the reason", ()),
}
