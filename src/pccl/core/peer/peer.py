"""A peer's decisions: `handle(event, now)` takes what happened and returns what to do about it.

Owns the peer's membership (protocol.md, Membership); the rest is delegated to parts, each of which owns one subject:
open calls (`calls`), collectives, the shared state (`sync`, `visits`), links, silence (`liveness`). Every call is
answered exactly once, whatever happens: with its answer, or with a `Failure` that names the next step.

A lost master is not the end (recovery.md, Broken connection): `masters` decides when to dial, and the master that
answers receives what `report` has kept. Lanes, collectives and calls go on meanwhile: what happens to them is in that
report, or is sent as messages after it.
"""

from pccl.core.effects.both import Tick
from pccl.core.effects.peer_effects import CloseMaster, Failure, FailureKind, PeerEffect, SendMaster
from pccl.core.effects.peer_events import (
    Abandon,
    AttemptEnded,
    Call,
    ConnectionEvent,
    Expire,
    FetchShared,
    FromMaster,
    MasterClosed,
    MasterUp,
    PeerEvent,
    SayGoodbye,
    TransferEnded,
)
from pccl.core.fields import Identity, Ticket
from pccl.core.limits import PeerLimits
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import Fetch, Join, Leave, Resume
from pccl.core.messages.to_peer import (
    Awaited,
    Introduce,
    Kick,
    Resumed,
    Serve,
    ToCollectives,
    ToPeer,
    Topology,
    ToSync,
    Waiting,
    Welcome,
    Wire,
)
from pccl.core.names import Names
from pccl.core.peer.calls import CallName, Calls
from pccl.core.peer.collectives import Collectives, Room
from pccl.core.peer.links import Links
from pccl.core.peer.liveness import Due, Liveness
from pccl.core.peer.masters import UNCONNECTED, Masters, SearchStage
from pccl.core.peer.outbox import Outbox
from pccl.core.peer.report import Answers
from pccl.core.peer.stages import PeerStage, Sizes
from pccl.core.peer.sync import Sync
from pccl.core.peer.visits import Visits
from pccl.core.session import Session
from pccl.core.staged import Staged
from pccl.core.text import Violation
from pccl.types import PeerId

__all__ = ["Peer", "PeerStage", "Sizes"]

_ON_ROSTER = (PeerStage.ACCEPTED, PeerStage.AWAY, PeerStage.RETURNING)
_WHILE_RETURNING = (Resumed, Kick, Waiting, Awaited, Ping, Pong)


class Peer(Staged[PeerStage]):
    """Decides for one peer what its master's messages and its user's calls lead to."""

    def __init__(self, identity: Identity, limits: PeerLimits) -> None:
        self.identity = identity
        self.names = Names(((identity.peer, identity.label.name),))
        self.parties: dict[PeerId, str] = {}
        """Of the peers of our group, ourselves among them, that are in a party with others."""
        super().__init__(PeerStage.OUTSIDE)
        self.epoch = 0
        self._ticket: Ticket | None = None
        """Of this epoch."""
        self.ring: tuple[PeerId, ...] = ()
        self.sizes = Sizes()
        self.tags_max = 0
        """Collectives that the master lets us have in flight."""
        self._parcel_bytes = 0
        """Contributions of up to this length go along with the vote."""
        self.waiting = ""
        """Why our calls wait, as the master explains it."""
        self.awaited: tuple[str, float] | None = None
        """The call in which others wait for us, and since when; None if there is none that we know of."""
        self._outbox = Outbox()
        self._links = Links(identity.peer, limits, self._outbox)
        self._links.asked = identity.lanes
        self._collectives = Collectives(identity.peer, self._links, self._outbox)
        self._collectives.threads = identity.threads
        self._sync = Sync(self._links, self._outbox)
        self._masters = Masters(limits, int.from_bytes(identity.peer.encode()))
        self._answers = Answers()
        self._visits = Visits(self._links, self._outbox)
        self._calls = Calls(self._collectives, self._sync, self._visits, self._outbox)
        self._loss: Failure | None = None
        """Why we are out, once we are."""
        self._liveness = Liveness(limits)

    # ── the interface ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def accepted(self) -> bool:
        """On the roster."""
        return self.stage in _ON_ROSTER

    @property
    def run(self) -> str:
        """Which run this is; empty until a master has welcomed us."""
        return self._links.run

    def handle(self, event: PeerEvent, now: float) -> list[PeerEffect]:
        """Take an event, return the effects to carry out in order."""
        self._liveness.shift_deadlines(now)
        self._masters.shift_deadlines(now)
        match event:
            case FromMaster(message=message):
                self._receive(message, now)
            case Call():
                self._call(event)
            case Abandon(call=call):
                self._calls.abandon(call)
            case Expire(calls=calls):
                self._collectives.withdraw(calls)
            case AttemptEnded():
                self._collectives.ended(event, self._loss)
                self._calls.finish_goodbye()
            case TransferEnded():
                transfers = self._visits if self._visits.concerns(event.attempt) else self._sync
                transfers.ended(event, self._loss)
                self._calls.finish_goodbye()
            case MasterUp() | MasterClosed() | Tick():
                self._connection_event(event, now)
            case _:
                self._links.handle(event, now)
        self._watch(now)
        return self._masters.pass_on(self._outbox.take(), self.stage, self.tags_max)

    def next_deadline(self) -> float | None:
        """When `Tick` is due."""
        dates = (self._links.next_deadline(), self._liveness.next_deadline, self._masters.next_deadline())
        return min([each for each in dates if each is not None], default=None)

    # ── connection, lanes, time ──────────────────────────────────────────────────────────────────────────────────────

    def _connection_event(self, event: ConnectionEvent, now: float) -> None:
        match event:
            case MasterUp() if self._loss is not None:
                self._outbox.add(CloseMaster())  # We were closed while the connection was being made.
            case MasterUp():
                self._liveness.show(now)
                self._masters.connected()
                self._greet()
            case MasterClosed(cause=cause):
                self._miss_master(cause, now)
            case Tick():
                self._links.pass_time(now)
                self._dial_master(now)
                self._ping(now)

    def _greet(self) -> None:
        """First message of a connection: a new peer joins, one that is on the roster resumes."""
        if not self.accepted:
            self._become(PeerStage.JOINING)
            self._masters.session = Session()
            self._outbox.send(Join(self.identity, self._masters.dials))
            if self._visits.open:
                self._outbox.send(Fetch())
            return
        self._become(PeerStage.RETURNING)
        self._outbox.send(self._resume())
        self._outbox.add(*map(SendMaster, self._answers.report(self.ring, self._links, self._collectives)))

    def _resume(self) -> Resume:
        session = self._masters.session
        return Resume(
            me=self.identity,
            run=self._links.run,
            epoch=self.epoch,
            global_size=self.sizes.global_size,
            last_link=self._links.newest,
            answered=self._answers.last,
            updating=CallName.UPDATE_TOPOLOGY in self._calls,
            asking=CallName.ARE_PEERS_PENDING in self._calls,
            sync=self._sync.report(),
            dial=self._masters.dials,
            master=session.master,
            received=session.received,
            sent=session.sent,
            ticket=self._ticket,
        )

    def _miss_master(self, cause: str, now: float) -> None:
        """No connection, or none any more. A candidate joins again, a visitor does not."""
        if self._loss is not None:
            return
        if self.identity.visits:
            return self._lose(FailureKind.MASTER_LOST, f"the master was lost ({cause}); connect without prefetching")
        if self.accepted and self.stage is not PeerStage.AWAY:
            self._become(PeerStage.AWAY)
        elif not self.accepted and self.stage is not PeerStage.OUTSIDE:
            self._become(PeerStage.OUTSIDE)
            self._links.forget_run()
        news = self._masters.stage is SearchStage.FOUND
        self._masters.miss(cause, now)
        if news:
            self.waiting = f"the master is away: {self._masters.explain()}"
            self._outbox.note(self.waiting, "master away")

    def _dial_master(self, now: float) -> None:
        if self._masters.over(now):
            self._outbox.add(CloseMaster())
            self._be_alone(FailureKind.MASTER_LOST, f"{self._masters.obituary()}; build a new Communicator")
        elif (dial := self._masters.due(now)) is not None:
            if reminder := self._masters.reminder(now):
                self.waiting = reminder
                self._outbox.note(reminder, "master away")
            self._outbox.add(dial)

    def _watch(self, now: float) -> None:
        if self.stage in UNCONNECTED:
            self._liveness.rest()
        elif self._loss is not None or not (self._calls.waiting or self.stage is PeerStage.RETURNING):
            self._liveness.rest()
            if self.waiting:
                self._outbox.note("the wait is over", "wait over")
            self.waiting = ""
        else:
            self._liveness.begin(now)

    def _ping(self, now: float) -> None:
        match self._liveness.due(now):
            case Due.LOSS:
                self._outbox.add(CloseMaster())
                self._miss_master(f"it sent nothing for {self._liveness.limit_s:g} s", now)
            case Due.PING:
                self._outbox.send(Ping())

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _call(self, event: Call) -> None:
        call, request, self.awaited = event.call, event.request, None
        if isinstance(request, SayGoodbye):
            self._say_goodbye(call)
        elif self._loss is not None:
            self._outbox.resolve(call, self._loss)
        elif isinstance(request, FetchShared) or self.identity.visits:
            self._visits.begin(call, request, self.identity.visits)
        else:
            parcel_bytes = self._parcel_bytes if self.stage is PeerStage.ACCEPTED else 0
            room = Room(self.ring, self.tags_max, parcel_bytes) if self.accepted else None
            self._calls.begin(call, request, room)

    def _say_goodbye(self, call: int) -> None:
        """Leave if we are in, and answer once nothing of ours runs any more."""
        if not self._calls.open(CallName.CLOSE, call):
            return
        if self._loss is None:
            if self.stage is not PeerStage.OUTSIDE:
                self._outbox.send(Leave())
                self._outbox.add(CloseMaster())
            self._lose(FailureKind.CLOSED, "this Communicator was closed")
        self._calls.finish_goodbye()

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, message: ToPeer, now: float) -> None:
        if self._loss is not None or self.stage in UNCONNECTED:
            return
        self._liveness.show(now)
        self._masters.session.receive(message)
        if isinstance(message, Awaited) and not self._calls.made(message.call):
            self.awaited = message.call, now - message.age_ms / 1000
        try:
            self._dispatch(message)
        except Violation as violation:
            self._outbox.add(CloseMaster())
            self._lose(
                FailureKind.PROTOCOL, f"the master broke the protocol: {violation}; are both of the same version?"
            )

    def _dispatch(self, message: ToPeer) -> None:
        if self.stage is PeerStage.RETURNING and not isinstance(message, _WHILE_RETURNING):
            raise Violation(f"{type(message).__name__} before it was known whether we are taken back")
        self._answers.note(message, self.tags_max)
        match message:
            case Welcome(run=run, tags_max=tags_max, master=master):
                stage = PeerStage.VISITOR if self.identity.visits else PeerStage.CANDIDATE
                if self.stage is not stage:  # It is sent again when the master takes over an earlier run.
                    self._become(stage)
                self._masters.find()
                self._links.run = run
                self._masters.session.master = master
                self.tags_max = tags_max
            case Resumed():
                self._be_taken_back(message)
            case Wire(links=links):
                self._links.wire(links)
                self._collectives.links_changed()
            case Introduce(names=named):
                self.names.learn_all((each.peer, each.name) for each in named)
                self.parties.update((each.peer, each.party) for each in named if each.party)
            case Topology():
                self._adopt(message)
            case Waiting(reason=reason):
                self.waiting = reason
                self._outbox.note(reason, "waits")
            case Kick(reason=reason):
                self._be_kicked(reason)
            case Ping():
                self._outbox.send(Pong())
            case Pong() | Awaited():
                pass
            case Serve():
                self._visits.serve(message)
            case _ if isinstance(message, ToCollectives):
                self._collectives.dispatch(message, self.epoch, self.ring)
            case _ if isinstance(message, ToSync):
                (self._visits if self.identity.visits else self._sync).dispatch(message)
            case _:
                self._calls.receive(message)

    def _adopt(self, topology: Topology) -> None:
        """A new epoch; the first one is our acceptance."""
        if topology.epoch <= self.epoch or self.identity.peer not in topology.ring:
            raise Violation(f"epoch {topology.epoch} after {self.epoch}, or a ring without us")
        if not self.accepted:
            self._become(PeerStage.ACCEPTED)
        self.epoch, self._ticket = topology.epoch, topology.ticket
        before, self.ring = self.ring, topology.ring
        self._parcel_bytes = topology.parcel_bytes
        self._links.cut_off(set(before) - set(self.ring))
        self.awaited = None  # Those that waited may be gone; if not, the master sends it again.
        self.sizes = Sizes(topology.global_size, len(self.ring), topology.groups, topology.largest_group)
        self._calls.finish(CallName.CONNECT, None)
        self._outbox.note(topology.news, "roster", topology.lost)

    def _be_taken_back(self, resumed: Resumed) -> None:
        """We are back, with the same master or with another one, which counts what it sends from zero."""
        self._become(PeerStage.ACCEPTED)
        self._outbox.add(*self._masters.be_taken_back(resumed))
        if resumed.master == self._masters.session.master:
            self._outbox.note("the connection to the master stands again", "master back")
            return
        self._masters.session.follow(resumed.master)
        self.tags_max = resumed.tags_max
        self._collectives.resume()
        self._outbox.note("the run goes on under another master", "master back")

    def _be_kicked(self, reason: str) -> None:
        self._outbox.add(CloseMaster())
        if self.accepted:
            self._be_alone(FailureKind.KICKED, f"the master kicked {self.names.full(self.identity.peer)}: {reason}")
        else:
            self._lose(FailureKind.REFUSED, f"the master refused {self.names.full(self.identity.peer)}: {reason}")

    def _be_alone(self, kind: FailureKind, reason: str) -> None:
        """The others go on without us, for good: loops of the form "while there are others, try again" must end."""
        if self.accepted:
            self.ring, self.sizes = (self.identity.peer,), Sizes(1, 1, 1, 1)
        self._lose(kind, reason)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _lose(self, kind: FailureKind, reason: str) -> None:
        """We are out. Everything that waits fails now; what runs is stopped first and fails when it has."""
        if self._loss is not None:
            return
        self._become(PeerStage.GONE)
        self._loss = Failure(kind, reason)
        self._masters.end()
        self._calls.lose(self._loss)
        self._collectives.lose(self._loss)
        self._sync.lose(self._loss)
        self._visits.lose(self._loss)
        self._links.close_all()

    def _become(self, stage: PeerStage) -> None:
        if not self.may_enter(stage):  # The master decides what becomes of us, and it may be wrong.
            raise Violation(f"{self.stage} cannot become {stage}")
        self.enter(stage)
