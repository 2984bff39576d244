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
from pccl.core.messages import RefusedSync, StartSync, Synced, SyncEnded, SyncState
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
                self._answer(InSync(attempt, revision))
            case RefusedSync(usage=usage, reason=reason):
                kind = FailureKind.MISMATCH if usage else FailureKind.SYNC_FAILED
                self._answer(Failure(kind, f"sync_shared_state: {reason}", revision=self._pulled))
            case StartSync():
                self._start(message, self._request)

    def _start(self, start: StartSync, request: SyncShared) -> None:
        lent = [self._lanes.lend(PeerId(peer), start.lanes, start.attempt) for peer in start.peers]
        standing: list[tuple[LaneId, ...]] = [lanes for lanes in lent if lanes is not None]
        if not standing:
            self._send(SyncEnded(start.attempt, "every link to the others broke before the start"))
            return
        self._running, self._pulled = start.attempt, start.revision
        newcomer = request.revision < start.revision
        self._effects.append(
            StartTransfer(start.attempt, start.pull, newcomer, start.layout, start.content, tuple(standing))
        )

    def ended(self, event: TransferEnded, loss: Failure | None) -> None:
        """The data plane has let go: report, or answer if there is nobody to report to any more."""
        assert self._running == event.attempt, "a transfer ends once"
        self._running = 0
        if event.cause:
            self._pulled = None
        self._lanes.give_back(event.attempt, event.broken, event.cause)
        if loss is not None:
            self._answer(loss)
        else:
            self._send(SyncEnded(event.attempt, clip(event.cause)))

    def lose(self, loss: Failure) -> None:
        """We are out of the run: stop what runs, and answer the rest now."""
        if self._running:
            self._effects.append(AbortTransfer(self._running))
        elif self._request is not None:
            self._answer(loss)

    def abandon(self, call: int) -> None:
        """The caller was interrupted: it goes on without anybody who waits."""
        if self._call == call:
            self._call = None
            self._effects.append(Resolve(call, Failure(FailureKind.USAGE, "sync_shared_state was interrupted")))

    def _answer(self, answer: Answer) -> None:
        call, self._call, self._request, self._pulled = self._call, None, None, None
        if call is not None:
            self._effects.append(Resolve(call, answer))

    def _send(self, message: SyncState | SyncEnded) -> None:
        self._effects.append(SendMaster(message))
