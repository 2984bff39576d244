"""The attempts of one `sync_shared_state`: when there is another, what each votes for, and what a failed call says."""

from types import SimpleNamespace

import numpy as np
import pytest

from pccl import CallMismatch, SharedState, SharedStateSyncStrategy, SyncFailed, TensorInfo
from pccl.api.sync_call import ATTEMPTS_MAX, SyncCall
from pccl.core.effects.peer_effects import Failure, FailureKind, InSync
from pccl.logs import Teller
from pccl.net.transfers import Traffic

LOST = Failure(FailureKind.SYNC_FAILED, "the master was lost in the middle of it; call it again")
NO_OFFER = Failure(FailureKind.MISMATCH, "no peer offers a shared state")


class Scripted:
    """A membership that gives these answers, each with what it brings: bytes that replace the tensor's content."""

    def __init__(self, *answers):
        self.account = SimpleNamespace(teller=Teller("peer"))
        self._answers = list(answers)
        self.requests = []
        self.pulled = False

    def sync(self, holding, request, keep):
        self.requests.append(request)
        answer, *brought = self._answers.pop(0)
        self.pulled = bool(brought)
        if isinstance(answer, BaseException):
            raise answer
        if brought:
            self.weights[:] = brought[0]
        return answer, Traffic(0, 4 * len(brought))


def call(*answers):
    weights = np.zeros(1, np.float32)
    membership = Scripted(*answers)
    membership.weights = weights
    state = SharedState([TensorInfo.from_numpy(weights, "w")])
    return membership, state, SyncCall(membership, state, SharedStateSyncStrategy.ENFORCE_POPULAR)


def test_a_sync_that_failed_is_tried_again_until_the_group_is_in_step(caplog):
    membership, state, sync = call((LOST,), (LOST,), (InSync(3, 7),))
    assert tuple(sync.run()) == (0, 0)
    assert (len(membership.requests), state.revision) == (3, 7)
    assert [record.message for record in caplog.records] == [
        f"the master was lost in the middle of it. Attempt {number} of {ATTEMPTS_MAX} begins" for number in (2, 3)
    ]


def test_attempts_are_bounded():
    membership, _, sync = call(*[(LOST,)] * ATTEMPTS_MAX)
    with pytest.raises(SyncFailed, match="the master was lost in the middle of it; call it again"):
        sync.run()
    assert len(membership.requests) == ATTEMPTS_MAX


@pytest.mark.parametrize("kind", [each for each in FailureKind if each is not FailureKind.SYNC_FAILED])
def test_nothing_else_is_tried_again(kind):
    membership, _, sync = call((Failure(kind, "for another reason"),))
    with pytest.raises(Exception, match="for another reason"):
        sync.run()
    assert len(membership.requests) == 1


def test_an_attempt_votes_for_what_is_held_then():
    membership, _, sync = call((LOST,), (LOST, 5.0), (InSync(3, 7), 6.0))
    assert tuple(sync.run()) == (0, 8)
    first, second, third = (request.content for request in membership.requests)
    assert first == second, "nothing came"
    assert third != second, "what came is what is held"
    assert [request.torn for request in membership.requests] == [False, False, True]


def test_a_state_is_torn_until_a_sync_says_what_is_held():
    _, state, sync = call((LOST, 5.0), (InSync(2, 7), 6.0))
    sync.run()
    assert not state.torn
    _, state, sync = call((KeyboardInterrupt(), 5.0))
    with pytest.raises(KeyboardInterrupt):
        sync.run()
    assert state.torn


def test_a_failure_of_another_peer_leaves_the_revision_that_is_held():
    _, state, sync = call(*[(Failure(FailureKind.SYNC_FAILED, "another peer failed", revision=4),)] * ATTEMPTS_MAX)
    with pytest.raises(SyncFailed):
        sync.run()
    assert (state.revision, state.torn) == (4, False)


def test_if_the_only_holder_was_lost_that_is_the_cause():
    _, _, sync = call((LOST,), (NO_OFFER,))
    with pytest.raises(SyncFailed, match="lost in the middle of it; the next attempt: no peer offers a shared state"):
        sync.run()
    _, _, sync = call((NO_OFFER,))
    with pytest.raises(CallMismatch, match="no peer offers"):
        sync.run()
