"""A call of `sync_shared_state` from its arguments to its end, with as many attempts as it takes.

Owns these attempts, and what a state is after each of them. Must not know elections, lanes or bytes.

Why attempts are made here and not in the core: each votes for what is held now, and after chunks have come only a new
look at the tensors says what that is. They need no agreement of their own. A sync fails because a transfer did not
reach its puller or because the master was lost in the middle, and then every caller either has this answer and votes
again, or has none yet, and its vote stands until the others have voted again.
"""

import logging

from msgspec import structs

from pccl.api.membership import Membership
from pccl.api.shared_state import SharedState, SharedStateSyncInfo, hashed, keep
from pccl.arguments import choice, of_kind
from pccl.core.effects.peer_effects import Answer, Failure, FailureKind, InSync
from pccl.core.effects.peer_events import SyncShared
from pccl.dataplane.state.manifest import Holding
from pccl.errors import to_exception
from pccl.types import SharedStateSyncStrategy

ATTEMPTS_MAX = 4
"""Of one call. Each that fails has cost a master, every holder of a puller, or a link that did not stand in its time;
what came is kept, so each has less to fetch. Three such losses are bad luck; a fourth in one call has a cause that a
person must know of, such as a pair of peers that cannot reach each other: each attempt of those takes all others twice
`link_timeout_s`. It is enough for any number of newcomers, whose holders grow 65-fold with each attempt."""


def checked(state: object, call: str) -> SharedState:
    """The argument of a call on the shared state."""
    remedy = "make one of named tensors: SharedState([TensorInfo.from_torch(tensor, name), ...])"
    return of_kind(SharedState, state, f"{call}: shared_state", remedy)


class SyncCall:
    """One call."""

    def __init__(self, membership: Membership, state: SharedState, strategy: SharedStateSyncStrategy | int) -> None:
        self._membership = membership
        self._state = state
        self._strategy = choice(SharedStateSyncStrategy, strategy, "sync_shared_state: strategy")
        self._holding: Holding | None = None
        """What is held, while nothing has changed it."""
        self._sent_bytes = self._received_bytes = 0

    def run(self) -> SharedStateSyncInfo:
        """Until the group is in step. Raises why it is not."""
        answer, failed = self._attempt(), None
        for attempt in range(2, ATTEMPTS_MAX + 1):
            if not isinstance(answer, Failure) or answer.kind is not FailureKind.SYNC_FAILED:
                break
            failed = answer
            why = failed.reason.removesuffix("; call it again")
            sentence = f"{why}. Attempt {attempt} of {ATTEMPTS_MAX} begins"
            self._membership.account.teller.tell("state", logging.WARNING, "sync again", sentence)
            answer = self._attempt()
        if isinstance(answer, Failure):
            raise to_exception(answer if failed is None else _after(failed, answer))
        return SharedStateSyncInfo(self._sent_bytes, self._received_bytes)

    def _attempt(self) -> Answer:
        state, membership = self._state, self._membership
        if self._holding is None:
            manifest, entries = hashed(state)
            self._holding = Holding(entries, manifest)
        holding = self._holding
        strategy, manifest = state.strategy(self._strategy), holding.manifest
        request = SyncShared(state.revision, strategy, manifest.layout, manifest.content, state.torn)
        try:
            answer, traffic = membership.sync(holding, request, lambda: keep(state, holding))
        except BaseException:
            state.interrupted(membership.pulled)
            raise
        self._sent_bytes += traffic.sent_bytes
        self._received_bytes += traffic.received_bytes
        if membership.pulled or traffic.received_bytes:
            self._holding = None
        held = answer.revision if isinstance(answer, InSync | Failure) else None
        if held is None:
            state.interrupted(membership.pulled)
        else:
            state.revision = held  # also after a failure, if it was that of another peer
        return answer


def _after(failed: Failure, last: Failure) -> Failure:
    """The failure of a call whose attempts have all failed. If the last one found that no peer offers a state any more,
    the cause is the failure before it: the only holder was lost."""
    if last.kind is not FailureKind.MISMATCH:
        return last
    reason = f"{failed.reason.removesuffix('; call it again')}; the next attempt: {last.reason}"
    return structs.replace(failed, reason=reason, revision=None)
