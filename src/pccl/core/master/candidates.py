"""Candidates before their trial: how many may wait, from where, which of them rest, how many lanes their groups get.

Owns what bounds a crowd of them: accepted peers lose nothing by it, and one that spoils its trial again and again does
not hold the votes of the others up each time. Does not know how a trial goes. Rules: docs/protocol.md, "Candidates".
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from pccl.core.effects.both import Note
from pccl.core.fields import KickKind
from pccl.core.master.part import Common, Departure, Part
from pccl.core.master.roster import Member, MemberStage
from pccl.core.messages.to_peer import Kick
from pccl.core.rights import is_local
from pccl.types import PeerId

FREE_FAILURES, PAUSE_S, PAUSE_MAX_S = 1, 10.0, 120.0
"""One admission from an address may fail for nothing: a port was closed, a process died. The next ones cost a pause
that is doubled each time. With the longest one an attacker costs the others fifteen seconds in two minutes, and an
honest peer whose trials failed because of others is not kept out for longer than a person waits."""

ADDRESSES_KEPT = 1024
"""Of which it is known how often admissions from there failed; the oldest is forgotten first."""


class Candidates(Part):
    """What is known of them, and of where they come from."""

    def __init__(self, common: Common) -> None:
        super().__init__(common)
        self._failed: dict[str, tuple[int, float]] = {}
        """By address, how many admissions have failed in a row, and when the last one did."""

    def objection(self, host: str) -> Kick | None:
        """Why one more cannot wait; None if it can."""
        candidates, limits = self._roster.candidates.values(), self._limits
        if len(candidates) >= limits.candidates_max:
            return Kick(KickKind.FULL, f"{len(candidates)} candidates wait already (candidates_max); come again later")
        here = sum(each.seen_host == host for each in candidates)
        if host and not is_local(host) and here >= limits.address_candidates_max:
            reason = f"{here} candidates from {host} wait already (address_candidates_max); come again later"
            return Kick(KickKind.FULL, reason)
        return None

    def arrive(self, member: Member, now: float) -> None:
        """One has come: it rests if others from its address have failed before."""
        failures, at = self._failed.get(member.seen_host, (0, 0.0))
        if failures > FREE_FAILURES:
            member.rests_until = at + min(PAUSE_S * 2 ** (failures - FREE_FAILURES - 1), PAUSE_MAX_S)
            if member.rests_until > now:
                rest_s, where = member.rests_until - now, member.seen_host or "its address"
                sentence = f"candidates from {where} rest for {rest_s:.0f} s: {failures} admissions from there failed"
                self._outbox.note(Note(sentence, "rests", warns=True, peer=member.peer))

    def forget(self, gone: Sequence[Departure]) -> None:
        """Those that were being tried have failed."""
        for each in gone:
            if each.tried:
                failures, _ = self._failed.pop(each.member.seen_host, (0, 0.0))
                self._failed[each.member.seen_host] = failures + 1, each.now
        while len(self._failed) > ADDRESSES_KEPT:
            del self._failed[next(iter(self._failed))]

    def admitted(self, members: Iterable[Member]) -> None:
        """These were: nothing is held against where they come from."""
        for member in members:
            self._failed.pop(member.seen_host, None)

    def settle_lanes(self, tried: Iterable[Member]) -> list[Member]:
        """How many lanes the links of groups have that begin with these; returns those that ask for another number."""
        asked: dict[int, Counter[int]] = {}
        members = list(tried)
        for member in members:
            asked.setdefault(member.group, Counter()).update([member.lanes] if member.lanes else [])
        for group, counted in asked.items():
            if not self._roster.ring(group):
                # What most ask for, and of equals the smallest: the first to come may ask for what no machine can bear.
                likes = sorted(counted.items(), key=lambda each: (-each[1], each[0]))
                self._roster.lanes[group] = likes[0][0] if likes else self._limits.default_lanes
        return [each for each in members if each.lanes not in (0, self._roster.lanes[each.group])]

    def waited_for(self) -> Iterable[PeerId]:
        """All of them: no peer needs them, but others may want their places."""
        return [peer for peer, each in self._roster.candidates.items() if each.stage is MemberStage.CANDIDATE]


def other_lanes(group: int, lanes: int, asked: int) -> str:
    """Why a peer that asks for another number of lanes than its group has is not let in."""
    return (
        f"group {group} uses {lanes} lanes per neighbour and you ask for {asked}; "
        "set p2p_connection_pool_size alike on all peers, or leave it at 0"
    )
