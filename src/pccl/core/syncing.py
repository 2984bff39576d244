"""A peer's part in syncing its shared state: its vote, the transfer if one is needed, and the answer to the call.

Owns the one sync that a peer may have open. The call is answered exactly once: by the master's word, by the end of the
transfer, or, when the membership is lost, after the data plane has let go of the tensors. Knows no bytes.
"""

from pccl.core.effects import (
    AbortTransfer,
    Answer,
    Failure,
    FailureKind,
    InSync,
    PeerEffect,
    Resolve,
    SendMaster,
    StartTransfer,
    SyncShared,
    TransferEnded,
)
from pccl.core.lanes import LaneId, Lanes
from pccl.core.messages import Agreed, RefusedSync, StartSync, Synced, SyncEnded, SyncState, TransferReport
from pccl.core.outbox import clip
from pccl.core.violation import Violation
from pccl.types import PeerId


class Syncing:
    """Our sync, if there is one. Effects are appended to the list given."""

    def __init__(self, lanes: Lanes, effects: list[PeerEffect]) -> None:
        self._lanes = lanes
        self._effects = effects
        self._call: int | None = None
        self._request: SyncShared | None = None
        self._running = 0
        """The attempt of our transfer while it runs."""
        self._pulled: int | None = None
        """The revision that we hold by now, by having pulled or served it."""
        self._elected: tuple[bytes, bytes] | None = None
        """Layout and content of it."""
        self._transfer = TransferReport.NONE
        self._orphaned = False
        """The master that started our transfer is gone."""
        self._told = False
        """A master was told that our transfer runs, and we do not know yet whether it is the one that started it."""
        self._late: SyncEnded | None = None
        """How it ended meanwhile."""
        self.agreed: Agreed | None = None
        """What we were last told to be in step with."""

    @property
    def open(self) -> bool:
        """A call waits for its answer."""
        return self._request is not None

    def begin(self, call: int, request: SyncShared) -> None:
        """Vote; the caller has checked that nothing else of ours is open."""
        self._call, self._request = call, request
        self._send(SyncState(request.revision, request.strategy, request.layout, request.content))

    def dispatch(self, message: Synced | StartSync | RefusedSync) -> None:
        """The master's word on it."""
        if self._request is None or self._running:
            raise Violation(f"{type(message).__name__} answers no call of ours")
        match message:
            case Synced(attempt=attempt, revision=revision):
                layout, content = self._elected or (self._request.layout, self._request.content)
                self.agreed = Agreed(attempt, revision, layout, content)
                self._answer(InSync(attempt, revision))
            case RefusedSync(usage=usage, reason=reason):
                kind = FailureKind.MISMATCH if usage else FailureKind.SYNC_FAILED
                self._answer(Failure(kind, f"sync_shared_state: {reason}", revision=self._pulled))
            case StartSync():
                self._start(message, self._request)

    def _start(self, start: StartSync, request: SyncShared) -> None:
        lent = [self._lanes.lend(PeerId(peer), start.lanes, start.attempt) for peer in start.peers]
        standing: list[tuple[LaneId, ...]] = [lanes for lanes in lent if lanes is not None]
        self._elected = start.layout, start.content
        if not standing:
            self._transfer = TransferReport.FAILED
            self._send(SyncEnded(start.attempt, "every link to the others broke before the start"))
            return
        self._running, self._pulled = start.attempt, start.revision
        self._transfer = TransferReport.RUNNING
        newcomer = request.revision < start.revision
        self._effects.append(
            StartTransfer(start.attempt, start.pull, newcomer, start.layout, start.content, tuple(standing))
        )

    def ended(self, event: TransferEnded, loss: Failure | None) -> None:
        """The data plane has let go: report, or answer if there is nobody to report to any more."""
        assert self._running == event.attempt, "a transfer ends once"
        self._running = 0
        self._transfer = TransferReport.FAILED if event.cause else TransferReport.HELD
        if event.cause:
            self._pulled = None
        self._lanes.give_back(event.attempt, event.broken, event.cause)
        if loss is not None:
            self._answer(loss)
        elif self._orphaned:
            self._answer_orphan()
        elif self._told:
            self._late = SyncEnded(event.attempt, clip(event.cause))
        else:
            self._send(SyncEnded(event.attempt, clip(event.cause)))

    def lose(self, loss: Failure) -> None:
        """We are out of the run: stop what runs, and answer the rest now."""
        if self._running:
            self._effects.append(AbortTransfer(self._running))
        elif self._request is not None:
            self._answer(loss)

    @property
    def running(self) -> bool:
        """Our transfer has begun and not ended."""
        return bool(self._running)

    def resume(self, told: bool) -> None:
        """There is another master, which was told that our transfer runs, or not. Then it ends now: not all of its
        parts may have been started. What was received is kept, and the next call fetches the rest."""
        if told and self._running:
            self._orphaned = True
            self._effects.append(AbortTransfer(self._running))
        elif told:
            self._answer_orphan()
        self._told, self._late = False, None

    def rejoin(self) -> None:
        """It is the same master again."""
        if self._late is not None:
            self._send(self._late)
        self._told, self._late = False, None

    def _answer_orphan(self) -> None:
        reason = "sync_shared_state: the master was lost in the middle of it; call it again"
        self._answer(Failure(FailureKind.SYNC_FAILED, reason, revision=self._pulled))

    def recall(self) -> tuple[SyncState | None, TransferReport]:
        """What we wait for, and how far it has come."""
        request = self._request
        self._told = self._told or self.running
        if request is None:
            return None, TransferReport.NONE
        return SyncState(request.revision, request.strategy, request.layout, request.content), self._transfer

    def explain(self) -> str:
        """Why nothing else can be called while it is open."""
        if self._call is not None:
            return "sync_shared_state is waiting in another thread; wait for it first"
        return "the sync_shared_state that was interrupted has voted and waits for the others; try again in a moment"

    def abandon(self, call: int) -> None:
        """The caller was interrupted: it goes on without anybody who waits, and without the state."""
        if self._call == call:
            self._call = None
            self._effects.append(Resolve(call, Failure(FailureKind.USAGE, "sync_shared_state was interrupted")))

    def _answer(self, answer: Answer) -> None:
        call, self._call, self._request, self._pulled = self._call, None, None, None
        self._elected, self._transfer, self._orphaned = None, TransferReport.NONE, False
        if call is not None:
            self._effects.append(Resolve(call, answer))

    def _send(self, message: SyncState | SyncEnded) -> None:
        self._effects.append(SendMaster(message))
