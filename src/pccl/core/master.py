"""The master's decisions: `handle(event, now)` takes what happened and returns what to do about it.

Owns the dispatch of events, the pending question and the departure of peers; the rest is delegated: who is here
(`roster`), who is without a connection (`absentees`), what an earlier master has left behind (`reunion`), votes and
trial (`admission`), links (`wiring`), collectives (`collectives`), shared states (`syncs`), visitors (`visits`),
silence (`liveness`), contradicting calls (`divergence`) and the words for every wait (`waits`). A message is checked
first and changes state after; one that breaks the protocol gets its sender kicked with the reason and hurts nobody
else.
"""

from pccl.core.absentees import Absentees
from pccl.core.admission import Admission, Expulsion
from pccl.core.ballot import Ballot
from pccl.core.collectives import Collectives
from pccl.core.divergence import OpenCall, contradicting, describe
from pccl.core.effects import Closed, MasterEffect, MasterEvent, Received, Tick
from pccl.core.election import Claim
from pccl.core.limits import LATE_S, MasterLimits
from pccl.core.liveness import Liveness
from pccl.core.messages import (
    AskPending,
    CollectiveSpec,
    Done,
    Elsewhere,
    Failed,
    Fetch,
    Initiate,
    Join,
    Kick,
    Leave,
    LinkDown,
    LinkUp,
    PendingAnswer,
    Ping,
    Pong,
    Recall,
    RefusedPending,
    RefusedTopology,
    Resume,
    SyncEnded,
    SyncState,
    ToMaster,
    VoteTopology,
    Welcome,
)
from pccl.core.outbox import Outbox, clip
from pccl.core.reunion import Reunion
from pccl.core.roster import Member, Roster
from pccl.core.syncs import Syncs
from pccl.core.violation import Violation
from pccl.core.visits import VISITORS_MAX, Visits
from pccl.core.waits import Waits
from pccl.core.wiring import Link, Wiring
from pccl.types import PeerId, short

_NO_RUN = (
    "this master has no run; one begins at the first address, when all others have none or do not answer. If there is "
    "no master at the first, start it, or name this one first"
)


class Master:
    """Decides who is in and which collective runs. It never sees a tensor."""

    def __init__(self, run: str, limits: MasterLimits, follows: bool = False) -> None:
        """`follows`: there may have been another master at this address, whose peers come back."""
        self.name = run
        """Of this master alone, and another one whenever a run comes back to it, or ends: whoever was with it before
        has to be told what happened since, and does not go on as if only its connection had broken."""
        self.run = self._first_run = run
        """Chosen for the first of its masters; the next ones take it over."""
        self.limits = limits
        self.roster = Roster()
        self.outbox = Outbox(self.roster)
        self.wiring = Wiring(self.roster, self.outbox, limits)
        self.admission = Admission(self.roster, self.wiring, self.outbox, limits)
        self.collectives = Collectives(self.roster, self.wiring, self.outbox, limits)
        self.syncs = Syncs(self.roster, self.admission, self.outbox, limits)
        self.visits = Visits(self.roster, self.admission, self.syncs, self.outbox, limits)
        self.liveness = Liveness(self.roster, self.outbox, limits)
        self.pending = Ballot[None]("are_peers_pending", lambda: self.roster.accepted)
        self.reunion = Reunion(self)
        self.absentees = Absentees(self)
        self.waits = Waits(self)
        self.follows = follows
        self.born_at: float | None = None
        """When the first thing happened to it."""
        self._watch_at: float | None = None

    # ── the interface ────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: MasterEvent, now: float) -> list[MasterEffect]:
        """Take an event, return the effects to carry out in order."""
        self._excuse_ourselves(now)
        if self.born_at is None:
            self.born_at = now
            self.admission.begin_at = now + self.limits.newborn_s if self.follows else 0.0
        match event:
            case Received():
                self._receive(event, now)
            case Closed():
                member = self.roster.find(event.connection)
                if member is not None:
                    self.absentees.begin(member, event.cause, now)
            case Tick():
                self._pass_time(now)
        self._progress(now)
        self._watch(now)
        return self.outbox.take()

    def next_deadline(self) -> float | None:
        """When `Tick` is due."""
        parts = (self.wiring, self.syncs, self.visits, self.reunion, self.absentees, self.admission)
        dates = (*(part.next_deadline() for part in parts), self._watch_at)
        deadlines = [each for each in dates if each is not None]
        return min(deadlines, default=None)

    def explain(self) -> tuple[str, ...]:
        """What the run waits for, and on whom; empty when nobody waits."""
        return tuple(wait.sentence for wait in self.waits.all())

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, event: Received, now: float) -> None:
        member = self.roster.find(event.connection)
        if member is None:
            self._greet(event, now)
            return
        member.session.hear(event.message)
        try:
            self._dispatch(member, event.message, now)
        except Violation as violation:
            self.expel(member, f"it broke the protocol: {violation}", now)

    def _greet(self, event: Received, now: float) -> None:
        """The first message of a connection; anything else on an unknown one is the tail of one just closed."""
        join = event.message
        if isinstance(join, Resume):
            self.reunion.greet(join, event.connection, event.host, now)
            return
        if not isinstance(join, Join):
            self.outbox.close(event.connection)
            return
        hopeless = self.reunion.holds_off(now) and not join.visits
        if hopeless or not (join.begin or len(self.roster) or self.reunion.gathering):
            self.outbox.send_connection(event.connection, Elsewhere(_NO_RUN))
            self.outbox.close(event.connection)
            return
        self._replace(join, now)
        reason = self._objection(join)
        if reason:
            self.outbox.send_connection(event.connection, Kick(reason))
            self.outbox.close(event.connection)
            return
        member = Member(PeerId(join.peer), join.group, event.connection, (join.host or event.host, join.port))
        member.lanes, member.serves, member.secret = join.lanes, join.serves, join.secret
        member.joined_at, member.begins = now, join.begin
        if join.visits:
            self.roster.add_visitor(member)
            self.visits.arrive(member, now)
        else:
            self.roster.add_candidate(member, self.limits.default_lanes)
        self.outbox.send((member.peer,), Welcome(self.run, self.limits.tags_max, self.name))

    def _replace(self, join: Join, now: float) -> None:
        """Whoever joins anew has lost its connection before it heard that it was accepted."""
        other = self.roster.member(PeerId(join.peer))
        if other is not None and join.secret and other.secret == join.secret:
            self.outbox.close(other.connection)
            self.remove(other, "it joined anew on another connection", now)

    def _objection(self, join: Join) -> str:
        """Why this peer cannot even be a candidate; empty if it can."""
        if self.roster.member(PeerId(join.peer)) is not None:
            return f"a peer with the id {join.peer} is already connected; every Communicator draws its own"
        if not join.visits and len(self.roster) >= self.limits.peers_max:
            return f"the run is full: {self.limits.peers_max} peers (peers_max of the master)"
        if join.visits and len(self.roster.visitors) >= VISITORS_MAX:
            return f"{VISITORS_MAX} visitors are here already; come later, or connect without prefetch_shared_state"
        lanes = self.roster.lanes.get(join.group)
        if lanes is not None and join.lanes not in (0, lanes):
            return (
                f"group {join.group} uses {lanes} lanes per neighbour and you ask for {join.lanes}; "
                "set p2p_connection_pool_size alike on all peers, or leave it at 0"
            )
        return ""

    def _dispatch(self, member: Member, message: ToMaster, now: float) -> None:
        if member.peer in self.roster.returning:
            self.reunion.hear(member, message, now)
            return
        match message:
            case Ping():
                self.outbox.send((member.peer,), Pong())
            case Pong():
                member.answer(now, self.limits.link_timeout_s / 2)
            case LinkUp(link=link, round_trip_us=round_trip_us):
                self.wiring.report_up(member.peer, link, round_trip_us, now)
                self.collectives.touched[member.group] = None
            case LinkDown(link=link, cause=cause):
                self._break_link(member, link, cause, now)
            case Leave():
                self.remove(member, "it said goodbye", now)
                self.outbox.close(member.connection)
            case Recall(last=last) if member.recalls:
                member.recalls = not last
            case Join() | Resume() | Recall():
                raise Violation("joined twice on one connection")
            case Fetch():
                self.visits.fetch(member, now)
            case _:
                self._dispatch_accepted(member, message, now)

    def _dispatch_accepted(self, member: Member, message: ToMaster, now: float) -> None:
        """What only accepted peers may say."""
        if member.peer not in self.roster.accepted:
            raise Violation(f"sent {type(message).__name__} before it was accepted")
        voted = member.peer in self.admission.ballot.votes
        if isinstance(message, VoteTopology | Initiate) and self.syncs.concerns(member.peer):
            raise Violation(f"sent {type(message).__name__} inside sync_shared_state")
        match message:
            case VoteTopology():
                if voted or self.collectives.in_flight(member.peer) or member.peer in self.pending.votes:
                    raise Violation("voted for a topology twice, or while other calls of its own are open")
                self.admission.ballot.cast(member.peer, None, now)
            case AskPending():
                if voted or member.peer in self.pending.votes:
                    raise Violation("asked for pending peers twice, or inside update_topology")
                self.pending.cast(member.peer, None, now)
            case Initiate():
                if voted:
                    raise Violation("initiated a collective inside update_topology")
                # A link that was remade stands only after this peer has said so, which is after it could use it: so a
                # parcel that was sent before this vote went over the links that stand now, or the vote comes without.
                arrives = self.wiring.reaches_all(member.peer, self.roster.ring(member.group))
                self.collectives.initiate(member, message, message.parcel if arrives else 0, now)
            case SyncState():
                if voted or self.collectives.in_flight(member.peer):
                    raise Violation("called sync_shared_state while other calls of its own are open")
                self.syncs.vote(member, message, now)
            case SyncEnded(attempt=attempt, cause=cause):
                self.syncs.report(member, attempt, cause)
            case Done(tag=tag, attempt=attempt):
                self.collectives.report(member, tag, attempt, None, now)
            case Failed(tag=tag, attempt=attempt, cause=cause):
                self.collectives.report(member, tag, attempt, cause, now)

    def _break_link(self, member: Member, number: int, cause: str, now: float) -> None:
        link = self.wiring.report_down(member.peer, number, cause, now)
        if link is not None:
            self._stop_runs(link, f"a link broke at {short(member.peer)}: {cause}", now)

    def _stop_runs(self, link: Link, cause: str, now: float) -> None:
        """A link is down, over which collectives may run; none does over a visitor's."""
        if not any(peer in self.roster.visitors for peer in link.ends):
            self.collectives.break_link(link, cause, now)

    # ── departures ───────────────────────────────────────────────────────────────────────────────────────────────────

    def expel(self, member: Member, reason: str, now: float) -> None:
        """Kick an accepted peer or refuse a candidate; either way it learns why."""
        self.outbox.send((member.peer,), Kick(clip(reason)))
        self.outbox.close(member.connection)
        self.remove(member, f"the master kicked it: {reason}", now)

    def remove(self, member: Member, how: str, now: float) -> None:
        """Somebody is gone: leave every ballot, ring, trial and collective without it."""
        accepted, kind = member.peer in self.roster.accepted, self.roster.kind(member.peer)
        self.roster.remove(member)
        self.wiring.forget(member.peer)
        self.admission.forget(member)
        self.pending.forget(member.peer)
        self.visits.forget(member, now)
        self.reunion.forget(member, how)
        self.absentees.forget(member)
        kind = f"epoch {self.roster.epoch}:" if accepted else kind
        self.outbox.note(f"{kind} {short(member.peer)} is gone: {how}; {len(self.roster.accepted)} peers")
        if accepted:
            self.admission.close_ring(member.group)
            self.admission.push()
            self.collectives.lose(member, how, now)
            self.syncs.lose(member, now)
            if not self.roster.accepted:
                self._end_run(now)
        self.admission.rewire(member.group, now)

    def _end_run(self, now: float) -> None:
        """Nobody is left. What begins here next is another run, and those of this one may come back and go on."""
        self.admission.suspend(now, now)
        self.reunion.note_end()
        self.name = self.run = f"{self._first_run}_{self.roster.epoch}"
        outside = (*self.roster.candidates, *self.roster.visitors)
        self.outbox.send(outside, Welcome(self.run, self.limits.tags_max, self.name))

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _progress(self, now: float) -> None:
        """Do whatever the last event made possible."""
        self.reunion.advance(now)
        while self.absentees.advance(now) or self._judge(now) or self.admission.advance(now):
            # Another ring may stand already, over links that were spare before: no report will come to say so.
            self.collectives.touched.update(dict.fromkeys(self.roster.rings))
        if self.pending.complete:
            self.outbox.send(self.pending.votes, PendingAnswer(bool(self.roster.candidates), self.roster.draw_number()))
            self.pending.clear()
        self.syncs.advance(now)
        self.visits.advance(now)
        self._refuse_contradicting(now)
        while self.collectives.touched:
            group, _ = self.collectives.touched.popitem()
            self.collectives.advance(group, now)
        self.wiring.flush()

    def _judge(self, now: float) -> bool:
        verdict = self.admission.judge(now)
        if isinstance(verdict, Expulsion):
            self.expel(verdict.member, verdict.reason, now)
        return bool(verdict)

    def _refuse_contradicting(self, now: float) -> None:
        """Answer calls that can never complete together with an error that names who waits for what."""
        topology, syncs = self.admission.ballot, self.syncs.voting()
        if self.admission.trial is not None or not (topology.votes or syncs):
            return
        lives = self.collectives.voting()
        if not lives and not self.pending.votes and not (topology.votes and syncs):
            return
        # Only a collective of a group that has voters in an exclusive ballot can miss one of them.
        exclusive: list[Ballot[None] | Ballot[Claim]] = [topology, *syncs]
        groups = dict.fromkeys(self.roster.accepted[voter].group for ballot in exclusive for voter in ballot.votes)
        lives = [life for life in lives if life.group in groups]
        ballots: list[Ballot[None] | Ballot[CollectiveSpec] | Ballot[Claim]] = [
            *exclusive,
            self.pending,
            *(life.ballot for life in lives),
        ]
        calls = [OpenCall(each.question, each in exclusive, each.votes, each.missing()) for each in ballots]
        wrong = contradicting(calls)
        reason = clip(describe(wrong))
        refused = [ballot for ballot, call in zip(ballots, calls, strict=True) if call in wrong]
        if topology in refused:
            self.outbox.send(topology.votes, RefusedTopology(reason))
            topology.clear()
        if self.pending in refused:
            self.outbox.send(self.pending.votes, RefusedPending(reason))
            self.pending.clear()
        for ballot in syncs:
            if ballot in refused:
                self.syncs.refuse_contradicting(ballot, reason, now)
        for life in lives:
            if life.ballot in refused:
                self.collectives.refuse_contradicting(life, reason, now)

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _excuse_ourselves(self, now: float) -> None:
        """If we missed a deadline by far we stood still, and what others said meanwhile is still unread."""
        deadline = self.next_deadline()
        missed_s = now - deadline if deadline is not None else 0.0
        if missed_s > LATE_S:
            self.wiring.excuse(missed_s)
            self.visits.excuse(missed_s)
            self.reunion.excuse(missed_s)
            self.absentees.excuse(missed_s)
            self.admission.excuse(missed_s)
            self.liveness.excuse(now)
            self._watch_at = None

    def _pass_time(self, now: float) -> None:
        for link in self.wiring.pass_time(now):
            self._stop_runs(link, link.explain(), now)
        for member in self.visits.overdue(now):
            self.expel(member, f"it visits and asked for nothing within {self.limits.link_timeout_s:g} s", now)
        if self._watch_at is not None and self._watch_at <= now:
            for member in self.liveness.watch(self._waited_for(), now):
                limit, waited = self.liveness.limit(member), member.peer not in self.roster.visitors
                self.expel(member, f"it answered nothing for {limit:g} s" + " while others waited for it" * waited, now)

    def _watch(self, now: float) -> None:
        """Look again in a while if anybody waits; say for what if they have waited long."""
        if self._watch_at is not None and self._watch_at <= now:
            self._watch_at = None
            self.waits.tell(now)
        if self._watch_at is None and self._anybody_waits():
            self._watch_at = now + self._watch_interval()

    def _watch_interval(self) -> float:
        return min(self.liveness.interval_s, self.limits.explain_after_s)

    def _anybody_waits(self) -> bool:
        return bool(
            self.admission.ballot.votes
            or self.roster.candidates
            or self.roster.returning
            or self.pending.votes
            or not self.collectives.idle
            or self.syncs.all()
            or self.roster.visitors  # for their places
            or not self.wiring.complete
            or self.absentees.next_deadline() is not None  # So that we notice if we stand still meanwhile ourselves.
        )

    def _waited_for(self) -> dict[PeerId, None]:
        """Everybody whose next message somebody waits for, and visitors, whose place somebody may want."""
        waited: dict[PeerId, None] = dict.fromkeys(self.roster.visitors)
        if self.admission.trial is None and (self.admission.ballot.votes or self.roster.candidates):
            # Candidates wait for votes even before the first accepted peer has cast one.
            waited.update(dict.fromkeys(self.roster.accepted))
            for voter in self.admission.ballot.votes:
                del waited[voter]
        waited.update(dict.fromkeys(self.pending.missing()))
        waited.update(dict.fromkeys(self.syncs.waited_for()))
        for life in self.collectives.lives():
            waited.update(dict.fromkeys(life.waits_for()))
        for link in self.wiring.all_missing():
            waited.update(dict.fromkeys(peer for peer in link.ends if peer not in link.up))
        return waited
