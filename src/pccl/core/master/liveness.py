"""Which peers are silent while others wait: pings, and the verdict on peers that answer nothing; where there is a limit
on it, also on peers that answer and do not vote.

A busy trainer is not silent: its control thread answers pings while the GPU works. Silence counts only from the moment
another peer began to wait for it, and only while one does; a stopped peer that no other needs hurts none. Does not
know what is waited for.

Rules: docs/protocol.md, "Liveness".
"""

from collections.abc import Iterable, Sequence

from pccl.core.fields import KickKind
from pccl.core.limits import PINGS_PER_LIMIT
from pccl.core.master.part import Common, Part, Wait
from pccl.core.master.roster import Member, MemberStage
from pccl.core.messages.to_peer import Kick
from pccl.types import PeerId


class Liveness(Part):
    """The watch over peers that others wait for."""

    def __init__(self, common: Common) -> None:
        super().__init__(common)
        self._waited_since: dict[PeerId, float] = {}
        self._pinged_at: dict[PeerId, float] = {}
        self._unread_before = 0.0
        """When the master last found that it had stood still."""

    def limit(self, member: Member) -> float:
        """How long this member may be silent while others wait for it, or at all if it is a visitor or a candidate that
        waits: no peer needs it, but there are only so many places."""
        tried = member.stage is MemberStage.TRIED
        return self._limits.candidate_silence_s if tried else self._limits.silence_s

    def watch(self, waited_for: Iterable[PeerId], now: float) -> list[tuple[Member, Kick]]:
        """Ping the peers that are waited for; returns the members that have been silent for too long, to be kicked."""
        members = [member for peer in waited_for if (member := self._roster.member(peer)) is not None]
        self._waited_since = {each.peer: self._waited_since.get(each.peer, now) for each in members}
        self._pinged_at = {each.peer: self._pinged_at.get(each.peer, 0.0) for each in members}
        silent = [each for each in members if self._silence(each, now) > self.limit(each)]
        due = [each.peer for each in members if now - self._pinged_at[each.peer] >= self.limit(each) / PINGS_PER_LIMIT]
        self._pinged_at.update(dict.fromkeys(due, now))
        self._outbox.ping(due, now)
        return [(each, Kick(KickKind.SILENT, self._silence_in_words(each))) for each in silent]

    def _silence_in_words(self, member: Member) -> str:
        alone = member.stage in (MemberStage.VISITOR, MemberStage.CANDIDATE)
        return f"it answered nothing for {self.limit(member):g} s{'' if alone else ' while others waited for it'}"

    def voteless(self, waits: Sequence[Wait], now: float) -> list[tuple[Member, Kick]]:
        """The members that have kept others waiting for too long, in the oldest such wait, to be kicked. None by whom
        fewer wait than are missing: one peer must not get all others kicked by calling what they never call. And none
        that itself waits for what no vote can bring, such as links. Others are looked at when these are out. A party
        counts as one: its peers are of different groups, so in most calls one of them alone waits or is missing."""
        limit_s = self._limits.vote_timeout_s
        # One without a connection may be dead, and waits for no other; how long it is waited for is another question.
        here = {peer: each for peer, each in self._roster.accepted.items() if each.stage is MemberStage.ACCEPTED}
        busy = {peer for wait in waits if wait.works or not wait.missing for peer in wait.waiting}
        for wait in sorted(waits, key=lambda wait: wait.since):
            missing = [here[peer] for peer in wait.missing if peer in here]
            lost = {each.peer: each for member in missing for each in (member, *self._roster.mates(member))}
            voters = [here[peer] for peer in wait.waiting if peer in here and peer not in lost]
            due = 0 < limit_s < now - max(wait.since, self._unread_before) and not wait.works
            late = [member for member in missing if member.peer not in busy]
            if due and late and voters and _outweigh(voters, list(lost.values())):
                reason = f"others waited for it in {wait.call} for {limit_s:g} s (vote_timeout_s)"
                return [(member, Kick(KickKind.VOTELESS, reason)) for member in late]
        return []

    def shift_deadlines(self, missed_s: float, now: float) -> None:
        """The silence of every peer is counted from now on: answers, and votes, may be unread."""
        self._waited_since = dict.fromkeys(self._waited_since, now)
        self._unread_before = now

    def _silence(self, member: Member, now: float) -> float:
        """For how long it owes us an answer. Its other messages do not count: it may send and not receive."""
        pings = member.pulse.pings
        return now - max(pings[0], self._waited_since[member.peer]) if pings else 0.0

    @property
    def interval_s(self) -> float:
        """How often `watch` must look for its limits to be kept to within a fifth."""
        return min(self._limits.silence_s, self._limits.candidate_silence_s) / PINGS_PER_LIMIT


def _outweigh(these: list[Member], those: list[Member]) -> bool:
    """More parties, or as many with the eldest member among them."""
    eldest = min(each.seniority for each in these) < min(each.seniority for each in those)
    one, other = ({each.party_called or each.peer for each in members} for members in (these, those))
    return len(one) > len(other) or (len(one) == len(other) and eldest)
