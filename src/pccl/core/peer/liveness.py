"""A peer's watch over its master: while a call waits, or we wait to be taken back, the master must show signs of life.

Owns when to ask for one, and when the silence has been too long. Otherwise its silence does not matter.
(protocol.md, Liveness)
"""

from enum import Enum

from pccl.core.limits import LATE_S, PINGS_PER_LIMIT, PeerLimits


class Due(Enum):
    """What the time has come for."""

    NOTHING = "nothing"
    PING = "ping"
    LOSS = "loss"


class Liveness:
    """The watch of one peer."""

    def __init__(self, limits: PeerLimits) -> None:
        self.limit_s = limits.master_silence_s
        self._shown_at = 0.0
        self._since: float | None = None
        self.next_deadline: float | None = None
        """When something is due."""

    def shift_deadlines(self, now: float) -> None:
        """If we missed our own deadline by far we stood still: the silence was ours."""
        if self.next_deadline is not None and now - self.next_deadline > LATE_S:
            self._shown_at = now

    def show(self, now: float) -> None:
        """The master has shown that it is there."""
        self._shown_at = now

    def rest(self) -> None:
        """No call waits, or there is no connection."""
        self._since = self.next_deadline = None

    def begin(self, now: float) -> None:
        """A call waits, or we wait to be taken back."""
        if self._since is None:
            self._since, self.next_deadline = now, now + self.limit_s / PINGS_PER_LIMIT

    def due(self, now: float) -> Due:
        """Look at the clock."""
        if self._since is None or self.next_deadline is None or self.next_deadline > now:
            return Due.NOTHING
        self.next_deadline = now + self.limit_s / PINGS_PER_LIMIT
        return Due.LOSS if now - max(self._shown_at, self._since) >= self.limit_s else Due.PING
