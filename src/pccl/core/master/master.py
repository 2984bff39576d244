"""The master's decisions: `handle(event, now)` takes what happened and returns what to do about it.

Owns the dispatch of events and the departure of peers; the rest is delegated to parts, each of which owns one subject
(`part`): who may come in (`arrivals`), who is without a connection (`away`), what an earlier master has left behind
(`gathering`), votes and trial (`admission`), links (`links`), collectives, shared states (`syncs`), visitors
(`visits`), `are_peers_pending` (`pending`), calls that contradict each other (`refusals`), silence (`liveness`). A
message is checked first and changes state after; one that breaks the protocol gets its sender kicked with the reason
and costs no other peer anything.
"""

from msgspec import structs

from pccl.core.effects.both import Note, Tick
from pccl.core.effects.master import Close, Closed, DialledBack, Exceeded, MasterEffect, MasterEvent, Received, Revoked
from pccl.core.fields import KickKind
from pccl.core.limits import LATE_S, MasterLimits
from pccl.core.master.admission import Admission
from pccl.core.master.arrivals import Arrivals
from pccl.core.master.candidates import Candidates
from pccl.core.master.collectives import Collectives
from pccl.core.master.lanes import Lanes
from pccl.core.master.link import Link
from pccl.core.master.links import Links
from pccl.core.master.liveness import Liveness
from pccl.core.master.observers import Observers
from pccl.core.master.operators import Operators
from pccl.core.master.outbox import Outbox
from pccl.core.master.part import Common, Departure, Lead, Part, those_with
from pccl.core.master.pending import Pending
from pccl.core.master.recovery.away import Away
from pccl.core.master.recovery.gathering import Gathering
from pccl.core.master.recovery.restored import Restored
from pccl.core.master.refusals import Refusals
from pccl.core.master.roster import Member, MemberStage, Roster
from pccl.core.master.sync import Syncs
from pccl.core.master.tickets import NO_KEYS, Keys
from pccl.core.master.visits import Visits
from pccl.core.master.waits import Waits
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.observers import AskProbe, AskStatus, KickPeer
from pccl.core.messages.report import Correction, ReportPart
from pccl.core.messages.to_master import (
    AskPending,
    Done,
    Failed,
    Fetch,
    Initiate,
    Join,
    Leave,
    LinkDown,
    LinkUp,
    Resume,
    SyncEnded,
    SyncState,
    ToMaster,
    VoteTopology,
    Withdraw,
)
from pccl.core.messages.to_peer import Kick
from pccl.core.text import Violation, clip, names
from pccl.types import count_peers, short


class Master:
    """Decides who is in and which collective runs. It never sees a tensor."""

    def __init__(
        self,
        run: str,
        limits: MasterLimits,
        follows: bool = False,
        release: str = "",
        keys: Keys = NO_KEYS,
    ) -> None:
        """`follows`: there may have been another master at this address, whose peers come back."""
        self.lead = Lead(run, follows, release, keys)
        self.limits = limits
        self.roster = Roster()
        self.outbox = Outbox(self.roster)
        common = Common(self.roster, self.outbox, limits, self.lead, self)
        self.links = Links(common, keys.link)
        self.candidates = Candidates(common)
        self.admission = Admission(common, self.links, self.candidates)
        self.pending = Pending(common)
        self.lanes = Lanes(common, self.admission)
        self.syncs = Syncs(common, self.admission, self.lanes)
        self.visits = Visits(common, self.admission, self.syncs)
        self.collectives = Collectives(common, self.links, self.lanes)
        self.away = Away(common, self.links, self.collectives)
        self.gathering = Gathering(common, self.admission, self.away)
        self.arrivals = Arrivals(common, self.admission, self.visits, self.away, self.gathering)
        self.liveness = Liveness(common)
        self.operators = Operators(common)
        self._parts: tuple[Part, ...] = (
            self.arrivals,
            self.candidates,
            self.candidates.parties,
            self.gathering,
            self.away,
            self.links,
            self.admission,
            self.pending,
            self.syncs,
            self.visits,
            Refusals(common, self.admission, self.pending, self.syncs, self.collectives),
            self.lanes,
            self.collectives,
            self.liveness,
        )
        """In the order in which they may go on: who is here, then what can begin with them."""
        self._advancing, self._dated = those_with(self._parts, "advance"), those_with(self._parts, "next_deadline")
        self._waits = Waits(self._parts, self.outbox, limits)
        self._observers = Observers(self.roster, self.lead, self.links, self.collectives, self._waits)
        self._new = True
        """Nothing has happened to it yet."""
        self._deadline: float | None = None
        """When `Tick` is due, as of the last event."""
        self._concerns_one = False
        """What is done at the moment follows from one peer's message alone, not from the state of all."""

    # ── the interface ────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: MasterEvent, now: float) -> list[MasterEffect]:
        """Take an event, return the effects to carry out in order. One of an observer changes nothing here."""
        if isinstance(event, DialledBack):
            return self._observers.dialled(event)
        if isinstance(event, Received) and self._is_observer(event):
            return self._observers.answer(event, now)
        if isinstance(event, Closed) and self.roster.find(event.connection) is None:
            return []  # Of an observer. What is due by now is for the next `Tick`.
        self.outbox.now = now
        self._make_up_for_standstill(now)
        if self._new:
            self._new, self._observers.born_at = False, now
            self.admission.begin_at = now + self.limits.newborn_s if self.lead.follows else 0.0
        self._concerns_one = True
        match event:
            case Received():
                self._receive(event, now)
            case Closed() if (member := self.roster.find(event.connection)) is not None:
                self._disconnect(member, event.cause, now)
            case Exceeded() | Revoked():
                self._exceed(event, now)
            case Tick():
                self._pass_time(now)
        self._concerns_one = False
        return self._progress(now)

    def contain(self, event: MasterEvent, now: float) -> list[MasterEffect]:
        """`handle` has raised, by a mistake of ours. If that was at the message of one member, it loses its place:
        `remove` takes it out of every part, and so what the message had begun. What was sent before stays sent, since
        its receivers count it. Raises if that fails too, or if it was at something that concerns all: then nothing
        here can be trusted."""
        member = None if isinstance(event, Tick | DialledBack) else self.roster.find(event.connection)
        if isinstance(event, Received) and self._is_observer(event):
            return [Close(event.connection)]
        if not self._concerns_one or member is None:
            raise RuntimeError(f"{type(event).__name__}: it is not known what is left as it should be")
        reason = "the master failed at a message of this peer; its log says why"
        self.expel(member, Kick(KickKind.PROTOCOL, reason), now)
        return self._progress(now)

    def _is_observer(self, event: Received) -> bool:
        return isinstance(event.message, AskStatus | AskProbe) and self.roster.find(event.connection) is None

    def is_member(self, connection: int) -> bool:
        """True if this is the connection of an accepted peer."""
        member = self.roster.find(connection)
        return member is not None and member.peer in self.roster.accepted

    def next_deadline(self) -> float | None:
        """When `Tick` is due."""
        return self._deadline

    def explain(self) -> tuple[str, ...]:
        """What the run waits for, and on whom; empty when no peer waits."""
        return tuple(clip(self.outbox.spell(wait.sentence)) for wait in self._waits.all())

    def _disconnect(self, member: Member, cause: str, now: float) -> None:
        """A connection ended without a goodbye."""
        if member.peer in self.roster.accepted:
            self.away.begin(member, cause, now)
        elif not self.gathering.disconnect(member, cause):
            self.outbox.close(member.connection)
            self.remove(Departure(member, f"its connection closed ({cause})", now))

    def _exceed(self, event: Exceeded | Revoked, now: float) -> None:
        member = self.roster.find(event.connection)
        if member is None:
            self.outbox.close(event.connection)
        else:
            self.expel(member, event.kick, now)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, event: Received, now: float) -> None:
        member = self.roster.find(event.connection)
        if member is None:
            if isinstance(event.message, KickPeer):
                self.operators.kick(event, event.message, now)
            else:
                self.arrivals.greet(event, now)
            return
        member.session.receive(event.message)
        try:
            self._dispatch(member, event.message, now)
        except Violation as violation:
            self.expel(member, Kick(KickKind.PROTOCOL, f"it broke the protocol: {violation}"), now)

    def _dispatch(self, member: Member, message: ToMaster, now: float) -> None:
        match message:
            case Ping():
                self.outbox.send((member.peer,), Pong())
            case Pong():
                member.pulse.answer(now, self.limits.link_timeout_s / 2)
            case Leave():
                self.away.leave(member, now)
            case ReportPart(last=last) if member.repeats_report:
                member.repeats_report = not last
            case _ if member.peer in self.roster.returning:
                self.gathering.receive(member, message)
            case LinkUp(link=link, round_trip_us=round_trip_us):
                self.links.report_up(member.peer, link, round_trip_us, now)
            case LinkDown(link=number, cause=cause):
                down = self.links.report_down(member.peer, number, cause, now)
                if down is not None:
                    self._stop_attempts(down, f"a link broke at {short(member.peer)}: {cause}", now)
            case Correction():
                pass  # It was sent before our answer arrived; `LinkDown` follows.
            case Join() | Resume() | ReportPart():
                raise Violation(f"sent {type(message).__name__} on a connection that has joined already")
            case AskStatus() | AskProbe() | KickPeer():
                raise Violation("asked like an observer on the connection of a peer")
            case Fetch():
                self.visits.fetch(member, now)
            case _:
                self._dispatch_accepted(member, message, now)

    def _dispatch_accepted(self, member: Member, message: ToMaster, now: float) -> None:
        """What only accepted peers may send."""
        if member.peer not in self.roster.accepted:
            raise Violation(f"sent {type(message).__name__} before it was accepted")
        voted = member.peer in self.admission.ballot.votes
        if isinstance(message, VoteTopology | Initiate) and self.syncs.concerns(member.peer):
            raise Violation(f"sent {type(message).__name__} inside sync_shared_state")
        match message:
            case VoteTopology():
                if voted or self.collectives.in_flight(member.peer) or member.peer in self.pending.ballot.votes:
                    raise Violation("voted for a topology twice, or while other calls of its own are open")
                self.admission.ballot.cast(member.peer, None, now)
            case AskPending():
                if voted or member.peer in self.pending.ballot.votes:
                    raise Violation("asked for pending peers twice, or inside update_topology")
                self.pending.ballot.cast(member.peer, None, now)
            case Initiate():
                if voted:
                    raise Violation("initiated a collective inside update_topology")
                # A link that was remade stands only after this peer has reported it, which is after it could use it: so
                # a parcel that was sent before this vote went over the links that stand now, or the vote comes without.
                arrives = self.links.reaches_all(member.peer, self.roster.ring(member.group))
                self.collectives.initiate(member, message, message.parcel if arrives else 0, now)
            case Withdraw(tags=tags):
                self.collectives.withdraw(member, tags, self._waits.missing_in, now)
            case SyncState():
                if voted or self.collectives.in_flight(member.peer):
                    raise Violation("called sync_shared_state while other calls of its own are open")
                self.syncs.vote(member, message, now)
            case SyncEnded(attempt=attempt, cause=cause, flow=flow):
                self.syncs.report(member, attempt, cause, flow)
            case Done() | Failed():
                self.collectives.report(member, message, now)

    def _stop_attempts(self, link: Link, cause: str, now: float) -> None:
        """A link is down, over which collectives may run; none does over a visitor's."""
        if not any(peer in self.roster.visitors for peer in link.ends):
            self.collectives.break_link(link, cause, now)

    # ── departures ───────────────────────────────────────────────────────────────────────────────────────────────────

    def expel(self, member: Member, kick: Kick, now: float) -> None:
        """Kick an accepted peer or refuse a candidate, unless it has gone already; either way it learns why."""
        if self.roster.member(member.peer) is member:
            self.outbox.kick(member.connection, kick)
            self.remove(Departure(member, f"the master kicked it: {kick.reason}", now, event="kicked"))

    def remove(self, *gone: Departure) -> None:
        """These are gone, and their parties with them: every part leaves them out. All at once, as every peer is told
        of every change: one by one it would take as many messages for each of them as there are peers."""
        if not gone:
            return
        departures = [self._take_out(each) for each in (*gone, *self.candidates.parties.mates(gone))]
        for part in self._parts:
            part.forget(departures)
        if any(each.accepted for each in departures) and not self.roster.accepted:
            self._end_run(max(each.back_until for each in departures), departures[0].now)
        for group in dict.fromkeys(each.member.group for each in departures):
            self.admission.rewire(group, departures[0].now)

    def _take_out(self, gone: Departure) -> Departure:
        member, accepted = gone.member, gone.peer in self.roster.accepted
        gone = structs.replace(gone, accepted=accepted, tried=member.stage is MemberStage.TRIED)
        kind = self.roster.kind(gone.peer)
        self.roster.remove(member)
        kind = f"epoch {self.roster.epoch}:" if accepted else kind
        here = count_peers(len(self.roster.accepted))
        sentence = f"{kind} {short(gone.peer)} is gone: {gone.how}; {here}"
        note = Note(sentence, gone.event, accepted and gone.event != "left", gone.peer)
        self.outbox.announce(note) if accepted else self.outbox.note_outsider(note, member.seen_host)
        return gone

    def _end_run(self, back_until: float, now: float) -> None:
        """No member is left. What begins here next is another run, and those of this one may come back and go on; until
        then candidates do not begin one, without anything that this one has learnt."""
        self.admission.suspend(now, max(now, back_until))
        if not back_until:
            self.arrivals.note_end()
        self.lead.end(self.roster.epoch)
        outside = (*self.roster.candidates, *self.roster.visitors)
        self.outbox.send(outside, self.lead.welcome(self.limits.tags_max))

    # ── a run that comes back ────────────────────────────────────────────────────────────────────────────────────────

    def go_on_with(self, restored: Restored, now: float) -> None:
        """Lead this run. Peers rely on the order: they are taken back before they receive anything else of us, and the
        topology comes before what runs in it. `Wire` follows from `_progress`, as after any event."""
        self.lead.run, self.lead.name = restored.run, restored.name
        self.roster.restore(restored)
        self.links.restore(restored, now)
        for peer in restored.returned:
            self.outbox.send((peer,), self.away.resumed(self.roster.accepted[peer]))
        here = (*self.roster.accepted, *self.roster.candidates, *self.roster.visitors)
        newcomers = [peer for peer in here if peer not in restored.returned]
        self.outbox.send(newcomers, self.lead.welcome(self.limits.tags_max))
        without = f" without {names(restored.lost)}" if restored.lost else ""
        sentence = (
            f"epoch {self.roster.epoch}: the run {restored.run} goes on{without}; "
            f"{count_peers(len(self.roster.accepted))} (the numbers of epochs jump when a master takes over a run)"
        )
        self.outbox.announce(Note(sentence, "run goes on", bool(restored.lost)))
        self.admission.push()
        for group in self.roster.rings:
            self.admission.rewire(group, now)
        self.outbox.ping(self.roster.accepted, now)
        self.syncs.restore(restored)
        for attempt in restored.attempts:
            self.collectives.adopt(attempt, now)
        for peers, answer in restored.answers:
            self.outbox.send(peers, answer)
        self._recount(restored, now)

    def _recount(self, restored: Restored, now: float) -> None:
        """Open votes count as cast, as if they arrived now; members whose reports make no sense cannot stay."""
        odd = dict(restored.odd)
        for peer, vote in restored.votes:
            try:
                self._dispatch_accepted(self.roster.accepted[peer], vote, now)
            except Violation as violation:
                odd[peer] = f"it broke the protocol: {violation}"
        for member, reason in [(self.roster.accepted[peer], reason) for peer, reason in odd.items()]:
            self.expel(member, Kick(KickKind.PROTOCOL, reason), now)

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _progress(self, now: float) -> list[MasterEffect]:
        """Do whatever the last event made possible; returns all that is to be done about it."""
        while any(part.advance(now) for part in self._advancing):
            pass
        self.links.flush()
        self._waits.look(now, self.liveness.interval_s)
        dates = [part.next_deadline() for part in self._dated]
        self._deadline = min([each for each in (*dates, self._waits.look_at) if each is not None], default=None)
        return self.outbox.take()

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _make_up_for_standstill(self, now: float) -> None:
        """If we missed a deadline by far we stood still, and what others sent meanwhile is still unread."""
        late_s = now - self._deadline if self._deadline is not None else 0.0
        if late_s > LATE_S:
            for part in self._parts:
                part.shift_deadlines(late_s, now)
            self._waits.look_at = None

    def _pass_time(self, now: float) -> None:
        watches = self._waits.due(now)
        voteless = self.liveness.voteless(self._waits.all(), now) if watches else []
        for link in self.links.pass_time(now):
            self._stop_attempts(link, link.explain(), now)
        for member in self.visits.overdue(now):
            reason = f"it visits and asked for nothing within {self.limits.link_timeout_s:g} s"
            self.expel(member, Kick(KickKind.IDLE, reason), now)
        silent = self.liveness.watch(self._waits.waited_for(), now) if watches else []
        for member, kick in silent or voteless:  # One that is silent may be the one that waited for a vote.
            self.expel(member, kick, now)
