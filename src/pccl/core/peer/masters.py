"""A peer's search for its master: when it dials, for how long, and which messages wait until it has one.

Owns the dials and their pauses, and the log of what the peer sends (`session`). Does not know what the messages mean.
(recovery.md, Broken connection)
"""

from math import inf

from pccl.core.effects.peer_effects import DialMaster, PeerEffect, SendMaster
from pccl.core.limits import LATE_S, PeerLimits
from pccl.core.messages.report import Correction
from pccl.core.messages.to_master import LinkDown, ToMaster
from pccl.core.messages.to_peer import Resumed
from pccl.core.peer.stages import PeerStage
from pccl.core.reminders import times_again
from pccl.core.session import UNCOUNTED, Session
from pccl.core.staged import Stage, Staged
from pccl.core.text import Violation

FIRST_PAUSE_S = 0.05
"""Before the first dial and, doubled each time, before the next ones: a connection that merely broke is
replaced at once, and a master that starts is not met by all peers in the same instant."""

REDIAL_TIMEOUT_S = 2.0
"""Connect to a master that was there before. SYN is sent again after 1 s, so one loss fits in; the next dial looks
its name up again, for the master may have moved."""

UNCONNECTED = (PeerStage.OUTSIDE, PeerStage.AWAY)
"""Stages without a connection."""


class SearchStage(Stage):
    """Where a peer is in the search for its master."""

    DIALLING = "the connection is being made; the first one by `connect`", ("ASKING", "PAUSING", "ENDED")
    ASKING = "`Join` or `Resume` is sent; no answer yet", ("FOUND", "PAUSING", "ENDED")
    FOUND = "a master has taken this peer in", ("PAUSING", "ENDED")
    PAUSING = "no connection; dials after a pause, which grows up to `master_redial_s`", ("DIALLING", "ENDED")
    ENDED = "left or put out, or no master took it in within `master_timeout_s`", ()


class Masters(Staged[SearchStage]):
    """One peer's search for its master, and its log."""

    def __init__(self, limits: PeerLimits, seed: int) -> None:
        super().__init__(SearchStage.DIALLING)
        self.dials = 0
        """Connections made so far."""
        self.cause = ""
        """Why the last connection or dial ended."""
        self.session = Session[ToMaster]()
        """With our masters, since our `Join`."""
        self._limits = limits
        self._since: float | None = None
        """Since when we have been without a master that has taken us in; None while there is one."""
        self._reminded = 0
        """How often that has been told again."""
        self._rounds = 0
        self._dial_at = 0.0
        """When the pause ends."""
        self._seed = seed % 2**64

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────────

    def miss(self, cause: str, now: float) -> None:
        """The connection is gone, or there is none: dial the master, or the one in its place, after a pause. The pause
        grows from dial to dial, until one takes us in."""
        self.cause = cause
        self._rounds = 0 if self.stage is SearchStage.FOUND else self._rounds + 1
        if self._since is None:
            self._since, self._reminded = now, 0
        self._dial_at = now + self._pause()
        self.enter(SearchStage.PAUSING)

    def connected(self) -> None:
        """A master answers; whether it takes us in is another question."""
        self.enter(SearchStage.ASKING)
        self.dials += 1

    def find(self) -> None:
        """A master has taken us in. It may send so again, for another run."""
        if self.stage is not SearchStage.FOUND:
            self.enter(SearchStage.FOUND)
        self._since = None

    def end(self) -> None:
        """We are out of the run, and look for no master any more."""
        self.enter(SearchStage.ENDED)
        self._since = None

    def be_taken_back(self, resumed: Resumed) -> list[PeerEffect]:
        """A master has taken us back, and has our messages up to a number: the rest is sent again."""
        lacking = self.session.lacking(resumed.received)
        if lacking is None:
            raise Violation("it has more of our messages than we sent, or fewer than we can send again")
        self.find()
        return [SendMaster(message, again=True) for message in lacking]

    def pass_on(self, effects: list[PeerEffect], stage: PeerStage, tags_max: int) -> list[PeerEffect]:
        """Log the messages among these effects; return what is carried out now. Without a connection nothing is sent,
        and between `Resume` and its answer only what is not numbered: the log has the rest."""
        returning = stage is PeerStage.RETURNING
        # A master may lack all that was logged since the connection broke, and some of what was sent before.
        kept_max = inf if returning or stage in UNCONNECTED else 4 * tags_max
        passed: list[PeerEffect] = []
        for effect in effects:
            if not isinstance(effect, SendMaster) or effect.again:
                passed.append(effect)
                continue
            self.session.log(effect.message, kept_max)
            if returning and isinstance(effect.message, LinkDown):
                passed.append(SendMaster(Correction(effect.message.link)))
            elif stage not in UNCONNECTED and not (returning and type(effect.message) not in UNCOUNTED):
                passed.append(effect)
        return passed

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def due(self, now: float) -> DialMaster | None:
        """The dial whose time has come."""
        if self.stage is not SearchStage.PAUSING or self._dial_at > now:
            return None
        self.enter(SearchStage.DIALLING)
        return DialMaster(REDIAL_TIMEOUT_S)

    def over(self, now: float) -> bool:
        """No master has taken us in for so long that none will."""
        return self._since is not None and now >= self._since + self._limits.master_timeout_s

    def reminder(self, now: float) -> str:
        """The search once more in words, when it has become much longer; otherwise empty."""
        age_s = 0.0 if self._since is None else now - self._since
        before, self._reminded = self._reminded, times_again(age_s)
        if self._reminded <= before:
            return ""
        left_s = self._limits.master_timeout_s - age_s
        return f"the master is away for {age_s:.0f} s now: dialling it for {left_s:.0f} s more at most ({self.cause})"

    def shift_deadlines(self, now: float) -> None:
        """If we missed our own deadline by far we stood still, and that time does not count."""
        deadline = self.next_deadline()
        if deadline is not None and now - deadline > LATE_S and self._since is not None:
            self._since += now - deadline

    def next_deadline(self) -> float | None:
        """When something is due."""
        if self._since is None:
            return None
        end = self._since + self._limits.master_timeout_s
        return min(end, self._dial_at) if self.stage is SearchStage.PAUSING else end

    def _pause(self) -> float:
        """Longer from round to round, and never the same for two peers."""
        longest = min(FIRST_PAUSE_S * (1 << min(self._rounds, 16)), self._limits.master_redial_s)
        # Knuth's linear congruential numbers; the upper bits are the random ones.
        self._seed = (self._seed * 6364136223846793005 + 1442695040888963407) % 2**64
        return longest * (1 + (self._seed >> 32) / (1 << 32)) / 2

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def obituary(self) -> str:
        """Why we look for none any more."""
        return f"no master within {self._limits.master_timeout_s:g} s ({self.cause})"

    def explain(self) -> str:
        """For the log, and for calls that wait."""
        return f"dialling it for up to {self._limits.master_timeout_s:g} s ({self.cause})"
