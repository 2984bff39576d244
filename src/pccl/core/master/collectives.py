"""All collectives, from the first vote to the one outcome, as the master sees them.

A group has one collective for each tag at a time. It starts when every member of the group has voted for it with the
same parameters, the group's ring stands, and lanes are free; then each participant reports exactly once, done or
failed. The outcome is committed if every participant that lives reported done and all have the same result, and aborted
otherwise; an aborted one is sent only when the group has been rewired, so that its callers can call again at once.
Nothing here knows how links are made or peers admitted.

Rules: docs/protocol.md, "Collectives".
"""

from collections.abc import Callable, Iterator

from pccl.core.effects.both import Note
from pccl.core.fields import CollectiveSpec
from pccl.core.master import rounds
from pccl.core.master.collective import Collective, CollectiveStage
from pccl.core.master.lanes import Lanes
from pccl.core.master.link import Link
from pccl.core.master.links import Links
from pccl.core.master.part import Common, Departure, Part, Wait
from pccl.core.master.recovery.restored import RestoredAttempt
from pccl.core.master.roster import Member
from pccl.core.master.rounds import Round
from pccl.core.messages.to_master import Done, Failed, Initiate
from pccl.core.messages.to_peer import Abort, Outcome, RefusedCollective, Start, Withdrawn
from pccl.core.rules.agreement import different_results, disagreement, rootless
from pccl.core.rules.ballot import Ballot
from pccl.core.rules.schedule import lane_share, segment_bytes, strand_count, useful_threads
from pccl.core.text import ALONE, Violation, clip
from pccl.types import PeerId, short, tag_name

LINKS_NAMED_MAX = 3
"""Links described in one sentence: enough to see a pattern, short enough to read."""


class Collectives(Part):
    """The collectives of all groups."""

    def __init__(self, common: Common, links: Links, lanes: Lanes) -> None:
        super().__init__(common)
        self.lanes = lanes
        lanes.users.append(self)
        self._touched: dict[int, None] = {}
        """Groups in which a collective may start, or the outcome of an aborted one may be sent."""
        self._links = links
        self._collectives: dict[int, dict[int, Collective]] = {}
        """By group and tag, in the order of their first votes."""
        self._in_flight: dict[PeerId, int] = {}
        self.rounds: dict[int, Round] = {}
        """The last one that each group has committed."""
        self._refused: dict[PeerId, tuple[float, str]] = {}
        """When a collective of a peer was refused for other calls that contradict it, and why."""

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def initiate(self, member: Member, vote: Initiate, parcel: int, now: float) -> None:
        """A vote to start. `parcel` is that of the vote, or 0 if it cannot have left to all peers of the group."""
        tag, spec = vote.tag, vote.spec
        tags = self._collectives.setdefault(member.group, {})
        collective = tags.get(tag)
        if collective is not None and (
            collective.stage is not CollectiveStage.VOTING or member.peer in collective.ballot.votes
        ):
            raise Violation(f"initiated tag {tag} again before its outcome")
        if self.in_flight(member.peer) >= self._limits.tags_max:
            raise Violation(f"has more than {self._limits.tags_max} collectives in flight")
        refused_at, refusal = self._refused.get(member.peer, (0.0, ""))
        if member.pulse.answered_at < refused_at:
            # It sent this vote before it received that refusal. A peer that was refused one of the calls that it made
            # together is refused the others, too: with one of them open here, and another one there, two innocent
            # callers would wait for each other for ever.
            self._outbox.send((member.peer,), RefusedCollective(tag, False, clip(refusal)))
            return
        if collective is None:
            collective = tags[tag] = self.new_collective(member.group, tag, now)
        collective.ballot.cast(member.peer, spec, now)
        if parcel:
            collective.parcels[member.peer] = parcel
        self._in_flight[member.peer] = self.in_flight(member.peer) + 1
        self._count(collective, now)

    def open_vote(self, member: Member, tag: int) -> Collective | None:
        """The collective that this peer has voted for and that has not started; None if there is none."""
        collective = self._collectives.get(member.group, {}).get(tag)
        votes = (
            collective is not None
            and collective.stage in (CollectiveStage.VOTING, CollectiveStage.READY)
            and member.peer in collective.ballot.votes
        )
        return collective if votes else None

    def withdraw(self, member: Member, tags: tuple[int, ...], explain: Callable[[Collective], str], now: float) -> None:
        """Take votes back. If one of them has started or been answered meanwhile, all go on: the peer receives that."""
        voting = [vote for tag in dict.fromkeys(tags) if (vote := self.open_vote(member, tag)) is not None]
        if len(voting) < len(tags):
            return
        awaited = max(voting, key=lambda collective: len(collective.ballot.missing()))
        missing = tuple(awaited.ballot.missing())
        self._outbox.send((member.peer,), Withdrawn(tags, missing, clip(explain(awaited))))
        for collective in voting:
            self._take_back(collective, member, now)

    def _take_back(self, collective: Collective, member: Member, now: float) -> None:
        """A vote is taken back, and the parcel that came with it; the others wait for another one."""
        collective.ballot.forget(member.peer)
        collective.parcels.pop(member.peer, None)
        self._in_flight[member.peer] -= 1
        if collective.stage is CollectiveStage.READY:
            collective.become(CollectiveStage.VOTING, now)
        self._count(collective, now)

    def new_collective(
        self, group: int, tag: int, now: float, stage: CollectiveStage = CollectiveStage.VOTING
    ) -> Collective:
        """One without votes."""
        ballot = Ballot[CollectiveSpec](f"collective {tag_name(tag)}", lambda: self._roster.ring(group))
        collective = Collective(group, tag, ballot, stage)
        collective.since = now
        return collective

    def adopt(self, restored: RestoredAttempt, now: float) -> None:
        """A collective that an earlier master started; it is aborted if there is a reason."""
        voters = tuple(restored.votes)
        collective = self.new_collective(
            self._roster.accepted[voters[0]].group, restored.tag, now, CollectiveStage.RUNNING
        )
        collective.attempt, collective.lanes = restored.attempt, restored.lanes
        collective.ring, collective.lost = (*voters, *restored.lost), list(restored.lost)
        collective.unreported, collective.digests = dict.fromkeys(restored.unreported), dict(restored.digests)
        for peer, spec in restored.votes.items():
            collective.ballot.cast(peer, spec, now)
        self._collectives.setdefault(collective.group, {})[collective.tag] = collective
        for peer in collective.ballot.votes:
            self._in_flight[peer] = self.in_flight(peer) + 1
        if restored.abort:
            self._abort(collective, restored.abort, now)
        else:
            self._check_reports(collective, now)

    def report(self, member: Member, report: Done | Failed, now: float) -> None:
        """A participant has finished its part or failed at it."""
        collective = self._collectives.get(member.group, {}).get(report.tag)
        if collective is None or collective.attempt != report.attempt or member.peer not in collective.unreported:
            raise Violation(f"reported on tag {report.tag} attempt {report.attempt}, in which it has no part left")
        del collective.unreported[member.peer]
        if isinstance(report, Done):
            collective.digests[member.peer] = report.digest
            self.lanes.add(member, report.flow)
            self._check_reports(collective, now)
        elif collective.stage is CollectiveStage.RUNNING:
            self.lanes.spoil(member.group)
            self._abort(collective, f"failed at {short(member.peer)}: {report.cause}", now)
        else:
            self._check_reports(collective, now)

    def forget_refusal(self, peer: PeerId) -> None:
        """This peer came back and repeats its votes: which of them it sent before it received a refusal is not known
        any more, so all of them count."""
        self._refused.pop(peer, None)

    def lose(self, gone: Departure) -> None:
        """Recount every ballot of the group of an accepted peer that is gone, and abort what needs it."""
        if not gone.accepted:
            return
        member, now = gone.member, gone.now
        if not self._roster.ring(member.group):
            self.rounds.pop(member.group, None)
        self._refused.pop(member.peer, None)
        self._in_flight.pop(member.peer, None)
        for collective in list(self._collectives.get(member.group, {}).values()):
            if collective.stage in (CollectiveStage.VOTING, CollectiveStage.READY):
                collective.ballot.forget(member.peer)
                self._count(collective, now)
            elif member.peer in collective.ring:
                self._lose_participant(collective, gone)
        self._touched[member.group] = None

    def _lose_participant(self, collective: Collective, gone: Departure) -> None:
        collective.lost.append(gone.peer)
        collective.unreported.pop(gone.peer, None)
        collective.digests.pop(gone.peer, None)
        if len(collective.lost) == len(collective.ring):
            self._end(collective, gone.now)  # The next members of the group must find the tag free.
        elif collective.stage is CollectiveStage.RUNNING and collective.unreported:
            self._abort(collective, f"{short(gone.peer)} was lost: {gone.how}", gone.now)
        else:
            self._check_reports(collective, gone.now)

    def break_link(self, link: Link, cause: str, now: float) -> None:
        """A link is down: nothing that runs over it can finish, and parcels that it carried may be lost."""
        for collective in list(self._collectives.get(link.group, {}).values()):
            if collective.stage is CollectiveStage.RUNNING and collective.uses(link):
                self._abort(collective, cause, now)
        self.remade(link)

    def remade(self, link: Link) -> None:
        """Parcels that were on their way over it are lost."""
        for collective in self._collectives.get(link.group, {}).values():
            if collective.stage in (CollectiveStage.VOTING, CollectiveStage.READY):
                for end in link.ends:
                    collective.parcels.pop(end, None)
        self._touched[link.group] = None

    # ── transitions ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _count(self, collective: Collective, now: float) -> None:
        """Re-count a ballot after a vote or a death."""
        ring = self._roster.ring(collective.group)
        if not collective.ballot.votes:
            self._end(collective, now)
        elif len(ring) < 2:
            self._refuse(collective, True, ALONE, now)
        elif (collective.stage is CollectiveStage.READY or collective.ballot.complete) and (
            strange := rootless(collective.ballot.votes.values(), ring)
        ):
            self._refuse(collective, False, f"tag {collective.tag}: {strange}", now)
        elif collective.stage is CollectiveStage.VOTING and collective.ballot.complete:
            sides = disagreement(collective.ballot.votes)
            if sides:
                self._refuse(collective, False, f"the peers disagree on {tag_name(collective.tag)}: {sides}", now)
            else:
                collective.become(CollectiveStage.READY, now)
                self._touched[collective.group] = None

    def _refuse(self, collective: Collective, too_few: bool, reason: str, now: float) -> None:
        self._outbox.send(collective.ballot.votes, RefusedCollective(collective.tag, too_few, clip(reason)))
        self._end(collective, now)

    def refuse_contradicting(self, collective: Collective, reason: str, now: float) -> None:
        """Its voters wait for peers that wait in another call, and these for them."""
        voters = tuple(collective.ballot.votes)
        self._refuse(collective, False, reason, now)
        for voter in voters:
            self._refused[voter] = now, reason
        self._outbox.ping(voters, now)

    def advance(self, now: float) -> bool:
        """Look at the groups in which a collective may start, or an aborted outcome may be sent."""
        self._touched.update(self._links.take_settled())
        while self._touched:
            group, _ = self._touched.popitem()
            self._advance(group, now)
        return False

    def _advance(self, group: int, now: float) -> None:
        """Send aborted outcomes and start ready collectives, if the group's ring stands."""
        if not self._links.stands(group):
            return
        collectives = list(self._collectives.get(group, {}).values())
        for collective in collectives:
            if collective.stage is CollectiveStage.STOPPED:
                self._send_outcome(collective, False, now)
        ready = [collective for collective in collectives if collective.stage is CollectiveStage.READY]
        round_trip_s = self._links.round_trip_s(group) if ready else 0.0
        for place, collective in enumerate(ready):
            if all(peer in collective.parcels for peer in self._roster.ring(group)):
                self._start(collective, (), now)
                continue
            free = self._free_lanes(group)
            if free:
                threads = self._threads(collective)
                share = lane_share(len(free), len(ready) - place, collective.spec, round_trip_s, threads)
                self._start(collective, free[:share], now)

    def _free_lanes(self, group: int) -> tuple[int, ...]:
        used = {lane for collective in self.holding_lanes(group) for lane in collective.lanes}
        return tuple(lane for lane in range(self._links.ring_lanes(group)) if lane not in used)

    def _threads(self, collective: Collective) -> int:
        """That work for it at each peer: as many as all of them have, and it is worth."""
        ring = self._roster.ring(collective.group)
        return useful_threads(collective.spec, len(ring), min(self._roster.accepted[peer].threads for peer in ring))

    def _start(self, collective: Collective, lanes: tuple[int, ...], now: float) -> None:
        """Start it over these lanes of its ring; without lanes, with what came along with the votes."""
        collective.attempt, collective.lanes = self._roster.draw_number(), lanes
        collective.ring = self._roster.ring(collective.group)
        collective.unreported = dict.fromkeys(collective.ring)
        collective.become(CollectiveStage.RUNNING, now)
        self._links.use(collective.group, now)
        self.lanes.begin(collective.group, now)
        round_trip_s = self._links.round_trip_s(collective.group)
        segments = segment_bytes(collective.spec, len(collective.ring), max(1, len(lanes)), round_trip_s)
        parcels = () if lanes else tuple(collective.parcels[peer] for peer in collective.ring)
        attempt = (collective.tag, collective.attempt, self._roster.epoch)
        last = next(reversed(collective.ballot.votes))
        pending = bool(self._roster.ready(now))
        strands = strand_count(self._threads(collective), len(lanes), round_trip_s)
        self._outbox.send(collective.ring, Start(*attempt, lanes, segments, parcels, last, pending, strands))

    def _abort(self, collective: Collective, reason: str, now: float) -> None:
        collective.reason = reason
        collective.become(CollectiveStage.ABORTING, now)
        self._outbox.send(collective.unreported, Abort(collective.tag, collective.attempt, clip(reason)))
        self._check_reports(collective, now)

    def _check_reports(self, collective: Collective, now: float) -> None:
        if collective.unreported:
            return
        if collective.stage is CollectiveStage.RUNNING:
            difference = different_results(collective.digests)
            if difference:
                self._outbox.note(Note(f"{collective.ballot.question}: {difference}", "results differ", warns=True))
                self._abort(collective, difference, now)
                return
            self._send_outcome(collective, True, now)
        elif collective.stage is CollectiveStage.ABORTING:
            collective.become(CollectiveStage.STOPPED, now)
        self._touched[collective.group] = None

    def _send_outcome(self, collective: Collective, committed: bool, now: float) -> None:
        outcome = Outcome(
            collective.tag, collective.attempt, committed, clip(collective.reason), tuple(collective.lost)
        )
        self._outbox.send([peer for peer in collective.ring if peer in self._roster.accepted], outcome)
        if committed:
            before = self.rounds.get(collective.group)
            number = 1 if before is None else before.number + 1
            self.rounds[collective.group] = rounds.committed(collective, number, now)
        self._end(collective, now)

    def _end(self, collective: Collective, now: float) -> None:
        collective.become(CollectiveStage.ENDED, now)
        del self._collectives[collective.group][collective.tag]
        if not self._collectives[collective.group]:
            del self._collectives[collective.group]
        for peer in collective.ballot.votes:
            if peer in self._in_flight:
                self._in_flight[peer] -= 1
        self._touched[collective.group] = None

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def in_flight(self, peer: PeerId) -> int:
        """How many collectives of this peer have no outcome yet."""
        return self._in_flight.get(peer, 0)

    def moves(self, group: int) -> bool:
        """One of the group has started, and has no outcome yet."""
        waits = (CollectiveStage.VOTING, CollectiveStage.READY)
        return any(collective.stage not in waits for collective in self._collectives.get(group, {}).values())

    def open(self) -> Iterator[Collective]:
        """All that have not ended."""
        for group in self._collectives.values():
            yield from group.values()

    def holding_lanes(self, group: int) -> list[Collective]:
        """Those that have started and on which a participant has not reported."""
        started = (CollectiveStage.RUNNING, CollectiveStage.ABORTING)
        return [collective for collective in self._collectives.get(group, {}).values() if collective.stage in started]

    def waits(self) -> list[Wait]:
        """The callers of each."""
        return [
            Wait(
                tuple(collective.ballot.votes),
                self._explain(collective),
                collective.since,
                tag_name(collective.tag),
                tuple(collective.waits_for()),
                works=collective.stage is CollectiveStage.RUNNING,
            )
            for collective in self.open()
        ]

    def _explain(self, collective: Collective) -> str:
        reasons = [collective.explain()]
        if collective.stage in (CollectiveStage.READY, CollectiveStage.STOPPED):
            reasons += [link.explain() for link in self._links.missing(collective.group)[:LINKS_NAMED_MAX]]
        if collective.stage is CollectiveStage.READY:
            reasons += [other.explain() for other in self.holding_lanes(collective.group)[:1]]
        return "; ".join(reasons)

    def waited_for(self) -> Iterator[PeerId]:
        """The peers whose vote or report is missing."""
        for collective in self.open():
            yield from collective.waits_for()

    def voting(self) -> list[Collective]:
        """Those that wait for votes."""
        return [collective for collective in self.open() if collective.stage is CollectiveStage.VOTING]
