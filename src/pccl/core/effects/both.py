"""What both cores take and give."""

from msgspec import Struct


class Tick(Struct, frozen=True):
    """Event: `next_deadline()` has passed."""


class Note(Struct, frozen=True):
    """Effect: a fact for the operator of this process, such as what the run waits for, and on which peers: in words,
    and in fields for programs.

    Emitted only when it is news.
    """

    reason: str
    event: str = "note"
    """What kind of fact it is, in one word or two."""
    warns: bool = False
    """It is about a wait or a loss; else it is news."""
    peer: str = ""
    """The id of the peer that it is about, if it is about one."""
    seconds: float | None = None
    waited_for: tuple[str, ...] = ()
    """The ids of the peers that are waited for."""
