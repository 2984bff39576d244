"""Where a peer stands in its membership. Pure data. (protocol.md, Membership)"""

from msgspec import Struct

from pccl.core.staged import Stage


class Sizes(Struct, frozen=True):
    """The attributes, as of the latest epoch; ours alone once we are out."""

    global_size: int = 0
    group_size: int = 0
    groups: int = 0
    largest_group: int = 0


class PeerStage(Stage):
    """Where this peer is in its membership."""

    OUTSIDE = "no connection to a master yet, or not any more", ("JOINING", "GONE")
    JOINING = "`Join` is sent", ("CANDIDATE", "VISITOR", "OUTSIDE", "GONE")
    CANDIDATE = "welcomed; waits to be admitted", ("ACCEPTED", "OUTSIDE", "GONE")
    VISITOR = "welcomed to fetch the shared state; never admitted", ("GONE",)
    ACCEPTED = "on the roster", ("AWAY", "GONE")
    AWAY = "on the roster, but without a master: dials", ("RETURNING", "GONE")
    RETURNING = "`Resume` is sent; numbered messages wait in the log until it is answered", ("ACCEPTED", "AWAY", "GONE")
    GONE = "left, refused, kicked or without a master: every call fails with the reason", ()
