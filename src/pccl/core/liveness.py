"""Who is silent while others wait: pings, and the verdict on peers that answer nothing.

A busy trainer is not silent: its control thread answers pings while the GPU works. Silence counts only from the moment
somebody began to wait for the peer, and only while they do; a stopped peer that nobody needs hurts nobody. Does not
know what is waited for.
"""

from collections.abc import Iterable

from pccl.core.limits import PINGS_PER_LIMIT, MasterLimits
from pccl.core.outbox import Outbox
from pccl.core.roster import Member, Roster
from pccl.types import PeerId


class Liveness:
    """The watch over peers that others wait for."""

    def __init__(self, roster: Roster, outbox: Outbox, limits: MasterLimits) -> None:
        self._roster = roster
        self._outbox = outbox
        self._limits = limits
        self._waited_since: dict[PeerId, float] = {}
        self._pinged_at: dict[PeerId, float] = {}

    def limit(self, member: Member) -> float:
        """How long this member may be silent while others wait for it, or at all if it is a visitor: nobody needs it,
        but there are not places for everybody. It pulls meanwhile, and has no less to do than a peer."""
        candidate = member.peer in self._roster.candidates
        return self._limits.candidate_silence_s if candidate else self._limits.silence_s

    def watch(self, waited_for: Iterable[PeerId], now: float) -> list[Member]:
        """Ping those who are waited for; returns those who have been silent for too long."""
        members = [member for peer in waited_for if (member := self._roster.member(peer)) is not None]
        self._waited_since = {each.peer: self._waited_since.get(each.peer, now) for each in members}
        self._pinged_at = {each.peer: self._pinged_at.get(each.peer, 0.0) for each in members}
        silent = [each for each in members if self._silence(each, now) > self.limit(each)]
        due = [each.peer for each in members if now - self._pinged_at[each.peer] >= self.limit(each) / PINGS_PER_LIMIT]
        self._pinged_at.update(dict.fromkeys(due, now))
        self._outbox.ping(due, now)
        return silent

    def excuse(self, now: float) -> None:
        """We did not listen ourselves until now: everybody's silence starts anew."""
        self._waited_since = dict.fromkeys(self._waited_since, now)

    def _silence(self, member: Member, now: float) -> float:
        """For how long it owes us an answer. Other words of its own do not count: it may speak and not hear us."""
        return now - max(member.pings[0], self._waited_since[member.peer]) if member.pings else 0.0

    @property
    def interval_s(self) -> float:
        """How often `watch` must look for its limits to be kept to within a fifth."""
        return min(self._limits.silence_s, self._limits.candidate_silence_s) / PINGS_PER_LIMIT
