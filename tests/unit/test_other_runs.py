"""Runs that end and come back, and newcomers: who begins one, and when none begins."""

from pccl.core.fields import Identity
from pccl.core.messages.report import ReportPart
from pccl.core.messages.to_master import Join, Leave
from pccl.core.messages.to_peer import Kick, Resumed, Topology, Welcome
from tests.unit.scripted_master import LIMITS, RING, Stage, resume, taken_back


def with_one_peer() -> Stage:
    stage = Stage()
    stage.send(0, Join(Identity("anna", 0, "", 1, 0, secret="hers")))
    assert isinstance(stage.last(0, Topology), Topology)
    return stage


def test_newcomers_do_not_take_the_place_of_the_last_one_who_is_cut_off() -> None:
    stage = with_one_peer()
    stage.send(1, Join(Identity("bert", 0, "", 2, 0)))
    stage.close(0)
    assert stage.last(1, Topology) is None
    assert any("bert" in sentence for sentence in stage.master.explain())
    stage.send(2, resume("anna", run="another", secret="hers", master="another", received=2))
    assert isinstance(stage.last(2, Resumed), Resumed)
    stage.wait(LIMITS.reunion_s)
    assert stage.last(1, Topology) is None, "whoever is back is asked"


def test_newcomers_begin_another_run_if_the_last_one_stays_away() -> None:
    stage = with_one_peer()
    stage.send(1, Join(Identity("bert", 0, "", 2, 0)))
    stage.close(0)
    stage.wait(LIMITS.reunion_s)
    assert isinstance(stage.last(1, Topology), Topology)
    welcome = stage.last(1, Welcome)
    assert isinstance(welcome, Welcome)
    assert welcome.run != "another"


def test_newcomers_do_not_wait_for_one_who_said_goodbye() -> None:
    stage = with_one_peer()
    stage.send(1, Join(Identity("bert", 0, "", 2, 0)))
    stage.send(0, Leave())
    assert isinstance(stage.last(1, Topology), Topology)


def test_a_run_that_has_just_begun_in_its_place_gives_way_to_one_that_comes_back() -> None:
    """However old the master is."""
    stage = with_one_peer()
    stage.master.lead.follows = True
    stage.wait(1000.0)
    stage.close(0)
    stage.send(1, Join(Identity("bert", 0, "", 2, 0)))
    stage.wait(LIMITS.reunion_s + 1.0)
    assert isinstance(stage.last(1, Topology), Topology)
    stage.come_back(2, "anna", ring=("anna",), global_size=1, run="another", secret="hers")
    assert isinstance(stage.last(1, Kick), Kick)
    assert isinstance(stage.last(2, Resumed), Resumed)


def test_two_masters_that_go_on_with_the_same_run_count_from_different_numbers() -> None:
    """Each may have led it before."""
    epochs = set()
    for name in ("one", "two"):
        stage = Stage()
        stage.master.lead.name, stage.master.lead.run = name, "therun"
        for place, peer in enumerate(RING):
            stage.come_back(place, peer)
        topology = stage.last(0, Topology)
        assert isinstance(topology, Topology)
        epochs.add(topology.epoch)
    assert len(epochs) == 2


def test_a_straggler_of_a_run_that_is_over_ends_no_other() -> None:
    """It was given up, and the others went on without it until they said goodbye."""
    stage = with_one_peer()
    stage.master.lead.follows = True
    stage.send(0, Leave())
    stage.send(1, Join(Identity("carl", 0, "", 2, 0)))
    stage.wait(1.0)
    stage.come_back(2, "anna", ring=("anna",), global_size=9, run="another", secret="hers")
    assert isinstance(stage.last(2, Kick), Kick)
    assert stage.last(1, Kick) is None


def test_of_two_runs_that_come_back_that_with_more_peers_goes_on() -> None:
    """A master's machine was lost, newcomers began another run before the others had noticed, and the next master died
    before these had told it all they knew."""
    stage = Stage()
    stage.send(0, resume("anna"), ReportPart(ring=RING))
    stage.come_back(9, "upstart", ring=("upstart",), global_size=1, run="young")
    assert stage.last(0, Kick) is None, "it is not done yet"
    assert any("several runs" in sentence for sentence in stage.master.explain())
    stage.send(0, ReportPart(last=True))
    for connection, peer in enumerate(RING[1:], start=1):
        stage.come_back(connection, peer)
    stage.wait(LIMITS.reunion_s)
    assert taken_back(stage) == [0, 1, 2, 3]
    assert isinstance(stage.last(9, Kick), Kick)


def test_a_straggler_of_a_smaller_run_holds_nobody_up() -> None:
    stage = Stage()
    stage.come_back(9, "straggler", ring=("straggler", "other"), global_size=2, run="old")
    for connection, peer in enumerate(RING):
        stage.come_back(connection, peer)
    assert taken_back(stage) == [0, 1, 2, 3]


def test_candidates_begin_a_run_when_those_who_came_back_are_gone_again() -> None:
    stage = Stage()
    stage.send(0, resume("anna"))
    stage.send(1, Join(Identity("bert", 0, "", 2, 0)))
    assert stage.last(1, Topology) is None
    stage.close(0)
    stage.wait(LIMITS.reunion_s)
    assert isinstance(stage.last(1, Topology), Topology)


def test_a_master_that_stood_still_hears_those_who_came_back_before_newcomers_begin() -> None:
    """What they sent is unread when it wakes up, long after the newcomers' time to wait was over."""
    stage = Stage(follows=True)
    stage.send(0, Join(Identity("newcomer", 0, "", 1, 0)))
    stage.now += 10.0
    stage.tick()
    assert stage.last(0, Topology) is None
    for connection, peer in enumerate(RING, start=1):
        stage.come_back(connection, peer)
    assert taken_back(stage) == [1, 2, 3, 4]
