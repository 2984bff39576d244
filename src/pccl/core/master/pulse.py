"""The signs of life of one member: the pings that it has answered, and links to it that others found broken.

Owns these times and what follows from them; does not know what becomes of a member that shows none.

Rules: docs/protocol.md, "Liveness".
"""

from collections import deque
from math import inf


class Pulse:
    """One member's."""

    def __init__(self) -> None:
        self.pings: deque[float] = deque()
        """When the pings were sent that it has not answered."""
        self.answered_at = 0.0
        """When the last ping was sent that it has answered: after that it was there, and received what we sent."""
        self.round_trip_s = inf
        """The shortest time between a ping and its answer."""
        self.slow_at = 0.0
        """When it last turned out not to have been there for a while: an answer came late."""
        self._suspected_at = -inf

    @property
    def suspected(self) -> bool:
        """A peer found it gone, and it has not shown since that it is there."""
        return self._suspected_at > self.answered_at

    def suspect(self, now: float) -> None:
        """The other end of a link to it reports that this broke, or could not be dialled."""
        self._suspected_at = now

    def clear(self) -> None:
        """What other peers reported of it is refuted."""
        self._suspected_at = -inf

    def answer(self, now: float, prompt_s: float) -> None:
        """It answered a ping; answers come in the order of the pings."""
        if self.pings:
            self.answered_at = self.pings.popleft()
            taken_s = now - self.answered_at
            self.round_trip_s = min(self.round_trip_s, taken_s)
            if taken_s > prompt_s:
                self.slow_at = now

    def begin_again(self, now: float) -> None:
        """It has another connection. What was asked of it meanwhile it did not receive, and no other peer is to blame
        for links that failed in that time."""
        self.pings.clear()
        self.clear()
        self.slow_at = now
