"""The lives of all collectives, from the first vote to the one outcome, as the master sees them.

A life belongs to a (group, tag). It starts when every member of the group has voted for it with the same parameters,
the group's ring stands, and lanes are free; then each participant reports exactly once, done or failed. The outcome is
committed if everybody who lives reported done, and aborted otherwise; an aborted one is told only when the group has
been rewired, so that its callers can call again at once. Nothing here knows how links are made or peers admitted.
"""

from collections.abc import Iterator, Sequence
from enum import Enum

from pccl.core.ballot import Ballot, names
from pccl.core.limits import MasterLimits
from pccl.core.messages import Abort, CollectiveSpec, Initiate, Outcome, RefusedCollective, Start
from pccl.core.outbox import Outbox, clip
from pccl.core.ring import pairs
from pccl.core.roster import Member, Roster
from pccl.core.schedule import lane_share, segment_bytes
from pccl.core.violation import Violation
from pccl.core.wiring import Link, Wiring
from pccl.types import CollectiveKind, PeerId, short, tag_name


class LifeStage(Enum):
    """Where a collective is in its life."""

    VOTING = "voting"
    READY = "ready"
    RUNNING = "running"
    ABORTING = "aborting"
    STOPPED = "stopped"
    ENDED = "ended"


LIFE_STAGES: dict[LifeStage, tuple[str, tuple[LifeStage, ...]]] = {
    LifeStage.VOTING: ("some members of the group have initiated it", (LifeStage.READY, LifeStage.ENDED)),
    LifeStage.READY: (
        "all have, with equal parameters; waits for the ring to stand and for free lanes",
        (LifeStage.RUNNING, LifeStage.ENDED),
    ),
    LifeStage.RUNNING: ("started; participants report done or failed", (LifeStage.ABORTING, LifeStage.ENDED)),
    LifeStage.ABORTING: ("some failed or were lost; the rest are told to stop and report", (LifeStage.STOPPED,)),
    LifeStage.STOPPED: ("all have reported; the aborted outcome waits for the ring to stand", (LifeStage.ENDED,)),
    LifeStage.ENDED: ("every caller has its answer", ()),
}
"""Meaning and successors of each stage; `docs/protocol.md` is checked against this table."""


class Life:
    """One collective of one group."""

    def __init__(self, group: int, tag: int, ballot: Ballot[CollectiveSpec]) -> None:
        self.group = group
        self.tag = tag
        self.ballot = ballot
        self.stage = LifeStage.VOTING
        self.since = 0.0
        """When the present stage began."""
        self.attempt = 0
        self.lanes: tuple[int, ...] = ()
        """The lanes it holds; none if it needs none, because the contributions travelled with the votes."""
        self.parcels: dict[PeerId, int] = {}
        """Voters whose contribution is on its way to everybody, and the numbers of their parcels."""
        self.ring: tuple[PeerId, ...] = ()
        """Participants of the attempt."""
        self.unreported: dict[PeerId, None] = {}
        self.lost: list[PeerId] = []
        self.reason = ""

    def become(self, stage: LifeStage, now: float) -> None:
        """Enter a stage; only the successors of the present one are possible."""
        assert stage in LIFE_STAGES[self.stage][1], f"tag {self.tag}: {self.stage} cannot become {stage}"
        self.stage, self.since = stage, now

    @property
    def spec(self) -> CollectiveSpec:
        """What all voted for."""
        return next(iter(self.ballot.votes.values()))

    def uses(self, link: Link) -> bool:
        """It runs over this link."""
        if self.lanes:
            return link.ends in pairs(self.ring)
        return all(end in self.ring for end in link.ends)

    def waits_for(self) -> list[PeerId]:
        """The peers whose vote or report is missing."""
        return self.ballot.missing() if self.stage is LifeStage.VOTING else list(self.unreported)

    def explain(self) -> str:
        """What this collective waits for, in words."""
        match self.stage:
            case LifeStage.VOTING:
                return self.ballot.explain()
            case LifeStage.READY:
                return f"{self.ballot.question} waits for its ring to stand and for free lanes"
            case LifeStage.RUNNING:
                return f"{self.ballot.question} runs; not finished at {names(self.unreported)}"
            case LifeStage.ABORTING:
                return (
                    f"{self.ballot.question} is being aborted ({self.reason}); not stopped at {names(self.unreported)}"
                )
            case _:
                return f"{self.ballot.question} was aborted ({self.reason}) and waits for its group to be rewired"


class Collectives:
    """All lives. `touched` holds the groups in which something may start or be told; the master advances those."""

    def __init__(self, roster: Roster, wiring: Wiring, outbox: Outbox, limits: MasterLimits) -> None:
        self.touched: dict[int, None] = {}
        self._roster = roster
        self._wiring = wiring
        self._outbox = outbox
        self._limits = limits
        self._lives: dict[int, dict[int, Life]] = {}
        self._in_flight: dict[PeerId, int] = {}

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def initiate(self, member: Member, vote: Initiate, parcel: int, now: float) -> None:
        """A vote to start. `parcel` is that of the vote, or 0 if it cannot have left to everybody."""
        tag, spec = vote.tag, vote.spec
        lives = self._lives.setdefault(member.group, {})
        life = lives.get(tag)
        if life is not None and (life.stage is not LifeStage.VOTING or member.peer in life.ballot.votes):
            raise Violation(f"initiated tag {tag} again before its outcome")
        if self.in_flight(member.peer) >= self._limits.tags_max:
            raise Violation(f"has more than {self._limits.tags_max} collectives in flight")
        if member.crosses:
            # Whoever was refused one of the calls that it made together is refused the others too. With one of them
            # open here, and another one there, two innocent callers would wait for each other for ever.
            self._outbox.send((member.peer,), RefusedCollective(tag, False, clip(member.refusal)))
            return
        if life is None:
            life = lives[tag] = self.new_life(member.group, tag, now)
        life.ballot.cast(member.peer, spec, now)
        if parcel:
            life.parcels[member.peer] = parcel
        self._in_flight[member.peer] = self.in_flight(member.peer) + 1
        self._count(life, now)

    def new_life(self, group: int, tag: int, now: float) -> Life:
        """One that nobody has voted for yet."""
        ballot = Ballot[CollectiveSpec](f"collective {tag_name(tag)}", lambda: self._roster.ring(group))
        life = Life(group, tag, ballot)
        life.since = now
        return life

    def adopt(self, life: Life, abort: str, now: float) -> None:
        """One that was started by an earlier master; it is aborted if there is a reason."""
        self._lives.setdefault(life.group, {})[life.tag] = life
        for peer in life.ballot.votes:
            self._in_flight[peer] = self.in_flight(peer) + 1
        if abort:
            self._abort(life, abort, now)
        else:
            self._check_reports(life, now)

    def report(self, member: Member, tag: int, attempt: int, cause: str | None, now: float) -> None:
        """A participant has finished its part (`cause` is None) or failed at it."""
        life = self._lives.get(member.group, {}).get(tag)
        if life is None or life.attempt != attempt or member.peer not in life.unreported:
            raise Violation(f"reported on tag {tag} attempt {attempt}, in which it has no part left")
        del life.unreported[member.peer]
        if cause is not None and life.stage is LifeStage.RUNNING:
            self._abort(life, f"failed at {short(member.peer)}: {cause}", now)
        else:
            self._check_reports(life, now)

    def lose(self, member: Member, how: str, now: float) -> None:
        """An accepted peer is gone: recount every ballot of its group and abort what needs it."""
        self._in_flight.pop(member.peer, None)
        for life in list(self._lives.get(member.group, {}).values()):
            if life.stage in (LifeStage.VOTING, LifeStage.READY):
                life.ballot.forget(member.peer)
                self._count(life, now)
            elif member.peer in life.ring:
                self._lose_participant(life, member, how, now)
        self.touched[member.group] = None

    def _lose_participant(self, life: Life, member: Member, how: str, now: float) -> None:
        life.lost.append(member.peer)
        life.unreported.pop(member.peer, None)
        if len(life.lost) == len(life.ring):
            self._discard(life, now)
        elif life.stage is LifeStage.RUNNING and life.unreported:
            self._abort(life, f"{short(member.peer)} was lost: {how}", now)
        else:
            self._check_reports(life, now)

    def break_link(self, link: Link, cause: str, now: float) -> None:
        """A link is down: nothing that runs over it can finish, and parcels that it carried may be lost."""
        for life in list(self._lives.get(link.group, {}).values()):
            if life.stage in (LifeStage.VOTING, LifeStage.READY):
                for end in link.ends:
                    life.parcels.pop(end, None)
            elif life.stage is LifeStage.RUNNING and life.uses(link):
                self._abort(life, cause, now)
        self.touched[link.group] = None

    # ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _count(self, life: Life, now: float) -> None:
        """Re-count a ballot after a vote or a death."""
        ring = self._roster.ring(life.group)
        if not life.ballot.votes:
            self._end(life, now)
        elif len(ring) < 2:
            self._refuse(life, True, "this group has no other accepted peer; wait for one with update_topology", now)
        elif (life.stage is LifeStage.READY or life.ballot.complete) and (rootless := _rootless(life.ballot, ring)):
            self._refuse(life, False, f"tag {life.tag}: {rootless}", now)
        elif life.stage is LifeStage.VOTING and life.ballot.complete:
            disagreement = _disagreement(life.ballot)
            if disagreement:
                self._refuse(life, False, f"the peers disagree on {tag_name(life.tag)}: {disagreement}", now)
            else:
                life.become(LifeStage.READY, now)
                self.touched[life.group] = None

    def _refuse(self, life: Life, too_few: bool, reason: str, now: float) -> None:
        self._outbox.send(life.ballot.votes, RefusedCollective(life.tag, too_few, clip(reason)))
        self._end(life, now)

    def refuse_contradicting(self, life: Life, reason: str, now: float) -> None:
        """Its voters wait for peers that wait in another call, and these for them."""
        voters = tuple(life.ballot.votes)
        self._refuse(life, False, reason, now)
        for voter in voters:
            member = self._roster.accepted[voter]
            member.refused_at, member.refusal = now, reason
        self._outbox.ping(voters, now)

    def advance(self, group: int, now: float) -> None:
        """Tell aborted outcomes and start ready collectives, if the group's ring stands."""
        if not self._wiring.stands(group):
            return
        lives = list(self._lives.get(group, {}).values())
        for life in lives:
            if life.stage is LifeStage.STOPPED:
                self._tell(life, False, now)
        ready = [life for life in lives if life.stage is LifeStage.READY]
        round_trip_s = self._wiring.round_trip_s(group) if ready else 0.0
        for place, life in enumerate(ready):
            if all(peer in life.parcels for peer in self._roster.ring(group)):
                self._start(life, (), now)
                continue
            free = self._free_lanes(group)
            if free:
                share = lane_share(len(free), len(ready) - place, life.spec, round_trip_s)
                self._start(life, free[:share], now)

    def _free_lanes(self, group: int) -> tuple[int, ...]:
        used = {lane for life in self.holding_lanes(group) for lane in life.lanes}
        return tuple(lane for lane in range(self._roster.lanes[group]) if lane not in used)

    def _start(self, life: Life, lanes: tuple[int, ...], now: float) -> None:
        """Start it over these lanes of its ring; without lanes, with what came along with the votes."""
        life.attempt, life.lanes, life.ring = self._roster.draw_number(), lanes, self._roster.ring(life.group)
        life.unreported = dict.fromkeys(life.ring)
        life.become(LifeStage.RUNNING, now)
        segments = segment_bytes(life.spec, len(life.ring), max(1, len(lanes)))
        parcels = () if lanes else tuple(life.parcels[peer] for peer in life.ring)
        self._outbox.send(life.ring, Start(life.tag, life.attempt, self._roster.epoch, lanes, segments, parcels))

    def _abort(self, life: Life, reason: str, now: float) -> None:
        life.reason = reason
        life.become(LifeStage.ABORTING, now)
        self._outbox.send(life.unreported, Abort(life.tag, life.attempt, clip(reason)))
        self._check_reports(life, now)

    def _check_reports(self, life: Life, now: float) -> None:
        if life.unreported:
            return
        if life.stage is LifeStage.RUNNING:
            self._tell(life, True, now)
        elif life.stage is LifeStage.ABORTING:
            life.become(LifeStage.STOPPED, now)
        self.touched[life.group] = None

    def _tell(self, life: Life, committed: bool, now: float) -> None:
        outcome = Outcome(life.tag, life.attempt, committed, clip(life.reason), tuple(life.lost))
        self._outbox.send([peer for peer in life.ring if peer in self._roster.accepted], outcome)
        self._end(life, now)

    def _discard(self, life: Life, now: float) -> None:
        """Nobody who took part is left to be told; whoever forms the group next must find the tag free."""
        if life.stage is LifeStage.RUNNING:
            life.become(LifeStage.ABORTING, now)
        if life.stage is LifeStage.ABORTING:
            life.become(LifeStage.STOPPED, now)
        self._end(life, now)

    def _end(self, life: Life, now: float) -> None:
        life.become(LifeStage.ENDED, now)
        del self._lives[life.group][life.tag]
        if not self._lives[life.group]:
            del self._lives[life.group]
        for peer in life.ballot.votes:
            if peer in self._in_flight:
                self._in_flight[peer] -= 1
        self.touched[life.group] = None

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def in_flight(self, peer: PeerId) -> int:
        """How many collectives of this peer have no outcome yet."""
        return self._in_flight.get(peer, 0)

    def lives(self) -> Iterator[Life]:
        """All that have not ended."""
        for group in self._lives.values():
            yield from group.values()

    def holding_lanes(self, group: int) -> list[Life]:
        """Those that have started and not been reported on by everybody."""
        started = (LifeStage.RUNNING, LifeStage.ABORTING)
        return [life for life in self._lives.get(group, {}).values() if life.stage in started]

    @property
    def idle(self) -> bool:
        """None is alive."""
        return not any(self._lives.values())

    def voting(self) -> list[Life]:
        """Those that wait for votes."""
        return [life for life in self.lives() if life.stage is LifeStage.VOTING]


def _disagreement(ballot: Ballot[CollectiveSpec]) -> str:
    """Who asked for what, if not all asked for the same; empty if they did."""
    sides: dict[CollectiveSpec, list[PeerId]] = {}
    for peer, spec in ballot.votes.items():
        sides.setdefault(spec, []).append(peer)
    return "; ".join(_side(spec, peers) for spec, peers in sides.items()) if len(sides) > 1 else ""


def _rootless(ballot: Ballot[CollectiveSpec], ring: Sequence[PeerId]) -> str:
    """Why a broadcast cannot run in this ring; empty if it can, or is none."""
    roots = [spec.root for spec in ballot.votes.values() if spec.kind is CollectiveKind.BROADCAST]
    strange = next((root for root in roots if root not in ring), None)
    if strange is None:
        return ""
    who = short(PeerId(strange)) if strange else "nobody"
    return f"the root of a broadcast must be in the group, and {who} is not; name one of {names(ring)}"


def _side(spec: CollectiveSpec, peers: Sequence[PeerId]) -> str:
    return f"{names(peers)} called it with {spec}"
