"""A peer's decisions: `handle(event, now)` takes what happened and returns what to do about it.

Owns the peer's membership and its open calls; its part in collectives is kept by `runs`, in the shared state by
`syncing` and `visiting`, its links by `lanes`. Every call is answered exactly once, whatever happens: with its answer,
or with a `Failure` that says what to do next.

A lost master is not the end: `absence` says when to dial which one, and the next one is told what `memory` has. Lanes,
runs and calls go on meanwhile; whatever there is to report is in what the next master is told, or is said after that.
"""

from pccl.core.absence import UNHEARD, Absence
from pccl.core.effects import (
    Abandon,
    Answer,
    ArePeersPending,
    Call,
    CloseMaster,
    Collective,
    DialFailed,
    Failure,
    FailureKind,
    FetchShared,
    FromMaster,
    LaneClosed,
    LaneDialled,
    LaneOffered,
    MasterClosed,
    MasterUp,
    Note,
    PeerEffect,
    PeerEvent,
    Request,
    Resolve,
    RunEnded,
    SayGoodbye,
    SendMaster,
    SyncShared,
    Tick,
    TransferEnded,
    UpdateTopology,
    WaitAccepted,
)
from pccl.core.lanes import Lanes
from pccl.core.limits import PeerLimits
from pccl.core.memory import Memory
from pccl.core.messages import (
    Abort,
    AskPending,
    Elsewhere,
    Fetch,
    Join,
    Kick,
    Leave,
    Outcome,
    PendingAnswer,
    Ping,
    Pong,
    RefusedCollective,
    RefusedPending,
    RefusedSync,
    RefusedTopology,
    Rejoined,
    Resumed,
    Serve,
    Start,
    StartSync,
    Synced,
    ToMaster,
    ToPeer,
    Topology,
    TopologyUpdated,
    VoteTopology,
    Waiting,
    Welcome,
    Wire,
)
from pccl.core.runs import Runs
from pccl.core.session import Session
from pccl.core.standing import PEER_STAGES, PeerIdentity, PeerStage, Sizes
from pccl.core.syncing import Syncing
from pccl.core.vigil import Due, Vigil
from pccl.core.violation import Violation
from pccl.core.visiting import Visiting
from pccl.types import PeerId, short

__all__ = ["PEER_STAGES", "Peer", "PeerIdentity", "PeerStage", "Sizes"]

_ON_ROSTER = (PeerStage.ACCEPTED, PeerStage.AWAY, PeerStage.RETURNING)
_WHILE_RETURNING = (Resumed, Rejoined, Elsewhere, Kick, Waiting, Ping, Pong)


class Peer:
    """Decides for one peer what its master's words and its user's calls lead to."""

    def __init__(self, identity: PeerIdentity, limits: PeerLimits) -> None:
        self.identity = identity
        self.stage = PeerStage.OUTSIDE
        self.epoch = 0
        self.ring: tuple[PeerId, ...] = ()
        self.sizes = Sizes()
        self.tags_max = 0
        """Collectives that we may have in flight, as the master said."""
        self._parcel_bytes = 0
        """Contributions of up to this length go along with the vote."""
        self.waiting = ""
        """Why our calls wait, in the master's words."""
        self._effects: list[PeerEffect] = []
        self._lanes = Lanes(identity.peer, limits, self._effects)
        self._runs = Runs(identity.peer, self._lanes, self._effects)
        self._sync = Syncing(self._lanes, self._effects)
        self._absence = Absence(identity.masters, limits, int.from_bytes(identity.peer.encode()))
        self._memory = Memory()
        self._visiting = Visiting(self._lanes, self._effects)
        self._calls: dict[str, int | None] = {}
        """Open calls of which there can be one at a time: connect, update_topology, are_peers_pending, close. None for
        one that was abandoned: the master still owes its answer."""
        self._loss: Failure | None = None
        """Why we are out, once we are."""
        self._vigil = Vigil(limits)

    # ── the interface ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def accepted(self) -> bool:
        """On the roster."""
        return self.stage in _ON_ROSTER

    def handle(self, event: PeerEvent, now: float) -> list[PeerEffect]:
        """Take an event, return the effects to carry out in order."""
        self._vigil.excuse(now)
        self._absence.excuse(now)
        match event:
            case FromMaster(message=message):
                self._receive(message, now)
            case Call():
                self._call(event)
            case Abandon(call=call):
                self._abandon(call)
            case RunEnded():
                self._runs.ended(event, self._loss)
                self._finish_goodbye()
            case TransferEnded():
                part = self._visiting if self._visiting.concerns(event.attempt) else self._sync
                part.ended(event, self._loss)
                self._finish_goodbye()
            case MasterUp() | MasterClosed() | Tick():
                self._connection_event(event, now)
            case LaneOffered() | LaneDialled() | DialFailed() | LaneClosed():
                self._lanes.handle(event, now)
        self._watch(now)
        effects = [effect for effect in self._effects if self._absence.passes(effect, self.stage)]
        self._effects.clear()
        return [*self._absence.take_repeats(), *effects]

    def next_deadline(self) -> float | None:
        """When `Tick` is due."""
        dates = (self._lanes.next_deadline(), self._vigil.next_deadline, self._absence.next_deadline())
        return min((each for each in dates if each is not None), default=None)

    # ── connection, lanes, time ──────────────────────────────────────────────────────────────────────────────────────

    def _connection_event(self, event: MasterUp | MasterClosed | Tick, now: float) -> None:
        match event:
            case MasterUp() if self._loss is not None:
                self._effects.append(CloseMaster())  # We were closed while the connection was being made.
            case MasterUp(place=place):
                self._vigil.hear(now)
                self._absence.connected(place)
                self._greet(now)
            case MasterClosed(cause=cause):
                self._miss_master(cause, now)
            case Tick():
                self._lanes.pass_time(now)
                self._dial_master(now)
                self._ping(now)

    def _greet(self, now: float) -> None:
        """Say who we are: somebody new, or somebody who was there before."""
        me = self.identity
        if not self.accepted:
            self._become(PeerStage.JOINING)
            self._absence.session = Session()
            begins = me.visits or self._absence.may_begin(now)  # With a visitor no run begins anywhere.
            self._send(Join(me.peer, me.group, me.host, me.port, me.lanes, me.visits, me.serves, begins, me.secret))
            if self._visiting.open:
                self._send(Fetch())
            return
        self._become(PeerStage.RETURNING)
        latest = (self.epoch, self.sizes, self._absence.session, self._absence.tell(self._sync.running))
        self._send(self._memory.resume(me, latest, (self._lanes, self._sync), tuple(self._calls)))
        self._effects.extend(map(SendMaster, self._memory.recall(self.ring, self._lanes, self._runs)))

    def _miss_master(self, cause: str, now: float, moves_on: bool = False) -> None:
        """No connection, or none any more. A candidate joins again, a visitor does not. `moves_on`: to another one."""
        if self._loss is not None or self.identity.visits:
            return self._lose(FailureKind.MASTER_LOST, f"the master was lost ({cause}); connect without prefetching")
        had_one = self.stage in (PeerStage.CANDIDATE, PeerStage.ACCEPTED) and not moves_on
        broke_off = self.stage is PeerStage.RETURNING and not moves_on
        if self.accepted and self.stage is not PeerStage.AWAY:
            self._become(PeerStage.AWAY)
        elif not self.accepted and self.stage is not PeerStage.OUTSIDE:
            self._become(PeerStage.OUTSIDE)
            self._lanes.forget_run()
        if had_one:
            self._absence.begin(cause, now)
            self.waiting = f"the master is away: {self._absence.explain()}"
            self._effects.append(Note(self.waiting))
        else:
            self._absence.go_on(cause, now, broke_off)

    def _dial_master(self, now: float) -> None:
        if self._absence.over(now):
            self._effects.append(CloseMaster())
            self._be_alone(FailureKind.MASTER_LOST, f"{self._absence.obituary()}; build a new Communicator")
        elif (dial := self._absence.due(now)) is not None:
            self._effects.append(dial)

    def _watch(self, now: float) -> None:
        waits = self._calls or self._runs.tags or self._sync.open or self._visiting.open
        if self.stage in UNHEARD:
            self._vigil.rest()
        elif self._loss is not None or not (waits or self.stage is PeerStage.RETURNING):
            self._vigil.rest()
            self.waiting = ""
        else:
            self._vigil.begin(now)

    def _ping(self, now: float) -> None:
        match self._vigil.due(now):
            case Due.LOSS:
                self._effects.append(CloseMaster())
                self._miss_master(f"it sent nothing for {self._vigil.limit_s:g} s", now)
            case Due.PING:
                self._send(Ping())

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _call(self, event: Call) -> None:
        call, request = event.call, event.request
        if isinstance(request, SayGoodbye):
            self._say_goodbye(call)
        elif self._loss is not None:
            self._resolve(call, self._loss)
        elif isinstance(request, FetchShared) or self.identity.visits:
            self._fetch(call, request)
        elif isinstance(request, WaitAccepted) and self.accepted:
            self._resolve(call, None)
        elif isinstance(request, WaitAccepted):
            self._open(call, "connect", None)
        elif not self.accepted:
            self._fail(call, FailureKind.USAGE, "connect first: this peer is not accepted yet")
        else:
            self._call_accepted(call, request)

    def _fetch(self, call: int, request: Request) -> None:
        if not isinstance(request, FetchShared) or not self.identity.visits or self._visiting.open:
            self._fail(call, FailureKind.USAGE, "visitors fetch the shared state, one call at a time, and nothing else")
            return
        self._visiting.begin(call, request)
        if self.stage is not PeerStage.OUTSIDE:
            self._send(Fetch())

    def _call_accepted(self, call: int, request: UpdateTopology | ArePeersPending | Collective | SyncShared) -> None:
        match request:
            case UpdateTopology() | Collective() | SyncShared() if self._sync.open:
                self._fail(call, FailureKind.USAGE, self._sync.explain())
            case SyncShared() if self._runs.tags or "update_topology" in self._calls:
                what = "every collective to be waited for" if self._runs.tags else "update_topology to return"
                kind = FailureKind.UNFINISHED_COLLECTIVES if self._runs.tags else FailureKind.USAGE
                self._fail(call, kind, f"sync_shared_state needs {what} first")
            case SyncShared():
                self._sync.begin(call, request)
            case UpdateTopology() if self._runs.tags:
                tags = ", ".join(str(tag) for tag in self._runs.tags[:8])
                self._fail(
                    call,
                    FailureKind.UNFINISHED_COLLECTIVES,
                    f"update_topology needs every collective to be waited for first; unfinished tags: {tags}",
                )
            case UpdateTopology() if "are_peers_pending" in self._calls:
                self._fail(call, FailureKind.USAGE, "update_topology was called while are_peers_pending waits")
            case UpdateTopology():
                self._open(call, "update_topology", VoteTopology())
            case ArePeersPending() if "update_topology" in self._calls:
                self._fail(call, FailureKind.USAGE, "are_peers_pending was called while update_topology waits")
            case ArePeersPending():
                self._open(call, "are_peers_pending", AskPending())
            case Collective():
                self._initiate(call, request)

    def _open(self, call: int, name: str, message: ToMaster | None) -> None:
        if self._calls.get(name) is not None:
            self._fail(call, FailureKind.USAGE, f"{name} is already waiting in another thread; wait for it first")
            return
        taken_over = name in self._calls
        self._calls[name] = call
        if message is not None and not taken_over:
            self._send(message)

    def _abandon(self, call: int) -> None:
        """Nobody waits for this call any more, but what was said to the master stays said."""
        self._sync.abandon(call)
        self._visiting.abandon(call)
        for name in [name for name, open_call in self._calls.items() if open_call == call]:
            self._calls[name] = None
            self._fail(call, FailureKind.USAGE, f"{name} was interrupted; its vote stands")

    def _initiate(self, call: int, request: Collective) -> None:
        tag = request.tag
        if "update_topology" in self._calls:
            self._fail(call, FailureKind.USAGE, f"collective tag {tag} was launched while update_topology waits")
        elif tag in self._runs.tags:
            reason = f"tag {tag} is in flight; wait for it, or choose another tag"
            self._fail(call, FailureKind.TAG_IN_USE, reason, tag)
        elif len(self._runs.tags) >= self.tags_max:
            reason = f"{self.tags_max} collectives are in flight, which is all the master allows (tags_max); wait first"
            self._fail(call, FailureKind.USAGE, reason, tag)
        elif len(self.ring) < 2:
            reason = "this group has no other accepted peer; admit one with update_topology"
            self._fail(call, FailureKind.TOO_FEW_PEERS, reason, tag)
        else:
            heard = self.stage is PeerStage.ACCEPTED
            self._runs.initiate(call, request, self.ring, self._parcel_bytes if heard else 0)

    def _say_goodbye(self, call: int) -> None:
        """Leave if we are in, and answer once nothing of ours runs any more."""
        if "close" in self._calls:
            self._fail(call, FailureKind.USAGE, "close is already waiting in another thread")
            return
        self._calls["close"] = call
        if self._loss is None:
            if self.stage is not PeerStage.OUTSIDE:
                self._send(Leave())
                self._effects.append(CloseMaster())
            self._lose(FailureKind.CLOSED, "this Communicator was closed")
        self._finish_goodbye()

    def _finish_goodbye(self) -> None:
        call = self._calls.get("close")
        runs = self._runs.tags or self._sync.open or self._visiting.busy
        if self._loss is not None and not runs and call is not None:
            del self._calls["close"]
            self._resolve(call, None)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, message: ToPeer, now: float) -> None:
        if self._loss is not None or self.stage in UNHEARD:
            return
        self._vigil.hear(now)
        self._absence.session.hear(message)
        try:
            self._dispatch(message, now)
        except Violation as violation:
            self._effects.append(CloseMaster())
            self._lose(
                FailureKind.PROTOCOL, f"the master broke the protocol: {violation}; are both of the same version?"
            )

    def _dispatch(self, message: ToPeer, now: float) -> None:
        if self.stage is PeerStage.RETURNING and not isinstance(message, _WHILE_RETURNING):
            raise Violation(f"{type(message).__name__} before it was known whether we are taken back")
        self._memory.note(message, self.tags_max)
        match message:
            case Welcome(run=run, tags_max=tags_max, master=master):
                stage = PeerStage.VISITOR if self.identity.visits else PeerStage.CANDIDATE
                if self.stage is not stage:  # It is said again when the master takes over an earlier run.
                    self._become(stage)
                self._absence.end()
                self._lanes.run = run
                self._absence.session.master = master
                self.tags_max = tags_max
            case Resumed():
                self._be_taken_back(message)
            case Rejoined(heard=heard):
                self._rejoin(heard)
            case Elsewhere(reason=reason):
                self._effects += self._absence.turned_away(reason, now)
                self._miss_master(reason, now, moves_on=True)
            case Wire(links=links):
                self._lanes.wire(links)
                self._runs.links_changed()
            case Topology():
                self._adopt(message)
            case Waiting(reason=reason):
                self.waiting = reason
                self._effects.append(Note(reason))
            case Kick(reason=reason):
                self._be_kicked(reason)
            case Ping():
                self._send(Pong())
            case Pong():
                pass
            case Start() | Abort() | Outcome() | RefusedCollective():
                self._runs.dispatch(message, self.epoch, self.ring)
            case Synced() | StartSync() | RefusedSync():
                (self._visiting if self.identity.visits else self._sync).dispatch(message)
            case Serve():
                self._visiting.serve(message)
            case TopologyUpdated() | RefusedTopology():
                self._answer("update_topology", message)
            case PendingAnswer() | RefusedPending():
                self._answer("are_peers_pending", message)

    def _answer(self, name: str, message: TopologyUpdated | RefusedTopology | PendingAnswer | RefusedPending) -> None:
        if name not in self._calls:
            raise Violation(f"{type(message).__name__} answers no call of ours")
        call = self._calls.pop(name)
        if call is None:
            return
        match message:
            case TopologyUpdated():
                self._resolve(call, None)
            case PendingAnswer(pending=pending):
                self._resolve(call, pending)
            case RefusedTopology(reason=reason) | RefusedPending(reason=reason):
                self._fail(call, FailureKind.MISMATCH, reason)

    def _adopt(self, topology: Topology) -> None:
        """A new epoch; the first one is our acceptance."""
        if topology.epoch <= self.epoch or self.identity.peer not in topology.ring:
            raise Violation(f"epoch {topology.epoch} after {self.epoch}, or a ring without us")
        if not self.accepted:
            self._become(PeerStage.ACCEPTED)
        self.epoch = topology.epoch
        before, self.ring = self.ring, tuple(PeerId(peer) for peer in topology.ring)
        self._parcel_bytes = topology.parcel_bytes
        self._lanes.cut_off(set(before) - set(self.ring))
        self.sizes = Sizes(topology.global_size, len(self.ring), topology.groups, topology.largest_group)
        connect = self._calls.pop("connect", None)
        if connect is not None:
            self._resolve(connect, None)

    def _rejoin(self, heard: int) -> None:
        """It was only the connection that was lost."""
        self._become(PeerStage.ACCEPTED)
        self._absence.repeat(heard)
        self._absence.end()
        self._sync.rejoin()
        self._effects.append(Note("the connection to the master stands again"))

    def _be_taken_back(self, resumed: Resumed) -> None:
        """Another master goes on with the run: what was held back is said now."""
        held_back, transfer_ran = self._absence.believed(resumed.story)
        self._become(PeerStage.ACCEPTED)
        self._absence.end()
        self._absence.session = Session(resumed.master)
        self.tags_max = resumed.tags_max
        self._runs.resume()
        self._sync.resume(transfer_ran)
        self._effects.append(Note("the run goes on: the master is back"))
        self._effects.extend(held_back)

    def _be_kicked(self, reason: str) -> None:
        self._effects.append(CloseMaster())
        if self.accepted:
            self._be_alone(FailureKind.KICKED, f"the master kicked {short(self.identity.peer)}: {reason}")
        else:
            self._lose(FailureKind.REFUSED, f"the master refused {short(self.identity.peer)}: {reason}")

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
        self._absence.end()
        for name in [name for name in self._calls if name != "close"]:
            call = self._calls.pop(name)
            if call is not None:
                self._resolve(call, self._loss)
        self._runs.lose(self._loss)
        self._sync.lose(self._loss)
        self._visiting.lose(self._loss)
        self._lanes.close_all()

    # ── small helpers ────────────────────────────────────────────────────────────────────────────────────────────────

    def _become(self, stage: PeerStage) -> None:
        if stage not in PEER_STAGES[self.stage][1]:
            raise Violation(f"{self.stage.value} cannot become {stage.value}")
        self.stage = stage

    def _send(self, message: ToMaster) -> None:
        self._effects.append(SendMaster(message))

    def _resolve(self, call: int, answer: Answer) -> None:
        self._effects.append(Resolve(call, answer))

    def _fail(self, call: int, kind: FailureKind, reason: str, tag: int | None = None) -> None:
        self._resolve(call, Failure(kind, reason, tag))
