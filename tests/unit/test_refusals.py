"""Whoever is refused a collective for calls that contradict it is refused all that it said before it heard of that."""

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Received
from pccl.core.fields import CollectiveSpec
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import Initiate, VoteTopology
from pccl.core.messages.to_peer import RefusedCollective, RefusedTopology, Start
from pccl.types import DataType, ReduceOp
from tests.unit.test_broadcast_root import CONNECTIONS, messages, three_accepted

SPEC = CollectiveSpec(8, DataType.FLOAT, ReduceOp.SUM)


def say(master, connection, message, now):
    return master.handle(Received(connection, message), now)


def three_who_answered():
    """A master with a ring of three, none of whom owes it an answer."""
    master, _ = three_accepted()
    for connection, peer in CONNECTIONS.items():
        for _ in list(master.roster.accepted[peer].pulse.pings):
            say(master, connection, Pong(), 0.5)
    return master


def refused_one():
    """One that has refused tag 0 of the first peer, since the third one wants another topology."""
    master = three_who_answered()
    say(master, 1, Initiate(0, SPEC), 1.0)
    effects = say(master, 3, VoteTopology(), 1.0)
    assert messages(effects, RefusedTopology)[0][0] == 3
    [(connection, refusal)] = messages(effects, RefusedCollective)
    assert (connection, refusal.tag) == (1, 0)
    assert [connection for connection, _ in messages(effects, Ping)] == [1]
    return master, refusal


def test_what_crosses_with_the_refusal_is_refused_too():
    master, refusal = refused_one()
    [(connection, second)] = messages(say(master, 1, Initiate(1, SPEC), 1.1), RefusedCollective)
    assert (connection, second.tag, second.reason) == (1, 1, refusal.reason)
    assert master.explain() == (), "nobody waits for anything"


def test_what_is_said_after_it_counts():
    master, _ = refused_one()
    say(master, 1, Pong(), 1.2)
    effects = [effect for connection in CONNECTIONS for effect in say(master, connection, Initiate(1, SPEC), 1.3)]
    assert len(messages(effects, Start)) == 3


def test_who_was_refused_nothing_is_heard():
    master, _ = refused_one()
    assert messages(say(master, 2, Initiate(0, SPEC), 1.1), RefusedCollective) == []
    assert len(master.explain()) == 1


def test_an_answer_to_an_earlier_ping_says_nothing_of_the_refusal():
    master = three_who_answered()
    say(master, 2, Initiate(0, SPEC), 1.0)
    pinged: list[int] = []
    while 1 not in pinged:
        now = master.next_deadline()
        pinged = [connection for connection, _ in messages(master.handle(Tick(), now), Ping)]
    say(master, 1, Initiate(0, SPEC), now + 0.1)
    say(master, 3, VoteTopology(), now + 0.2)
    say(master, 1, Pong(), now + 0.3)
    assert messages(say(master, 1, Initiate(1, SPEC), now + 0.4), RefusedCollective) != []
    say(master, 1, Pong(), now + 0.5)
    assert messages(say(master, 1, Initiate(1, SPEC), now + 0.6), RefusedCollective) == []
