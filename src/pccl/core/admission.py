"""How the rings come about: votes for a new topology, the trial of a ring before it is committed, and the verdict on
peers that cannot reach each other.

Owns the topology ballot and the trial. A trial changes nothing that is committed: candidates get their place only when
every link of the new rings stands at both ends, and whoever dies or cannot be reached meanwhile is simply not part of
the next try. Accepted peers have done nothing wrong by being unable to reach one another: a ring is built around such
a pair where the group is large enough, and only a pair that cannot be separated costs the younger its place.
"""

from collections.abc import Iterable
from enum import Enum
from math import inf

from msgspec import Struct

from pccl.core.ballot import Ballot, names
from pccl.core.limits import MasterLimits
from pccl.core.messages import TopologyUpdated
from pccl.core.outbox import Outbox
from pccl.core.ring import Pair, arrange, mesh, pairs
from pccl.core.roster import Member, Roster
from pccl.core.schedule import parcel_bytes
from pccl.core.wiring import Link, Wiring
from pccl.types import PeerId, short


class MemberStage(Enum):
    """Where a peer is in its membership, as the master sees it."""

    CANDIDATE = "candidate"
    TRIED = "tried"
    ACCEPTED = "accepted"
    GONE = "gone"


MEMBER_STAGES: dict[MemberStage, tuple[str, tuple[MemberStage, ...]]] = {
    MemberStage.CANDIDATE: (
        "joined; waits for all accepted peers to vote for a new topology (with nobody accepted: for nothing)",
        (MemberStage.TRIED, MemberStage.ACCEPTED, MemberStage.GONE),
    ),
    MemberStage.TRIED: (
        "part of the trial: links to its future neighbours are being made",
        (MemberStage.CANDIDATE, MemberStage.ACCEPTED, MemberStage.GONE),
    ),
    MemberStage.ACCEPTED: ("on the roster, in its group's ring, votes in every ballot", (MemberStage.GONE,)),
    MemberStage.GONE: ("left, crashed, refused or kicked; its identity never returns", ()),
}
"""Meaning and successors of each stage; `docs/protocol.md` is checked against this table."""


class Expulsion(Struct, frozen=True):
    """A member must go, and why."""

    member: Member
    reason: str


class Admission:
    """Votes for a topology, and the trial that follows."""

    def __init__(self, roster: Roster, wiring: Wiring, outbox: Outbox, limits: MasterLimits) -> None:
        self.ballot = Ballot[None]("update_topology", lambda: roster.accepted)
        self.trial: dict[PeerId, Member] | None = None
        """The candidates being tried; None when no trial is on."""
        self.begin_at = 0.0
        """No run begins before this."""
        self.began_at = -inf
        """When the run began with nobody but newcomers; long ago if it did not begin here."""
        self._also: dict[int, tuple[int, tuple[Pair, ...]]] = {}
        """Groups, and pairs that are linked there beyond ring and mesh, by the attempt that needs them."""
        self._rings: dict[int, tuple[PeerId, ...]] = {}
        """The rings of the trial, for the groups that have candidates in it."""
        self._no_way: dict[Pair, tuple[object, ...]] = {}
        """For pairs that no ring goes around: of whom, and without which pairs. The search takes long, and who failed
        is looked at after every event."""
        self._roster = roster
        self.wiring = wiring
        self._outbox = outbox
        self._limits = limits

    def stage(self, peer: PeerId) -> MemberStage:
        """Where a peer is in its membership."""
        if peer in self._roster.accepted:
            return MemberStage.ACCEPTED
        if self.trial is not None and peer in self.trial:
            return MemberStage.TRIED
        return MemberStage.CANDIDATE if peer in self._roster.candidates else MemberStage.GONE

    # ── rings ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def rewire(self, group: int, now: float) -> None:
        """State anew which links the group needs, after its members or its trial have changed."""
        ring = self._roster.ring(group)
        tried = self._tried(group)
        self._rings.pop(group, None)
        if tried:
            order = ring + tried
            self._rings[group] = arrange(order, self.wiring.avoided) or order
        spare = mesh(ring) if self._meshed(group) else pairs(ring)
        spare += tuple(ends for where, also in self._also.values() if where == group for ends in also)
        self.wiring.want(group, need=pairs(self._rings.get(group, ring)), spare=spare, now=now)

    def link_also(self, attempt: int, group: int, ends: tuple[Pair, ...], now: float) -> None:
        """Link these pairs too, of accepted peers or with a visitor, as long as the attempt needs them."""
        self._also[attempt] = (group, ends)
        self.rewire(group, now)

    def unlink(self, attempt: int, now: float) -> None:
        """It needs them no more. Lanes that are lent outlive their link: transfers go on over them."""
        if attempt in self._also:
            group, _ = self._also.pop(attempt)
            self.rewire(group, now)

    def _meshed(self, group: int) -> bool:
        """Whether every two peers of the group shall be linked."""
        ring, limits = self._roster.ring(group), self._limits
        return len(ring) <= limits.mesh_peers_max and self._roster.lanes.get(group, 0) <= limits.mesh_lanes_max

    def _tried(self, group: int) -> tuple[PeerId, ...]:
        return tuple(peer for peer, member in (self.trial or {}).items() if member.group == group)

    def close_ring(self, group: int) -> None:
        """Somebody has just gone: keep pairs that cannot reach each other apart in what is left of the ring."""
        ring = self._roster.ring(group)
        if ring:
            self._roster.rings[group] = arrange(ring, self.wiring.avoided) or ring

    def push(self) -> None:
        """Tell every accepted peer of the new epoch."""
        for group, ring in self._roster.rings.items():
            longest = parcel_bytes(self._roster.round_trip_s(ring)) if self._meshed(group) else 0
            self._outbox.send(ring, self._roster.topology(group, longest))

    def forget(self, member: Member) -> None:
        """A member is gone: it neither votes nor is tried nor linked any more."""
        self.ballot.forget(member.peer)
        self._no_way = {ends: question for ends, question in self._no_way.items() if member.peer not in ends}
        left = {
            attempt: (group, tuple(ends for ends in also if member.peer not in ends))
            for attempt, (group, also) in self._also.items()
        }
        self._also = {attempt: also for attempt, also in left.items() if also[1]}
        if self.trial is not None:
            self.trial.pop(member.peer, None)

    # ── vote, trial, commit ──────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> bool:
        """Begin or commit a trial if that can be done now. True if anything changed."""
        if self.trial is None:
            return self._begin(now)
        if not all(self.wiring.stands(group) for group in self._rings):
            return False
        self._commit(now)
        return True

    def _begin(self, now: float) -> bool:
        """Every accepted peer has voted; with nobody accepted there is nobody to ask, and the candidates go ahead, if
        there is one that may begin a run."""
        begin = now >= self.begin_at and any(each.begins for each in self._roster.candidates.values())
        carried = self.ballot.complete or (not self._roster.accepted and begin)
        if not carried or not (self.ballot.votes or self._roster.candidates):
            return False
        self.trial = dict(self._roster.candidates)
        for group in _groups(self.trial.values()):
            self.rewire(group, now)
        return True

    def suspend(self, now: float, until: float = inf) -> None:
        """Nobody is accepted, and peers of a run that was there before have come back, or may: no other one begins."""
        self.begin_at = until
        tried, self.trial = self.trial, None
        for group in _groups((tried or {}).values()):
            self.rewire(group, now)

    def excuse(self, missed_s: float) -> None:
        """We did not listen for this long ourselves: whoever was to come first may be there, unread."""
        self.begin_at += missed_s

    def next_deadline(self) -> float | None:
        """When a run can begin with those who wait."""
        waits = self._roster.candidates and not self._roster.accepted and self.trial is None
        return self.begin_at if waits and 0.0 < self.begin_at < inf else None

    def _commit(self, now: float) -> None:
        assert self.trial is not None, "commit follows a trial"
        self._roster.updated = self._roster.draw_number()
        admitted, rings = self.trial, self._rings
        self.trial, self._rings = None, {}
        if admitted:
            self.began_at = self.began_at if self._roster.accepted else now
            self._roster.accept(admitted, rings)
            self.wiring.forgive()
            self.push()
            self._outbox.note(
                f"epoch {self._roster.epoch}: {names(admitted)} joined; {len(self._roster.accepted)} peers"
            )
        self._outbox.send(self.ballot.votes, TopologyUpdated(self._roster.updated))
        self.ballot.clear()
        for group in rings:
            self.rewire(group, now)

    # ── peers that cannot reach each other ───────────────────────────────────────────────────────────────────────────

    def judge(self, now: float) -> Expulsion | bool:
        """Deal with one link that failed from both ends: whom to expel, or True if a ring was built around it."""
        for link in self.wiring.failing():
            if not self._both_there(link, now):
                continue
            tried = [self.trial[peer] for peer in link.ends if peer in self.trial] if self.trial else []
            verdict = self._judge_trial(link, tried, now) if tried else self._judge_pair(link, now)
            if verdict:
                return verdict
        return False

    def _judge_trial(self, link: Link, tried: list[Member], now: float) -> Expulsion | bool:
        """A candidate that one member cannot reach may do well elsewhere in the ring; one that fails again is refused.
        Of two candidates, the one that fewer others could reach gives way, which is known only when the other links of
        their group have stood or failed."""
        if len(tried) == 2 and any(other.failures < 2 for other in self.wiring.missing(link.group)):
            return False
        loser = min(tried, key=lambda member: (len(self.wiring.linked(member.peer)), -member.seniority))
        if not any(loser.peer in ends for ends in self.wiring.avoided) and self._go_around(link, now):
            return True
        return Expulsion(loser, f"not admitted: {_unreachable(link)}")

    def _both_there(self, link: Link, now: float) -> bool:
        """Both ends have answered since the link failed, not long ago, and were there while it was tried. A silent end
        may be the one that cannot be reached: its silence is judged first, and nobody is blamed in its place. But a
        candidate that is slow all the time is not excused all the time: everybody waits for it."""
        patient = now - link.wanted_at <= self._limits.silence_s
        ends = [end for peer in link.ends if (end := self._roster.member(peer)) is not None]
        answered = all(end.answered_at >= link.failed_at for end in ends)
        excused = [end for end in ends if patient or end.peer in self._roster.accepted]
        recent = now - link.failed_at <= self._limits.link_timeout_s
        return recent and answered and all(end.slow_at < link.failed_since for end in excused)

    def _judge_pair(self, link: Link, now: float) -> Expulsion | bool:
        """Build a ring around the pair; where there is none, be patient for as long as with a silent peer."""
        if self._go_around(link, now):
            return True
        if now - link.wanted_at > self._limits.silence_s:
            return Expulsion(self._roster.younger(link.ends), _unreachable(link))
        return False

    def _go_around(self, link: Link, now: float) -> bool:
        """Rearrange ring and trial so that this pair are no neighbours. False if that cannot be done."""
        ring = self._roster.ring(link.group)
        avoided = {**self.wiring.avoided, link.ends: now}
        tried = self._tried(link.group)
        question = (ring, tried, frozenset(avoided))
        if self._no_way.get(link.ends) == question:
            return False
        around = arrange(ring, avoided)
        if tried:
            # A ring that cannot do without a pair stays as it is: with the candidates in between it perhaps can.
            around = around or ring
        if around is None or (tried and arrange(around + tried, avoided) is None):
            self._no_way[link.ends] = question
            return False
        self.wiring.avoid(link.ends, now)
        if around != ring:
            self._roster.reorder(link.group, around)
            self.push()
            self._outbox.note(f"epoch {self._roster.epoch}: the ring goes around a pair; {_unreachable(link)}")
        self.rewire(link.group, now)
        return True

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def explain(self) -> str:
        """What voters and candidates wait for; empty if nobody waits."""
        if self.trial is not None:
            links = "; ".join(link.explain() for group in self._rings for link in self.wiring.missing(group)[:3])
            return f"admission of {names(self.trial)} waits for {links}"
        if self.ballot.votes:
            return self.ballot.explain()
        if self._roster.candidates and not self._roster.accepted:
            held = f"candidates {names(self._roster.candidates)} wait: peers of an earlier run may come back first"
            return held if self.begin_at < inf else ""
        if self._roster.candidates:
            waiting, accepted = names(self._roster.candidates), names(self._roster.accepted)
            return f"candidates {waiting} wait for {accepted} to call update_topology"
        return ""


def _groups(members: Iterable[Member]) -> list[int]:
    return list(dict.fromkeys(member.group for member in members))


def _unreachable(link: Link) -> str:
    causes = "; ".join(f"{short(peer)} could not dial: {cause}" for peer, cause in link.causes.items())
    a, b = link.ends
    return (
        f"{short(a)} and {short(b)} cannot reach each other ({causes}). Open the listening port of one of them, "
        "or set its announce address to one that the other can dial"
    )
