"""A vote for a collective that is taken back: until the start it is gone with all that came with it, then it stays."""

import pytest

from pccl.core.effects.master import Received
from pccl.core.effects.peer_effects import Failure, FailureKind, Resolve, SendMaster, StartAttempt
from pccl.core.effects.peer_events import CallCollective
from pccl.core.fields import CollectiveSpec
from pccl.core.limits import PeerLimits
from pccl.core.messages.to_master import AskPending, Initiate, LinkDown, LinkUp, Withdraw
from pccl.core.messages.to_peer import Start, Wire, Withdrawn
from pccl.core.peer.collectives import Collectives
from pccl.core.peer.links import Links
from pccl.core.peer.outbox import Outbox
from pccl.core.text import Violation
from pccl.types import DataType, PeerId, ReduceOp
from tests.unit.test_broadcast_root import messages, three_accepted

SPEC = CollectiveSpec(8, DataType.FLOAT, ReduceOp.SUM)


def vote(master, *connections, tag=0, parcel=0):
    effects = []
    for connection in connections:
        effects += master.handle(Received(connection, Initiate(tag, SPEC, parcel)), 0.0)
    return effects


def withdraw(master, connection, tag=0):
    return messages(master.handle(Received(connection, Withdraw((tag,))), 0.0), Withdrawn)


def test_whoever_withdraws_reads_which_peers_did_not_call_and_where_they_wait():
    master, _ = three_accepted()
    vote(master, 2, tag=7)
    master.handle(Received(3, AskPending()), 0.0)
    vote(master, 1)
    ((connection, withdrawn),) = withdraw(master, 1)
    assert (connection, withdrawn.missing) == (1, ("b", "c"))
    assert "b (it waits in tag 7), c (it waits in are_peers_pending)" in withdrawn.reason
    assert not any("tag 0" in sentence for sentence in master.explain())


def test_the_others_wait_for_another_vote():
    master, _ = three_accepted()
    vote(master, 1, 2)
    withdraw(master, 2)
    assert messages(vote(master, 3), Start) == []
    assert [connection for connection, _ in messages(vote(master, 2), Start)] == [1, 2, 3]


def test_a_parcel_goes_with_its_vote():
    master, _ = three_accepted()
    vote(master, 1, 2, parcel=1)
    withdraw(master, 1)
    vote(master, 3, parcel=1)
    ((_, start), *_) = messages(vote(master, 1), Start)
    assert (start.lanes != (), start.parcels) == (True, ())


def test_what_has_started_goes_on():
    master, _ = three_accepted()
    assert messages(vote(master, 1, 2, 3), Start)
    assert withdraw(master, 1) == []


def test_a_vote_that_is_not_there_cannot_be_taken_back():
    master, _ = three_accepted()
    vote(master, 1)
    assert withdraw(master, 2) == []
    assert withdraw(master, 1, tag=5) == []
    assert len(withdraw(master, 1)) == 1
    assert withdraw(master, 1) == []


def test_one_that_all_have_called_and_that_has_not_started():
    """A link is down, so it waits though all votes are in."""
    master, links = three_accepted()
    wires = messages(master.handle(Received(1, LinkDown(links[1], "broken")), 0.0), Wire)
    assert messages(vote(master, 1, 2, 3), Start) == []
    ((_, withdrawn),) = withdraw(master, 1)
    assert withdrawn.missing == ()
    assert "all peers of the group have called" in withdrawn.reason
    for connection, wire in wires:
        for link in wire.links:
            effects = master.handle(Received(connection, LinkUp(link.number)), 0.0)
            assert messages(effects, Start) == []
    assert len(messages(vote(master, 1), Start)) == 3


def test_votes_of_one_call_are_taken_back_together_or_not_at_all():
    master, _ = three_accepted()
    vote(master, 1, 2, 3, tag=1)
    vote(master, 1, tag=2)
    assert messages(master.handle(Received(1, Withdraw((1, 2))), 0.0), Withdrawn) == []
    vote(master, 1, tag=3)
    ((_, withdrawn),) = messages(master.handle(Received(1, Withdraw((2, 3))), 0.0), Withdrawn)
    assert (withdrawn.tags, withdrawn.missing) == ((2, 3), ("b", "c"))
    assert not any("tag 2" in sentence or "tag 3" in sentence for sentence in master.explain())


def test_one_tag_twice_is_no_votes_for_two():
    master, _ = three_accepted()
    vote(master, 1, tag=2)
    assert messages(master.handle(Received(1, Withdraw((2, 2))), 0.0), Withdrawn) == []


# ── at the peer ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def runs():
    outbox = Outbox()
    effects = outbox.effects
    runs = Collectives(PeerId("a"), Links(PeerId("a"), PeerLimits(), outbox), outbox)
    runs.initiate(1, CallCollective(0, SPEC), (PeerId("a"), PeerId("b")), 0)
    effects.clear()
    return runs, effects


def test_a_vote_is_taken_back_once(runs):
    runs, effects = runs
    runs.withdraw((1,))
    runs.withdraw((1,))
    runs.withdraw((2,))
    assert effects == [SendMaster(Withdraw((0,)))]
    effects.clear()
    runs.dispatch(Withdrawn((0,), ("b",), "b did not call"), 1, ("a", "b"))
    assert effects == [Resolve(1, Failure(FailureKind.TIMED_OUT, "b did not call", 0, (PeerId("b"),)))]
    assert runs.tags == []


def test_another_master_is_asked_again(runs):
    runs, effects = runs
    runs.resume()
    assert effects == []
    runs.withdraw((1,))
    effects.clear()
    runs.resume()
    assert effects == [SendMaster(Withdraw((0,)))]


def test_a_start_that_crosses_it_is_carried_out(runs):
    runs, effects = runs
    runs.withdraw((1,))
    runs.dispatch(Start(0, 3, 1, (0,), 8), 1, (PeerId("a"), PeerId("b")))
    assert not any(isinstance(effect, StartAttempt | Resolve) for effect in effects), (
        "without lanes it reports a failure"
    )
    assert runs.tags == [0]
    with pytest.raises(Violation, match="after a start"):
        runs.dispatch(Withdrawn((0,), (), ""), 1, ("a", "b"))


def test_nobody_else_takes_our_vote_back(runs):
    runs, _ = runs
    with pytest.raises(Violation, match="did not ask"):
        runs.dispatch(Withdrawn((0,), (), ""), 1, ("a", "b"))
