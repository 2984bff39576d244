"""A peer that others wait for learns so, and forgets it with what it does next."""

import pytest

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Received, Send
from pccl.core.effects.peer_events import Call, CallCollective, FromMaster, UpdateTopology
from pccl.core.fields import CollectiveSpec, Identity
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.messages.to_master import Initiate, Join, LinkUp, VoteTopology
from pccl.core.messages.to_peer import Awaited, Topology, Wire
from pccl.types import DataType, PeerId, ReduceOp
from tests.unit.test_abandon import accepted_peer

SPEC = CollectiveSpec(4, DataType.FLOAT, ReduceOp.SUM)


class Run:
    """A master and peers whose links stand."""

    def __init__(self, peers):
        self.master, self.now, self.sent = Master("run", MasterLimits()), 0.0, []
        for number in range(1, peers + 1):
            identity = Identity(PeerId(f"{number:032x}"), 0, "", 40_000 + number, 1, secret=str(number))
            self.post(Received(number, Join(identity), "10.0.0.1"))
            for voter in range(1, number):
                self.post(Received(voter, VoteTopology()))
        self.sent.clear()

    def post(self, event):
        for effect in self.master.handle(event, self.now):
            if isinstance(effect, Send):
                self.sent += [(each, effect.message) for each in effect.connections]
                if isinstance(effect.message, Wire):
                    for each in effect.connections:
                        for link in effect.message.links:
                            self.post(Received(each, LinkUp(link.number)))

    def pass_time(self, seconds):
        until = self.now + seconds
        while (deadline := self.master.next_deadline()) is not None and deadline <= until:
            self.now = deadline
            self.post(Tick())
        self.now = until

    def told(self):
        found = [(connection, each) for connection, each in self.sent if isinstance(each, Awaited)]
        self.sent.clear()
        return found


@pytest.fixture
def run():
    return Run(3)


def test_it_learns_which_call_and_for_how_long(run):
    run.post(Received(1, Initiate(5, SPEC)))
    run.pass_time(2.5)
    told = run.told()
    assert [(connection, each.call) for connection, each in told] == [(2, "tag 5"), (3, "tag 5")]
    assert all(each.age_ms <= 2500 for _, each in told)


def test_a_peer_that_has_called_is_not_told_and_the_other_is_told_again(run):
    run.post(Received(1, Initiate(5, SPEC)))
    run.post(Received(2, Initiate(5, SPEC)))
    run.pass_time(9.0)
    told = run.told()
    assert {connection for connection, _ in told} == {3}
    assert len(told) >= 3
    assert [each.age_ms for _, each in told] == sorted(each.age_ms for _, each in told)


def test_when_none_waits_none_is_told(run):
    for connection in (1, 2, 3):
        run.post(Received(connection, Initiate(5, SPEC)))
    run.sent.clear()
    run.pass_time(9.0)
    assert run.told() == []


def test_a_peer_keeps_it_until_it_calls():
    peer = accepted_peer()
    peer.handle(FromMaster(Awaited("tag 5", 1500)), 10.0)
    assert peer.awaited == ("tag 5", 8.5)
    peer.handle(Call(1, CallCollective(5, SPEC)), 11.0)
    assert peer.awaited is None


@pytest.mark.parametrize(
    ("request_", "call"), [(CallCollective(5, SPEC), "tag 5"), (UpdateTopology(), "update_topology")]
)
def test_what_was_sent_before_its_vote_arrived_is_passed_over(request_, call):
    peer = accepted_peer()
    peer.handle(Call(1, request_), 10.0)
    peer.handle(FromMaster(Awaited(call, 1500)), 10.1)
    assert peer.awaited is None


def test_another_roster_is_another_wait():
    peer = accepted_peer()
    peer.handle(FromMaster(Awaited("tag 5", 1500)), 10.0)
    peer.handle(FromMaster(Topology(2, ("a", "b"), 2, 1, 2)), 11.0)
    assert peer.awaited is None
