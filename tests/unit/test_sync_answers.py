"""Every voter of a sync is answered, once and together: those that the election refused, and those it cannot serve."""

import pytest

from pccl.core.effects.master import Close, Received
from pccl.core.master import sync as syncs
from pccl.core.messages.to_master import SyncEnded, SyncState
from pccl.core.messages.to_peer import RefusedSync, StartSync, Synced
from pccl.types import SharedStateSyncStrategy
from tests.unit.test_broadcast_root import messages, three_accepted

POPULAR, SEND = SharedStateSyncStrategy.ENFORCE_POPULAR, SharedStateSyncStrategy.SEND_ONLY
LAYOUT = bytes(16)


RECEIVE = SharedStateSyncStrategy.RECEIVE_ONLY


def vote(master, connection, revision, word, strategy=POPULAR):
    state = SyncState(revision, strategy, LAYOUT, word.encode().ljust(16))
    return master.handle(Received(connection, state), 0.0)


def test_whoever_was_refused_is_answered_with_the_others_and_cannot_vote_in_between():
    master, _ = three_accepted()
    vote(master, 1, 1, "sent", SEND)
    vote(master, 2, 1, "other", SEND)
    effects = vote(master, 3, 0, "x", RECEIVE)
    assert messages(effects, RefusedSync) == []
    assert any(isinstance(effect, Close) for effect in vote(master, 2, 0, "again")), "it has no answer yet"


def test_all_are_told_at_the_end():
    master, _ = three_accepted()
    vote(master, 1, 1, "sent", SEND)
    vote(master, 2, 1, "other", SEND)
    attempt = messages(vote(master, 3, 0, "x", RECEIVE), StartSync)[0][1].attempt
    assert messages(master.handle(Received(3, SyncEnded(attempt, "")), 0.0), Synced) == []
    effects = master.handle(Received(1, SyncEnded(attempt, "")), 0.0)
    assert [connection for connection, _ in messages(effects, Synced)] == [1, 3]
    assert [(connection, refused.usage) for connection, refused in messages(effects, RefusedSync)] == [(2, True)]


def test_pullers_beyond_what_a_holder_bears_make_all_call_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(syncs, "PULLERS_MAX", 1)
    master, _ = three_accepted()
    vote(master, 1, 1, "held")
    vote(master, 2, 0, "x")
    started = messages(vote(master, 3, 0, "x"), StartSync)
    assert [(connection, start.pull) for connection, start in started] == [(2, True), (1, False)]
    attempt = started[0][1].attempt
    master.handle(Received(2, SyncEnded(attempt, "")), 0.0)
    effects = master.handle(Received(1, SyncEnded(attempt, "")), 0.0)
    assert [(connection, refused.usage) for connection, refused in messages(effects, RefusedSync)] == [
        (connection, False) for connection in (1, 2, 3)
    ]
    # The one that has it by now is a holder in the next try.
    vote(master, 1, 1, "held")
    vote(master, 2, 1, "held")
    (puller,) = [start for connection, start in messages(vote(master, 3, 0, "x"), StartSync) if connection == 3]
    assert puller.peers == ("a", "b")
