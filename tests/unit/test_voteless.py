"""A limit on votes: those that keep more others waiting are put out, and the many are not put out for the few."""

import pytest

from pccl.core.fields import KickKind
from pccl.core.limits import MasterLimits
from pccl.core.messages.to_master import AskPending, Initiate, VoteTopology
from pccl.core.messages.to_peer import Kick, Topology
from tests.unit import test_parties
from tests.unit.scripted_master import SPEC
from tests.unit.test_candidates import Run


def run_of_three() -> Run:
    """Each in a group of its own, so that none needs a link."""
    run = Run(vote_timeout_s=10.0)
    for connection, peer in ((2, "bert"), (3, "carl")):
        run.join(connection, peer, group=connection)
        for voter in range(1, connection):
            run.say(voter, VoteTopology())
        run.pass_time(1.0, 2, 3)
        assert run.last(connection, Topology)
    return run


def kicked(run: Run) -> list[int]:
    return [
        connection
        for connection in (1, 2, 3)
        if isinstance(kick := run.last(connection, Kick), Kick) and kick.kind is KickKind.VOTELESS
    ]


def test_one_that_keeps_two_waiting_goes() -> None:
    run = run_of_three()
    run.say(1, AskPending())
    run.say(3, AskPending())
    run.pass_time(9.0, 2, 3)
    assert kicked(run) == []
    run.pass_time(10.0, 2, 3)
    assert kicked(run) == [2]


def test_one_that_waits_alone_gets_none_of_the_others_kicked() -> None:
    run = run_of_three()
    run.say(2, AskPending())
    run.pass_time(40.0, 2, 3)
    assert kicked(run) == []


@pytest.fixture
def machines() -> test_parties.Run:
    """Two of two peers each, `a` before `b`; each peer is in a group with one of the other machine."""
    run = test_parties.Run(MasterLimits(mesh_peers_max=0, vote_timeout_s=10.0))
    for name in test_parties.NAMES[:4]:
        run.join(name)
    run.admit()
    assert run.here == ["a0", "a1", "b0", "b1"]
    run.pass_time(1.0)
    return run


def test_a_machine_that_keeps_another_one_waiting_goes(machines: test_parties.Run) -> None:
    """Only one of its peers is waited for, by one: the other would go along, and waits for nothing."""
    machines.hear(1, Initiate(0, SPEC))
    machines.pass_time(8.0)
    assert machines.here == ["a0", "a1", "b0", "b1"]
    machines.pass_time(6.0)
    assert machines.here == ["a0", "a1"]
    kicks = [machines.last(connection, Kick) for connection in (3, 4)]
    assert [each.kind for each in kicks if isinstance(each, Kick)] == [KickKind.VOTELESS, KickKind.PARTY]


def test_a_machine_that_came_later_gets_no_elder_one_kicked(machines: test_parties.Run) -> None:
    machines.hear(3, Initiate(0, SPEC))
    machines.hear(4, AskPending())
    machines.pass_time(40.0)
    assert machines.here == ["a0", "a1", "b0", "b1"]
