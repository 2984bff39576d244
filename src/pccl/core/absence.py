"""The time in which a peer has no master: when it dials which one, for how long, and what it keeps to itself.

Owns the rounds of dials and their pauses, and the messages that nobody is there to hear, or that perhaps nobody has
heard. Does not know what is said once a master answers.
"""

from math import inf

from pccl.core.effects import CloseMaster, DialMaster, Note, PeerEffect, SendMaster
from pccl.core.limits import LATE_S, PeerLimits
from pccl.core.messages import Join, LinkUp, Ping, Pong, Recall, Resume, ToMaster
from pccl.core.session import Session
from pccl.core.standing import PeerStage
from pccl.core.violation import Violation

FIRST_PAUSE_S = 0.05
"""Before the first round of dials and, doubled each time, before the next ones: a connection that merely broke is
replaced at once, and a master that starts is not met by everybody in the same instant."""

REDIAL_TIMEOUT_S = 2.0
"""Connect to a master that was there before. SYN is sent again after 1 s, so one loss fits in, and who knows several
masters does not spend its time on one that is gone."""


BEGIN_AFTER_S, BEGIN_ANYWAY_S = 5.0, 20.0
"""Who knows several masters begins a run when each of the others has said for so long that it has none, or has not
answered for so long. Peers of a run that has lost its master dial every second, a dial takes two at most, and then they
come to another one; a master that is merely being started anew answers in seconds; a standby may never be started."""

UNHEARD = (PeerStage.OUTSIDE, PeerStage.AWAY)
"""Stages without a connection."""


class Absence:
    """The masters of one peer, and the search for one of them."""

    def __init__(self, masters: int, limits: PeerLimits, seed: int) -> None:
        self.masters = masters
        self.cause = ""
        """Why the last connection or dial ended."""
        self.words = ""
        """What a master said that did not take us in."""
        self._held_back: list[PeerEffect] = []
        """What there was to say since we first told a master what we knew."""
        self._stories: list[tuple[int, bool]] = []
        """For each time that we told it: how much was held back by then, and whether a transfer ran. Which of them a
        master went by shows only when it takes us back."""
        self.session = Session[ToMaster]()
        """With the present master, or the last one."""
        self._repeats: list[PeerEffect] = []
        self._limits = limits
        self._since: float | None = None
        """Since when we have been without a master that has taken us in; None while there is one."""
        self._place = 0
        self._rounds = 0
        self._asks_again = False
        self._said = False
        """Somebody was told what the masters say that do not take us in."""
        self._without: dict[int, float] = {}
        """Since when the masters at these places say, whenever they are dialled, that they have no run for us."""
        self._silent: dict[int, float] = {}
        """Since when these do not answer."""
        self._asked: dict[int, float] = {}
        """When that was last tried."""
        self._dial_at: float | None = None
        self._seed = seed % 2**64

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, cause: str, now: float) -> None:
        """The connection to our master is gone: dial it, which may still be there, and all others in order, again and
        again."""
        self.cause, self.words, self._since, self._rounds = cause, "", now, 0
        self._dial_at = now + self._pause()

    def go_on(self, cause: str, now: float, broke_off: bool) -> None:
        """This one does not answer, or has no run for us: the next one. But if it was about to take us back, perhaps it
        has: it is asked once more, before another one goes on with what is over. If it hangs that takes one dial."""
        if self._asked.get(self._place) != now:
            self._without.pop(self._place, None)
            self._silent.setdefault(self._place, now)
            self._asked[self._place] = now
        self.cause = cause
        self._since = now if self._since is None else self._since
        if broke_off and not self._asks_again:
            self._asks_again, self._dial_at = True, now + self._pause()
            return
        self._asks_again = False
        self._place = (self._place + 1) % self.masters
        self._rounds += self._place == 0
        self._dial_at = now if self._place else now + self._pause()

    def turned_away(self, reason: str, now: float) -> list[PeerEffect]:
        """A master has no run for us. Where several start together everybody hears that for a while; after that it is
        worth a word, since the caller may wait for as long as we dial."""
        self.words = reason
        late = not self._said and self._since is not None and now - self._since > 2 * BEGIN_AFTER_S
        self._said = self._said or late
        self._silent.pop(self._place, None)
        self._without.setdefault(self._place, now)
        self._asked[self._place] = now
        return [CloseMaster(), *([Note(f"{reason}; {self.explain()}")] if late else [])]

    def connected(self, place: int) -> None:
        """A master answers; whether it takes us in is another question."""
        self._place, self._dial_at = place, None

    def end(self) -> None:
        """A master has taken us in, or we look for none any more."""
        self._since, self._dial_at, self._rounds, self._said = None, None, 0, False
        self._asks_again, self._without, self._silent, self._asked = False, {}, {}, {}
        self._held_back, self._stories = [], []

    def tell(self, transfer_runs: bool) -> int:
        """We tell a master what we know: the number of the story."""
        self._stories.append((len(self._held_back), transfer_runs))
        return len(self._stories)

    def believed(self, story: int) -> tuple[list[PeerEffect], bool]:
        """A master goes by this story: what there was to say since, and whether a transfer ran in it."""
        if not 1 <= story <= len(self._stories):
            raise Violation(f"it goes by story {story}, which we never told")
        said, transfer_runs = self._stories[story - 1]
        return self._held_back[said:], transfer_runs

    def repeat(self, heard: int) -> None:
        """It is our old master that answers, and has heard so much of what we said."""
        lacking = self.session.unheard(heard)
        if lacking is None:
            raise Violation("it has heard more of us than we said, or less than we can say again")
        self._repeats += (SendMaster(message, again=True) for message in lacking)

    def take_repeats(self) -> list[PeerEffect]:
        """What is said again, ahead of anything else."""
        repeats, self._repeats = self._repeats, []
        return repeats

    def passes(self, effect: PeerEffect, stage: PeerStage) -> bool:
        """Whether an effect is for now: to no master nothing is said, and to one that considers what we told it only
        what belongs to that. All of it is in what is told next; but a master may go by what it was told before."""
        if not isinstance(effect, SendMaster):
            return True
        self.session.say(effect.message)
        if stage not in (*UNHEARD, PeerStage.RETURNING):
            return True
        if isinstance(effect.message, Join | Resume | Recall | Ping | Pong):
            return stage not in UNHEARD
        # A link that came to stand after what we told is none that this master knows.
        if self._stories and not isinstance(effect.message, LinkUp):
            self._held_back.append(effect)
        return False

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def due(self, now: float) -> DialMaster | None:
        """The dial whose time has come."""
        if self._dial_at is None or self._dial_at > now:
            return None
        self._dial_at = None
        return DialMaster(self._place, REDIAL_TIMEOUT_S)

    def over(self, now: float) -> bool:
        """Nobody has taken us in for so long that nobody will."""
        return self._since is not None and now >= self._since + self._limits.master_timeout_s

    def excuse(self, now: float) -> None:
        """If we missed our own deadline by far we stood still, and that time does not count."""
        deadline = self.next_deadline()
        if deadline is not None and now - deadline > LATE_S and self._since is not None:
            self._since += now - deadline

    def next_deadline(self) -> float | None:
        """When something is due."""
        if self._since is None:
            return None
        end = self._since + self._limits.master_timeout_s
        return end if self._dial_at is None else min(end, self._dial_at)

    def _pause(self) -> float:
        """Longer from round to round, and never the same for two peers."""
        longest = min(FIRST_PAUSE_S * (1 << min(self._rounds, 16)), self._limits.master_redial_s)
        # Knuth's linear congruential numbers; the upper bits are the random ones.
        self._seed = (self._seed * 6364136223846793005 + 1442695040888963407) % 2**64
        return longest * (1 + (self._seed >> 32) / (1 << 32)) / 2

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def may_begin(self, now: float) -> bool:
        """A new run may begin with us here: at the only master, or at the first one if no other has a run for us."""
        if self.masters == 1:
            return True
        return self._place == 0 and all(self._has_none(place, now) for place in range(1, self.masters))

    def _has_none(self, place: int, now: float) -> bool:
        """Whether the master there has no run, as far as we can know. What counts is what was seen whenever it was
        dialled: we may have stood still ourselves in between."""
        asked = self._asked.get(place, -inf)
        round_s = REDIAL_TIMEOUT_S * self.masters + self._limits.master_redial_s
        if now - asked > round_s:
            return False
        if place in self._without:
            return asked - self._without[place] >= BEGIN_AFTER_S
        # While the first one does not answer either it is we who are cut off.
        return asked - max(self._silent[place], self._without.get(0, inf)) >= BEGIN_ANYWAY_S

    def obituary(self) -> str:
        """Why we look for none any more."""
        return f"no master within {self._limits.master_timeout_s:g} s ({self.words or self.cause})"

    def explain(self) -> str:
        """For the log, and for those who wait."""
        where = "the master" if self.masters == 1 else f"one of {self.masters} masters"
        return f"dialling {where} for up to {self._limits.master_timeout_s:g} s ({self.cause})"
