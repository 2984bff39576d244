"""A peer's part in syncing its shared state: its vote, the transfer if one is needed, and the answer to the call.

Owns the one sync that a peer may have open. The call is answered exactly once: by the master, by the end of the
transfer, or, when the membership is lost, after the data plane has let go of the tensors. Knows no bytes.
(protocol.md, Shared state)
"""

from pccl.core.effects.peer_effects import AbortTransfer, Answer, Failure, FailureKind, InSync, StartTransfer
from pccl.core.effects.peer_events import SyncShared, TransferEnded
from pccl.core.messages.report import Agreed, TransferReport
from pccl.core.messages.to_master import SyncEnded, SyncReport, SyncState
from pccl.core.messages.to_peer import RefusedSync, StartSync, Synced, ToSync
from pccl.core.peer.links import LaneId, Links
from pccl.core.peer.outbox import Outbox
from pccl.core.text import Violation, clip


class Sync:
    """Our sync, if there is one."""

    def __init__(self, links: Links, outbox: Outbox) -> None:
        self._links = links
        self._outbox = outbox
        self._call: int | None = None
        self._request: SyncShared | None = None
        self._next: tuple[int, SyncShared] | None = None
        """The call after one that was interrupted, of another state: it votes when that one is over."""
        self._begun: StartSync | None = None
        """What was elected, if it had to be pulled or served ..."""
        self._transfer = TransferReport.NONE
        """... and how far that has come."""
        self._refusal: RefusedSync | None = None
        """Another master refuses our transfer while it runs; answered when the data plane has let go."""
        self.agreed: Agreed | None = None
        """What our last successful sync put us in step with."""

    @property
    def open(self) -> bool:
        """A call waits for its answer."""
        return self._request is not None

    @property
    def _running(self) -> int | None:
        """The attempt of our transfer, while it runs."""
        return self._begun.attempt if self._begun and self._transfer is TransferReport.RUNNING else None

    @property
    def _waited_for(self) -> bool:
        """A call waits for the end of the one that is open: its own, or the next after an interrupt."""
        return self._call is not None or self._next is not None

    def bars(self, request: object) -> bool:
        """This call cannot be made now. After an interrupt the next sync can, and waits."""
        return self.open and (self._waited_for or not isinstance(request, SyncShared))

    def begin(self, call: int, request: SyncShared) -> None:
        """Vote, or take over a vote for the same that was abandoned; no other call of ours is open."""
        if self._request is None:
            self._call, self._request = call, request
            self._outbox.send(_vote(request))
        elif request == self._request:
            self._call = call
        else:
            self._next = call, request

    def dispatch(self, message: ToSync) -> None:
        """The master sent this about it."""
        refused = isinstance(message, RefusedSync) and self._refusal is None
        if self._request is None or (self._running is not None and not refused):
            raise Violation(f"{type(message).__name__} answers no call of ours")
        match message:
            case RefusedSync() if self._running is not None:
                # What was received is kept, and the next call fetches the rest.
                self._refusal = message
                self._outbox.add(AbortTransfer(self._running))
            case Synced(attempt=attempt, revision=revision, ticket=ticket):
                elected = self._begun or self._request
                self.agreed = Agreed(attempt, revision, elected.layout, elected.content, ticket)
                self._answer(InSync(attempt, revision))
            case RefusedSync():
                self._refuse(message)
            case StartSync():
                self._start(message, self._request)

    def _refuse(self, refused: RefusedSync) -> None:
        kind = FailureKind.MISMATCH if refused.usage else FailureKind.SYNC_FAILED
        revision = self._begun.revision if self._begun and self._transfer is TransferReport.HELD else None
        self._answer(Failure(kind, f"sync_shared_state: {refused.reason}", revision=revision))

    def _start(self, start: StartSync, request: SyncShared) -> None:
        lent = [self._links.lend(peer, start.lanes, start.attempt) for peer in start.peers]
        standing: list[tuple[LaneId, ...]] = [lanes for lanes in lent if lanes is not None]
        self._begun = start
        cause = "every link to the others broke before the start"
        if self._next is not None:
            # The state is another one by now. A peer that finds the lanes closed looks elsewhere.
            cause = "the call was interrupted"
            self._links.give_back(start.attempt, tuple(lane for lanes in standing for lane in lanes), cause)
            standing = []
        if not standing:
            self._transfer = TransferReport.FAILED
            self._outbox.send(SyncEnded(start.attempt, cause))
            return
        self._transfer = TransferReport.RUNNING
        lanes, newcomer = tuple(standing), request.revision < start.revision
        self._outbox.add(
            StartTransfer(start.attempt, start.layout, start.content, lanes, pull=start.pull, newcomer=newcomer)
        )

    def ended(self, event: TransferEnded, loss: Failure | None) -> None:
        """The data plane has let go: report, or answer if we are out of the run."""
        assert self._running == event.attempt, "a transfer ends once"
        self._transfer = TransferReport.FAILED if event.cause else TransferReport.HELD
        self._links.give_back(event.attempt, event.broken, event.cause)
        if loss is not None:
            self._answer(loss, lost=True)
        elif self._refusal is not None:
            self._refuse(self._refusal)
        else:
            self._outbox.send(SyncEnded(event.attempt, clip(event.cause), event.flow))

    def lose(self, loss: Failure) -> None:
        """We are out of the run: stop what runs, and answer the rest now."""
        if self._running is not None:
            self._outbox.add(AbortTransfer(self._running))
        elif self._request is not None:
            self._answer(loss, lost=True)

    def report(self) -> SyncReport:
        """What we were last in step with, what we wait for, and how far it has come."""
        return SyncReport(self.agreed, None if self._request is None else _vote(self._request), self._transfer)

    def explain(self) -> str:
        """Why nothing else can be called while it is open."""
        if self._waited_for:
            return "sync_shared_state is waiting in another thread; wait for it first"
        return "the sync_shared_state that was interrupted has voted: call it again first, which waits for its end"

    def abandon(self, call: int) -> None:
        """The caller was interrupted: it goes on without a caller that waits, and without the state."""
        waits = self._next is not None and self._next[0] == call
        if waits or self._call == call:
            self._call = self._next = None
            self._outbox.fail(call, FailureKind.USAGE, "sync_shared_state was interrupted")

    def _answer(self, answer: Answer, lost: bool = False) -> None:
        call, self._call, self._request = self._call, None, None
        begun, self._begun, self._transfer, self._refusal = self._begun, None, TransferReport.NONE, None
        self._outbox.resolve(call, answer)
        if self._next is None:
            return
        (call, request), self._next = self._next, None
        pulled = begun is not None and (request.layout, request.content) == (begun.layout, begun.content)
        if lost or (isinstance(answer, InSync) and pulled):
            self._outbox.resolve(call, answer)  # All of it had come when the caller was interrupted.
        else:
            self.begin(call, request)


def _vote(request: SyncShared) -> SyncState:
    return SyncState(request.revision, request.strategy, request.layout, request.content, request.torn)
