"""What one end of a control connection has said and heard, so that one that breaks can be replaced by another.

Both ends count alike. After a break each tells the other how much it has heard, and the other says the rest again: in
the end everything was said once and in order, as if nothing had happened. Knows nothing of what is said.
"""

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

from pccl.core.messages import (
    Elsewhere,
    Join,
    Kick,
    Ping,
    Pong,
    Recall,
    Rejoined,
    Resume,
    Resumed,
    ToMaster,
    ToPeer,
    Waiting,
)

Message = TypeVar("Message", ToMaster, ToPeer)

KEPT_MAX = 4096
"""Messages that are kept to be said again: as many as one peer may have collectives in flight. What a connection holds
when it breaks is what was on its way, rarely more than a few dozen."""

_UNCOUNTED = frozenset((Join, Resume, Recall, Resumed, Rejoined, Elsewhere, Kick, Waiting, Ping, Pong))
"""What begins or ends a connection, or is about nothing but the moment."""


class Session(Generic[Message]):
    """One end's count, from the first message to a master until there is another master."""

    def __init__(self, master: str = "") -> None:
        self.master = master
        """The name of the master; empty until it has told us."""
        self.heard = 0
        self._said = 0
        self._latest: deque[Message] = deque(maxlen=KEPT_MAX)

    def say(self, message: Message) -> None:
        """This is said to the other end, whether or not there is a connection right now."""
        if type(message) not in _UNCOUNTED:
            self._said += 1
            self._latest.append(message)

    def hear(self, message: ToMaster | ToPeer) -> None:
        """The other end said this."""
        self.heard += type(message) not in _UNCOUNTED

    def unheard(self, heard: int) -> tuple[Message, ...] | None:
        """What must be said again to one who has heard so much; None if that cannot be, or is not kept any more."""
        lacking = self._said - heard
        if not 0 <= lacking <= len(self._latest):
            return None
        return tuple(islice(self._latest, len(self._latest) - lacking, None))
