"""A limit on votes: those that keep more others waiting are put out, and the many are not put out for the few."""

from pccl.core.fields import KickKind
from pccl.core.messages.to_master import AskPending, VoteTopology
from pccl.core.messages.to_peer import Kick, Topology
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
