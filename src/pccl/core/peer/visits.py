"""A peer's part in visits: as the visitor that fetches a shared state, and as a holder that serves visitors.

Owns the one call of a visitor, which is answered exactly once, and the transfers to visitors of a holder. These go on
beside everything else: their end is not reported, and they hold up nothing but our goodbye. Knows no bytes.
(protocol.md, Visitors)
"""

from msgspec import Struct

from pccl.core.effects.peer_effects import AbortTransfer, Failure, FailureKind, StartTransfer
from pccl.core.effects.peer_events import FetchShared, Request, TransferEnded
from pccl.core.messages.to_master import Fetch
from pccl.core.messages.to_peer import RefusedSync, Serve, StartSync, Synced, ToSync
from pccl.core.peer.links import Links
from pccl.core.peer.outbox import Outbox
from pccl.core.text import Violation
from pccl.types import PeerId

SERVED_MAX = 4
"""Visitors that are served at a time: they share the bandwidth that we allow, so more would only take longer, and cost
a thread and a descriptor for each lane."""


class Wish(Struct):
    """What a visitor came for."""

    call: int | None
    request: FetchShared
    start: StartSync | None = None
    """The transfer, while it runs."""


class Visits:
    """Our visit, or the visitors that we serve."""

    def __init__(self, links: Links, outbox: Outbox) -> None:
        self._links = links
        self._outbox = outbox
        self._wish: Wish | None = None
        self._served: dict[int, PeerId] = {}
        """Attempts that run, and for whom."""

    @property
    def open(self) -> bool:
        """A call waits for its answer."""
        return self._wish is not None

    @property
    def busy(self) -> bool:
        """The data plane has lanes of ours, or a call waits."""
        return self._wish is not None or bool(self._served)

    def concerns(self, attempt: int) -> bool:
        """This transfer is one of ours, not that of a sync."""
        running = self._wish is not None and self._wish.start is not None and self._wish.start.attempt == attempt
        return running or attempt in self._served

    # ── the visitor ──────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, call: int, request: Request, visitor: bool) -> None:
        """Ask the master, which receives it after our `Join` if there is no connection yet."""
        if not isinstance(request, FetchShared) or not visitor or self.open:
            reason = "visitors fetch the shared state, one call at a time, and nothing else"
            self._outbox.fail(call, FailureKind.USAGE, reason)
            return
        self._wish = Wish(call, request)
        self._outbox.send(Fetch())

    def dispatch(self, message: ToSync) -> None:
        """The master sent this about it."""
        wish = self._wish
        if wish is None or wish.start is not None or isinstance(message, Synced):
            raise Violation(f"{type(message).__name__} answers no call of ours")
        if isinstance(message, RefusedSync):
            # Nothing is lost by that: the first sync brings all of it, and the first peer of a run finds no other.
            self._outbox.note(message.reason, "visit", warns=False)
            self._answer(None)
            return
        lent = [self._links.lend(peer, message.lanes, message.attempt) for peer in message.peers]
        standing = tuple(lanes for lanes in lent if lanes is not None)
        if not standing:
            self._answer(_failure(message, wish.request, "every link to the holders broke before the start"))
            return
        wish.start = message
        goal = (message.attempt, message.layout, message.content)
        self._outbox.add(StartTransfer(*goal, standing, pull=True, newcomer=True, visit=True))

    def abandon(self, call: int) -> None:
        """The caller was interrupted: it goes on without a caller that waits."""
        if self._wish is not None and self._wish.call == call:
            self._wish.call = None
            self._outbox.fail(call, FailureKind.USAGE, "prefetch_shared_state was interrupted")

    def _answer(self, answer: Failure | None) -> None:
        assert self._wish is not None, "an answer follows a call"
        call, self._wish = self._wish.call, None
        self._outbox.resolve(call, answer)

    # ── the holder ───────────────────────────────────────────────────────────────────────────────────────────────────

    def serve(self, serve: Serve) -> None:
        """A visitor comes; if its link has broken since, it knows."""
        lanes = self._links.lend(serve.peer, serve.lanes, serve.attempt)
        if lanes is None:
            return
        if len(self._served) >= SERVED_MAX or serve.peer in self._served.values():
            self._links.give_back(serve.attempt, lanes, "too many visits at a time")
            return
        self._served[serve.attempt] = serve.peer
        self._outbox.add(StartTransfer(serve.attempt, serve.layout, serve.content, (lanes,), visit=True))

    # ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def ended(self, event: TransferEnded, loss: Failure | None) -> None:
        """The data plane has let go."""
        self._links.give_back(event.attempt, event.broken, event.cause)
        if event.attempt in self._served:
            del self._served[event.attempt]
            return
        wish = self._wish
        assert wish is not None, "a transfer ends once"
        assert wish.start is not None, "and after its start"
        self._answer(loss or (_failure(wish.start, wish.request, event.cause) if event.cause else None))

    def lose(self, loss: Failure) -> None:
        """We are out of the run: stop what runs, and answer the rest now."""
        self._outbox.add(*(AbortTransfer(attempt) for attempt in self._served))
        if self._wish is None:
            return
        if self._wish.start is not None:
            self._outbox.add(AbortTransfer(self._wish.start.attempt))
        else:
            self._answer(loss)


def _failure(start: StartSync, request: FetchShared, cause: str) -> Failure:
    kind = FailureKind.SYNC_FAILED if start.layout == request.layout else FailureKind.MISMATCH
    return Failure(kind, f"prefetch_shared_state: {cause}")
