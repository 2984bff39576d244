"""How much of the master one connection may use: a bucket of messages that fills at a steady rate.

Owns the rate, its arithmetic, and when too much has lasted too long. Pure: it is told the time. What exceeds is not
lost: its connection is not read meanwhile, and so its sender waits. Must not know what a message asks for.
"""

from pccl.core.messages.both import Ping
from pccl.core.messages.to_master import ToMaster

MESSAGES_PER_S = 20_000
"""One message costs the master some 12 µs, so that one member uses a quarter of a core at most. The most that an honest
peer sent here were 5,200 a second (256 small collectives in flight between two peers on loopback, two messages each),
and it waits for answers: one that is held up sends less, and is late by milliseconds."""

BURST = 20_000
"""All that an honest peer can have to send at once: 4,096 votes (`MasterLimits.tags_max`), as many messages again after
its connection broke (`session.KEPT_MAX`), 1,024 parts of a report and 4,096 links, one and a half times over."""

PING_COST = 200
"""So pings come to 100 a second. A peer sends five in its limit on silence: one in 12 s, and ten a second with a limit
of half a second. No honest one comes near."""

EXCESS_S = 60.0
"""A connection that was held up without a pause for this long sent 1.2 million messages, and is not
waiting for answers."""

FRAMES_PER_TURN = 64
"""Messages of one connection before others get their turn: less than a millisecond. A vote of two honest peers beside
one that sends without end waits for a few of those."""


class Allowance:
    """What one connection has left."""

    def __init__(self, now: float) -> None:
        self._level = float(BURST)
        self._filled_at = now
        self._held_up_since: float | None = None

    def spend(self, message: ToMaster, now: float) -> float:
        """A message has come; in how many seconds the next one may."""
        self._level = min(BURST, self._level + (now - self._filled_at) * MESSAGES_PER_S)
        self._filled_at = now
        if self._level >= BURST / 2:
            self._held_up_since = None
        self._level -= PING_COST if isinstance(message, Ping) else 1
        if self._level >= 0:
            return 0.0
        if self._held_up_since is None:
            self._held_up_since = now
        return -self._level / MESSAGES_PER_S

    def exceeded(self, now: float) -> str:
        """What it does, if it has done so for too long; else empty."""
        if self._held_up_since is None or now - self._held_up_since < EXCESS_S:
            return ""
        pings = MESSAGES_PER_S // PING_COST
        return f"sent more than {MESSAGES_PER_S:,} messages or {pings} pings a second for {EXCESS_S:g} s"
