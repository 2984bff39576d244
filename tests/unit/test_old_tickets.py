"""A ticket that a master has signed long ago, shown by a peer that kept it: what is later wins."""

import pytest
from msgspec import structs

from pccl.core.fields import Identity, KickKind
from pccl.core.master.tickets import Tickets
from pccl.core.messages.report import Answered, ReportPart
from pccl.core.messages.to_master import Join, Resume
from pccl.core.messages.to_peer import Kick, Topology
from tests.unit.scripted_master import LIMITS, Stage, taken_back
from tests.unit.test_tickets import keys

YESTERDAY, LATELY = 1_000.0, 90_000.0


def told(peer: str, run: str, epoch: int, ring: tuple[str, ...], at: float, **facts: int) -> tuple[Resume, ReportPart]:
    """What a peer reports that was told of this epoch then."""
    group, size = facts.get("group", 0), facts.get("size", len(ring))
    topology = Tickets(keys()).issue(run, group, Topology(epoch, ring, size, 1, 1), (0, 0), at)
    me = Identity(peer, group, "10.0.0.1", 1, 1, secret=f"of {peer}")
    resume = Resume(
        me=me, run=run, epoch=epoch, global_size=size, last_link=0, answered=Answered(), dial=1, ticket=topology.ticket
    )
    return resume, ReportPart(ring=ring, last=True)


def restarted() -> Stage:
    """Another master with the same secret, some time later."""
    return Stage(keys=keys()._replace(clock_s=100_000.0), follows=True)


def kick_of(stage: Stage, connection: int) -> KickKind:
    kick = stage.last(connection, Kick)
    assert isinstance(kick, Kick)
    return kick.kind


OLD = {
    "of an earlier run": told("mallory", "old", 9, ("mallory",), YESTERDAY),
    "of an earlier run of many": told("mallory", "old", 9, ("mallory", "x", "y", "z"), YESTERDAY),
    "of an earlier epoch": told("mallory", "new", 1, ("mallory",), YESTERDAY),
}
HONEST = [told(peer, "new", 5, ("anna", "bert"), LATELY) for peer in ("anna", "bert")]


@pytest.mark.parametrize("what", OLD)
def test_an_old_ticket_that_comes_first_ends_no_run(what: str) -> None:
    stage = restarted()
    stage.send(0, *OLD[what])
    assert taken_back(stage) == []
    stage.wait(1.0)
    stage.send(1, *HONEST[0])
    stage.send(2, *HONEST[1])
    stage.wait(LIMITS.newborn_s)
    assert taken_back(stage) == [1, 2]
    assert kick_of(stage, 0) in (KickKind.OTHER_RUN, KickKind.LATE)
    assert stage.master.lead.run == "new"


@pytest.mark.parametrize("what", ["of an earlier run", "of an earlier epoch"])
def test_one_that_has_won_gives_way_to_those_who_noticed_late(what: str) -> None:
    """Their machine lost its power, say: they come half a minute after the one with the old ticket."""
    stage = restarted()
    stage.send(0, *OLD[what])
    stage.wait(30.0)
    assert taken_back(stage) == [0]
    for connection, report in enumerate(HONEST, start=1):
        stage.send(connection, *report)
    stage.wait(LIMITS.newborn_s)
    assert taken_back(stage) == [0, 1, 2]
    assert kick_of(stage, 0) is KickKind.DISPLACED
    assert stage.last(1, Kick) is None


def test_what_is_issued_after_a_run_came_back_is_the_latest() -> None:
    """The clock of the next master may be behind; or a run that began in between has a ticket that is later."""
    stage = Stage(keys=keys(), follows=True)
    stage.send(0, *HONEST[0])
    stage.send(1, *HONEST[1])
    stage.wait(LIMITS.newborn_s)
    topology = stage.last(0, Topology)
    assert isinstance(topology, Topology)
    assert topology.ticket is not None
    assert topology.ticket.issued_at > LATELY * 1000


def test_a_member_that_was_away_too_long_is_late_as_ever() -> None:
    """Its ticket is one of ours: no reason to gather anything."""
    stage = restarted()
    stage.send(0, *HONEST[0])
    stage.send(1, *HONEST[1])
    stage.wait(LIMITS.newborn_s)
    topology = stage.last(0, Topology)
    assert isinstance(topology, Topology)
    resume, ring = HONEST[1]
    stage.close(1)
    stage.wait(LIMITS.reunion_s + 0.1)
    stage.send(
        2, structs.replace(resume, epoch=topology.epoch, ticket=topology.ticket, master="another", received=1), ring
    )
    assert kick_of(stage, 2) is KickKind.LATE


def test_a_late_report_of_the_same_roster_puts_no_member_out() -> None:
    """Of a later epoch, which those that are here have not received, though they are in it."""
    stage = restarted()
    for connection, peer in enumerate(("anna", "bert")):
        stage.send(connection, *told(peer, "new", 5, ("anna", "bert"), LATELY))
    stage.wait(10.0)
    stage.send(2, *told("carl", "new", 6, ("anna", "bert", "carl"), LATELY + 1))
    stage.wait(LIMITS.reunion_s)
    assert kick_of(stage, 2) is KickKind.LATE
    assert stage.last(0, Kick) is None


def test_one_that_was_put_out_of_a_group_of_its_own_is_not_let_back() -> None:
    stage = restarted()
    stage.send(0, *told("mallory", "new", 4, ("mallory",), LATELY, group=1, size=3))
    for connection, report in enumerate(HONEST, start=1):
        stage.send(connection, *report)
    stage.wait(LIMITS.reunion_s)
    assert taken_back(stage) == [1, 2]
    assert kick_of(stage, 0) is KickKind.LATE


def test_nor_in_the_place_of_one_that_comes_in_time() -> None:
    stage = restarted()
    stage.send(0, *told("mallory", "new", 4, ("mallory",), LATELY, group=1, size=4))
    for connection, peer in enumerate(("anna", "bert"), start=1):
        stage.send(connection, *told(peer, "new", 5, ("anna", "bert"), LATELY, size=3))
    stage.wait(LIMITS.reunion_s - 0.5)
    assert taken_back(stage) == []
    stage.send(3, *told("gina", "new", 5, ("gina",), LATELY, group=2, size=3))
    assert taken_back(stage) == [1, 2, 3]
    assert kick_of(stage, 0) is KickKind.LATE


def test_a_young_run_does_not_give_way_to_one_old_ticket() -> None:
    """Nor to as many as it has members, however many the ticket names; to more it does: an earlier run comes back."""
    stage = restarted()
    stage.send(0, Join(Identity("anna", 0, "", 2, 0)))
    stage.wait(LIMITS.newborn_s + 0.1)
    assert isinstance(stage.last(0, Topology), Topology)
    ring = ("mallory", "marvin")
    stage.send(1, *told("mallory", "old", 9, ring, YESTERDAY))
    stage.wait(LIMITS.silence_s - 10)
    assert stage.last(0, Kick) is None
    assert kick_of(stage, 1) is KickKind.OTHER_RUN
    for connection, peer in enumerate(ring, start=2):
        stage.send(connection, *told(peer, "old", 9, ring, YESTERDAY))
    stage.wait(LIMITS.newborn_s)
    assert kick_of(stage, 0) is KickKind.DISPLACED
    assert taken_back(stage) == [2, 3]
