"""Candidates before their trial: how many may wait, from where, which of them rest, what their lanes are like.

Owns what bounds a crowd of them: accepted peers lose nothing by it, and one that spoils its trial again and again does
not hold the votes of the others up each time. Does not know how a trial goes. Rules: docs/protocol.md, "Candidates".
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from pccl.core.effects.both import Note
from pccl.core.fields import Identity, KickKind
from pccl.core.master.part import Common, Departure, Part
from pccl.core.master.parties import Parties
from pccl.core.master.roster import Member, MemberStage
from pccl.core.messages.to_peer import Kick
from pccl.core.rights import is_local, origin_of
from pccl.types import PeerId, short

FREE_FAILURES, PAUSE_S, PAUSE_MAX_S = 1, 10.0, 120.0
"""One admission from an address may fail for nothing: a port was closed, a process died. The next ones cost a pause
that is doubled each time. With the longest one an attacker costs the others fifteen seconds in two minutes, and an
honest peer whose trials failed because of others is not kept out for longer than a person waits."""

FREE_S = 1.0
"""So long in all failed trials may have held up the others for nothing: a candidate that is killed ends its trial at
once, and many may be killed behind one address."""

ADDRESSES_KEPT = 1024
"""Of which it is known how often admissions from there failed; the oldest is forgotten first."""


class Failed(NamedTuple):
    """Admissions from an address that failed since the last one that did not."""

    times: int = 0
    held_s: float = 0.0
    """How long they have held up the others in all."""
    at: float = 0.0


class Candidates(Part):
    """What is known of them, and of where they come from."""

    def __init__(self, common: Common) -> None:
        super().__init__(common)
        self.parties = Parties(common)
        self._failed: dict[str, Failed] = {}
        """By address."""

    def objection(self, me: Identity, host: str) -> Kick | None:
        """Why this one cannot wait as one more; None if it can."""
        candidates, limits = self._roster.candidates.values(), self._limits
        if len(candidates) >= limits.candidates_max:
            return Kick(KickKind.FULL, f"{len(candidates)} candidates wait already (candidates_max); come again later")
        here = sum(each.origin == origin_of(host) for each in candidates)
        if host and not is_local(host) and here >= limits.address_candidates_max:
            reason = f"{here} candidates from {origin_of(host)} wait already (address_candidates_max); come again later"
            return Kick(KickKind.FULL, reason)
        return self.parties.objection(me)

    def arrive(self, member: Member, now: float) -> None:
        """One has come: it rests if others from its address have failed before."""
        failures, held_s, at = self._failed.get(member.origin, Failed())
        if failures > FREE_FAILURES and held_s > FREE_S:
            member.rests_until = at + min(PAUSE_S * 2 ** (failures - FREE_FAILURES - 1), PAUSE_MAX_S)
            if member.rests_until > now:
                rest_s, where = member.rests_until - now, member.origin or "its address"
                sentence = f"candidates from {where} rest for {rest_s:.0f} s: {failures} admissions from there failed"
                self._outbox.note(Note(sentence, "rests", warns=True, peer=member.peer))

    def forget(self, gone: Sequence[Departure]) -> None:
        """Those that were being tried have failed."""
        for each in gone:
            if each.tried:
                origin = each.member.origin
                failures, held_s, _ = self._failed.pop(origin, Failed())
                self._failed[origin] = Failed(failures + 1, held_s + each.now - each.member.tried_at, each.now)
        while len(self._failed) > ADDRESSES_KEPT:
            del self._failed[next(iter(self._failed))]

    def admitted(self, members: Iterable[Member]) -> None:
        """These were: nothing is held against where they come from."""
        for member in members:
            self._failed.pop(member.origin, None)

    def other_lanes(self, me: Identity | Member) -> Kick | None:
        """Why this peer cannot have lanes with those that are accepted; None if it can."""
        lanes = self._roster.lanes.get(me.group, 0) if self._roster.ring(me.group) else 0
        return _why_odd(me, lanes, _example(self._roster.accepted.values()))

    def settle_lanes(self, tried: Iterable[Member]) -> list[tuple[Member, Kick]]:
        """How many lanes the links of groups have that begin with these, and whether lanes are sealed in a run that
        begins with them; returns those that ask for something else."""
        members = list(tried)
        asked: dict[int, Counter[int]] = {}
        for member in members:
            asked.setdefault(member.group, Counter()).update([member.lanes] if member.lanes else [])
        for group, counted in asked.items():
            if not self._roster.ring(group):
                # What most ask for, and of equals the smallest: the first to come may ask for what no machine can bear.
                likes = sorted(counted.items(), key=lambda each: (-each[1], each[0]))
                self._roster.lanes[group] = likes[0][0] if likes else self._limits.default_lanes
        example = _example(self._roster.accepted.values() or members)
        odd = [(each, _why_odd(each, self._roster.lanes[each.group], example)) for each in members]
        return [(member, kick) for member, kick in odd if kick is not None]

    def waited_for(self) -> Iterable[PeerId]:
        """All of them: no peer needs them, but others may want their places."""
        return [peer for peer, each in self._roster.candidates.items() if each.stage is MemberStage.CANDIDATE]


def _example(members: Collection[Member]) -> Member | None:
    """One whose `lane_tls` the others must have, too: what most of these have, so that one that lies does not shut all
    others out; of equals the sealed lane."""
    counted = Counter(each.lane_tls for each in members)
    return min(members, key=lambda each: (-counted[each.lane_tls], each.lane_tls != "on"), default=None)


def _why_odd(me: Identity | Member, lanes: int, example: Member | None) -> Kick | None:
    """Why this peer does not fit: its group has so many lanes (0: any), and the run is sealed like the example."""
    if lanes and me.lanes not in (0, lanes):
        reason = (
            f"group {me.group} uses {lanes} lanes per neighbour and you ask for {me.lanes}; "
            "set p2p_connection_pool_size alike on all peers, or leave it at 0"
        )
        return Kick(KickKind.LANES, reason)
    if example is None or me.lane_tls == example.lane_tls:
        return None
    reason = (
        f"{short(me.peer)} has lane_tls={me.lane_tls or 'none'!r} and {short(example.peer)} has "
        f"{example.lane_tls or 'none'!r}; set lane_tls (PCCL_LANE_TLS) alike on all peers"
    )
    return Kick(KickKind.LANES, reason)
