"""A peer's decisions: `handle(event, now)` takes what happened and returns what to do about it.

Owns the peer's membership and its open calls; its part in collectives is kept by `runs`, in the shared state by
`syncing` and `visiting`, its links by `lanes`. Every call is answered exactly once, whatever happens: with its answer,
or with a `Failure` that says what to do next.
"""

from enum import Enum

from msgspec import Struct

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
from pccl.core.limits import LATE_S, PINGS_PER_LIMIT, PeerLimits
from pccl.core.messages import (
    Abort,
    AskPending,
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
from pccl.core.syncing import Syncing
from pccl.core.violation import Violation
from pccl.core.visiting import Visiting
from pccl.types import PeerId, short


class PeerIdentity(Struct, frozen=True):
    """Who we are and where we can be dialled."""

    peer: PeerId
    group: int
    host: str
    """Empty: let the master use the address that it sees."""
    port: int
    lanes: int
    """Lanes per neighbour; 0 leaves it to the group."""
    visits: bool = False
    """We come for the shared state only."""
    serves: bool = True
    """We let visitors have it."""


class Sizes(Struct, frozen=True):
    """The attributes, as of the latest epoch; ours alone once we are kicked."""

    global_size: int = 0
    group_size: int = 0
    groups: int = 0
    largest_group: int = 0


class PeerStage(Enum):
    """Where this peer is in its membership."""

    OUTSIDE = "outside"
    JOINING = "joining"
    CANDIDATE = "candidate"
    VISITOR = "visitor"
    ACCEPTED = "accepted"
    GONE = "gone"


PEER_STAGES: dict[PeerStage, tuple[str, tuple[PeerStage, ...]]] = {
    PeerStage.OUTSIDE: ("no connection to the master yet", (PeerStage.JOINING, PeerStage.GONE)),
    PeerStage.JOINING: ("`Join` is sent", (PeerStage.CANDIDATE, PeerStage.VISITOR, PeerStage.GONE)),
    PeerStage.CANDIDATE: ("welcomed; waits to be admitted", (PeerStage.ACCEPTED, PeerStage.GONE)),
    PeerStage.VISITOR: ("welcomed to fetch the shared state; never admitted", (PeerStage.GONE,)),
    PeerStage.ACCEPTED: ("on the roster", (PeerStage.GONE,)),
    PeerStage.GONE: ("left, refused, kicked or without a master: every call fails with the reason", ()),
}
"""Meaning and successors of each stage; `docs/protocol.md` is checked against this table."""


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
        self._limits = limits
        self._effects: list[PeerEffect] = []
        self._lanes = Lanes(identity.peer, limits, self._effects)
        self._runs = Runs(identity.peer, self._lanes, self._effects)
        self._sync = Syncing(self._lanes, self._effects)
        self._visiting = Visiting(self._lanes, self._effects)
        self._calls: dict[str, int | None] = {}
        """Open calls of which there can be one at a time: connect, update_topology, are_peers_pending, close. None for
        one that was abandoned: the master still owes its answer."""
        self._loss: Failure | None = None
        """Why we are out, once we are."""
        self._heard_at = 0.0
        self._waiting_since: float | None = None
        self._ping_at: float | None = None

    # ── the interface ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def accepted(self) -> bool:
        """On the roster."""
        return self.stage is PeerStage.ACCEPTED

    def handle(self, event: PeerEvent, now: float) -> list[PeerEffect]:
        """Take an event, return the effects to carry out in order."""
        if self._ping_at is not None and now - self._ping_at > LATE_S:
            self._heard_at = now  # We stood still: the silence was ours.
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
                self._lane_event(event, now)
        self._watch(now)
        effects = list(self._effects)
        self._effects.clear()
        return effects

    def next_deadline(self) -> float | None:
        """When `Tick` is due."""
        deadlines = [each for each in (self._lanes.next_deadline(), self._ping_at) if each is not None]
        return min(deadlines, default=None)

    # ── connection, lanes, time ──────────────────────────────────────────────────────────────────────────────────────

    def _connection_event(self, event: MasterUp | MasterClosed | Tick, now: float) -> None:
        match event:
            case MasterUp() if self._loss is not None:
                self._effects.append(CloseMaster())  # We were closed while the connection was being made.
            case MasterUp():
                self._heard_at = now
                self._become(PeerStage.JOINING)
                me = self.identity
                self._send(Join(me.peer, me.group, me.host, me.port, me.lanes, me.visits, me.serves))
                if self._visiting.open:
                    self._send(Fetch())
            case MasterClosed(cause=cause):
                self._lose(
                    FailureKind.MASTER_LOST, f"the master closed the connection ({cause}); build a new Communicator"
                )
            case Tick():
                self._lanes.pass_time(now)
                if self._ping_at is not None and self._ping_at <= now:
                    self._ping(now)

    def _lane_event(self, event: LaneOffered | LaneDialled | DialFailed | LaneClosed, now: float) -> None:
        match event:
            case LaneOffered(offer=offer, hello=hello):
                self._lanes.offered(offer, hello, now)
            case LaneDialled(link=link, lane=lane, round_trip_us=round_trip_us):
                self._lanes.dialled(link, lane, round_trip_us)
            case DialFailed(link=link, cause=cause) | LaneClosed(link=link, cause=cause):
                self._lanes.broke(link, cause)

    def _watch(self, now: float) -> None:
        """While a call waits, the master must show signs of life; otherwise its silence is none of our business."""
        waits = self._calls or self._runs.tags or self._sync.open or self._visiting.open
        if self._loss is not None or not waits:
            self._waiting_since = self._ping_at = None
            self.waiting = ""
        elif self._waiting_since is None:
            self._waiting_since = now
            self._ping_at = now + self._limits.master_silence_s / PINGS_PER_LIMIT

    def _ping(self, now: float) -> None:
        limit = self._limits.master_silence_s
        since = now if self._waiting_since is None else self._waiting_since
        if now - max(self._heard_at, since) >= limit:
            self._effects.append(CloseMaster())
            self._lose(FailureKind.MASTER_LOST, f"the master sent nothing for {limit:g} s; build a new Communicator")
        else:
            self._send(Ping())
            self._ping_at = now + limit / PINGS_PER_LIMIT

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
                self._fail(call, FailureKind.USAGE, "sync_shared_state is waiting in another thread; wait for it first")
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
            self._runs.initiate(call, request, self.ring, self._parcel_bytes)

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
        if self._loss is not None:
            return
        self._heard_at = now
        try:
            self._dispatch(message, now)
        except Violation as violation:
            self._effects.append(CloseMaster())
            self._lose(
                FailureKind.PROTOCOL, f"the master broke the protocol: {violation}; are both of the same version?"
            )

    def _dispatch(self, message: ToPeer, now: float) -> None:
        match message:
            case Welcome(run=run, tags_max=tags_max):
                self._become(PeerStage.VISITOR if self.identity.visits else PeerStage.CANDIDATE)
                self._lanes.run = run
                self.tags_max = tags_max
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

    def _be_kicked(self, reason: str) -> None:
        self._effects.append(CloseMaster())
        if self.accepted:
            # The others go on without us, for good: loops of the form "while there are others, try again" must end.
            self.ring, self.sizes = (self.identity.peer,), Sizes(1, 1, 1, 1)
            self._lose(FailureKind.KICKED, f"the master kicked {short(self.identity.peer)}: {reason}")
        else:
            self._lose(FailureKind.REFUSED, f"the master refused {short(self.identity.peer)}: {reason}")

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _lose(self, kind: FailureKind, reason: str) -> None:
        """We are out. Everything that waits fails now; what runs is stopped first and fails when it has."""
        if self._loss is not None:
            return
        self._become(PeerStage.GONE)
        self._loss = Failure(kind, reason)
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
