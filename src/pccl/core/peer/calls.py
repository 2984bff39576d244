"""The calls of a peer's user: those that are open, and which one may be made beside which.

Owns the calls of which there can be one at a time. Each is answered exactly once. Collectives, syncs and visits have
their own modules, and their calls are open as long as these say so. (protocol.md, Contradictions)
"""

from enum import Enum

from pccl.core.effects.peer_effects import Answer, Failure, FailureKind
from pccl.core.effects.peer_events import ArePeersPending, CallCollective, SyncShared, UpdateTopology, WaitAccepted
from pccl.core.messages.to_master import AskPending, ToMaster, VoteTopology
from pccl.core.messages.to_peer import PendingAnswer, RefusedPending, RefusedTopology, ToCalls, TopologyUpdated
from pccl.core.peer.collectives import Collectives, Room
from pccl.core.peer.outbox import Outbox
from pccl.core.peer.sync import Sync
from pccl.core.peer.visits import Visits
from pccl.core.text import Violation
from pccl.types import tag_name

AcceptedRequest = UpdateTopology | ArePeersPending | CallCollective | SyncShared
"""What accepted peers alone may call."""


class CallName(Enum):
    """What was called."""

    CONNECT = "connect"
    UPDATE_TOPOLOGY = "update_topology"
    ARE_PEERS_PENDING = "are_peers_pending"
    CLOSE = "close"


class Calls:
    """Open calls, one of each name at most."""

    def __init__(self, collectives: Collectives, sync: Sync, visits: Visits, outbox: Outbox) -> None:
        self._collectives = collectives
        self._sync = sync
        self._visits = visits
        self._outbox = outbox
        self._open: dict[CallName, int | None] = {}
        """None for one that was abandoned: the master still owes its answer."""

    def __contains__(self, name: CallName) -> bool:
        return name in self._open

    @property
    def waiting(self) -> bool:
        """One of any kind waits for its answer."""
        return bool(self._open or self._collectives.tags or self._sync.open or self._visits.open)

    def made(self, call: str) -> bool:
        """Our vote for this call, by the master's name for it, is on its way; or we wait in a call of another kind."""
        return bool(self._open or self._sync.open) or call in map(tag_name, self._collectives.tags)

    def begin(self, call: int, request: AcceptedRequest | WaitAccepted, room: Room | None) -> None:
        """Refuse a call, wait, or vote; `room` is None as long as this peer is not accepted."""
        if isinstance(request, WaitAccepted):
            if self.open(CallName.CONNECT, call) and room is not None:
                self.finish(CallName.CONNECT, None)
            return
        if room is None:
            self._outbox.fail(call, FailureKind.USAGE, "connect first: this peer is not accepted yet")
            return
        refusal = self._objection(request, room)
        if refusal is not None:
            self._outbox.resolve(call, refusal)
            return
        match request:
            case SyncShared():
                self._sync.begin(call, request)
            case UpdateTopology():
                self.open(CallName.UPDATE_TOPOLOGY, call, VoteTopology())
            case ArePeersPending():
                self.open(CallName.ARE_PEERS_PENDING, call, AskPending())
            case CallCollective():
                self._collectives.initiate(call, request, room.ring, room.parcel_bytes)

    def _objection(self, request: AcceptedRequest, room: Room) -> Failure | None:
        """Why this call cannot be made beside those that are open; None if it can."""
        updating = CallName.UPDATE_TOPOLOGY in self._open
        match request:
            case UpdateTopology() | CallCollective() | SyncShared() if self._sync.bars(request):
                return Failure(FailureKind.USAGE, self._sync.explain())
            case SyncShared() if self._collectives.tags:
                reason = "sync_shared_state needs every collective to be waited for first"
                return Failure(FailureKind.UNFINISHED_COLLECTIVES, reason)
            case SyncShared() if updating:
                return Failure(FailureKind.USAGE, "sync_shared_state needs update_topology to return first")
            case UpdateTopology() if self._collectives.tags:
                tags = ", ".join(str(tag) for tag in self._collectives.tags[:8])
                reason = f"update_topology needs every collective to be waited for first; unfinished tags: {tags}"
                return Failure(FailureKind.UNFINISHED_COLLECTIVES, reason)
            case UpdateTopology() if CallName.ARE_PEERS_PENDING in self._open:
                return Failure(FailureKind.USAGE, "update_topology was called while are_peers_pending waits")
            case ArePeersPending() if updating:
                return Failure(FailureKind.USAGE, "are_peers_pending was called while update_topology waits")
            case CallCollective(tag=tag) if updating:
                return Failure(FailureKind.USAGE, f"collective tag {tag} was launched while update_topology waits")
            case CallCollective(tag=tag):
                return self._collectives.objection(tag, room)
        return None

    def open(self, name: CallName, call: int, vote: ToMaster | None = None) -> bool:
        """Wait for an answer; a vote that was abandoned is taken over. False if another thread waits already."""
        if self._open.get(name) is not None:
            reason = f"{name.value} is already waiting in another thread; wait for it first"
            self._outbox.fail(call, FailureKind.USAGE, reason)
            return False
        voted = name in self._open
        self._open[name] = call
        if vote is not None and not voted:
            self._outbox.send(vote)
        return True

    def finish(self, name: CallName, answer: Answer) -> None:
        """Answer it, if it is open."""
        self._outbox.resolve(self._open.pop(name, None), answer)

    def receive(self, message: ToCalls) -> None:
        """The master answers one of them."""
        topology = isinstance(message, TopologyUpdated | RefusedTopology)
        name = CallName.UPDATE_TOPOLOGY if topology else CallName.ARE_PEERS_PENDING
        if name not in self._open:
            raise Violation(f"{type(message).__name__} answers no call of ours")
        match message:
            case TopologyUpdated():
                self.finish(name, None)
            case PendingAnswer(pending=pending):
                self.finish(name, pending)
            case RefusedTopology(reason=reason) | RefusedPending(reason=reason):
                self.finish(name, Failure(FailureKind.MISMATCH, reason))

    def abandon(self, call: int) -> None:
        """No thread waits for this call any more, but the vote that was sent to the master stands."""
        self._sync.abandon(call)
        self._visits.abandon(call)
        for name in [name for name, open_call in self._open.items() if open_call == call]:
            self._open[name] = None
            self._outbox.fail(call, FailureKind.USAGE, f"{name.value} was interrupted; its vote stands")

    def finish_goodbye(self) -> None:
        """Answer our own `close`, if it was called, once the data plane has let go of all that is ours."""
        if not (self._collectives.tags or self._sync.open or self._visits.busy):
            self.finish(CallName.CLOSE, None)

    def lose(self, loss: Failure) -> None:
        """We are out of the run: all fail but our own `close`."""
        for name in [name for name in self._open if name is not CallName.CLOSE]:
            self.finish(name, loss)
