"""What both cores take and give."""

from msgspec import Struct


class Tick(Struct, frozen=True):
    """Event: `next_deadline()` has passed."""


class Note(Struct, frozen=True):
    """Effect: a sentence for the operator of this process, such as what the run waits for, and on which peers.

    Emitted only when it is news.
    """

    reason: str
