"""Peers that vanish together cost work in proportion to their number, not to its square or cube."""

import sys

import pytest

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Closed, Received, Send
from pccl.core.fields import Identity
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.master.part import Departure
from pccl.core.messages.to_master import Initiate, Join, LinkUp
from pccl.core.messages.to_peer import Start, Topology, Wire
from pccl.types import PeerId
from tests.unit.scripted_master import SPEC

LIMITS = MasterLimits(reunion_s=5.0)


def admitted(groups: int, size: int) -> Master:
    """A master with so many groups of this size, and one peer in a group of its own."""
    master = Master("run", LIMITS, follows=True)
    master.handle(Tick(), 0.0)
    connections = [(1 + group * size + place, group) for group in range(groups) for place in range(size)]
    for connection, group in [*connections, (len(connections) + 1, groups)]:
        master.handle(Received(connection, Join(Identity(f"p{connection}", group, "h", 1, 1))), 0.0)
    for effect in master.handle(Tick(), LIMITS.newborn_s):
        if isinstance(effect, Send) and isinstance(effect.message, Wire):
            for link in effect.message.links:
                master.handle(Received(effect.connections[0], LinkUp(link.number)), LIMITS.newborn_s)
    assert len(master.roster.accepted) == groups * size + 1
    return master


def calls_to_lose_all(groups: int, size: int) -> int:
    """How many functions are called in the one event in which all peers but the last one are given up."""
    master, calls = admitted(groups, size), 0
    now = LIMITS.newborn_s + 1.0
    for connection in range(1, groups * size + 1):
        master.handle(Closed(connection, "reset"), now)
    while (deadline := master.next_deadline()) is not None and deadline < now + LIMITS.reunion_s:
        master.handle(Tick(), deadline)

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        effects = master.handle(Tick(), now + LIMITS.reunion_s)
    finally:
        sys.setprofile(None)
    assert list(master.roster.accepted) == [f"p{groups * size + 1}"]
    told = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Topology)]
    assert (told[-1].global_size, told[-1].groups, told[-1].largest_group) == (1, 1, 1)
    return calls


@pytest.mark.parametrize("size", [1, 2])
def test_groups_that_vanish_together_cost_no_more_than_their_number(size: int) -> None:
    few, many = calls_to_lose_all(20, size), calls_to_lose_all(160, size)
    assert many < 12 * few, f"eight times as many peers took {many / few:.0f} times as many calls"


def test_votes_of_peers_that_vanish_together_do_not_stand_in_for_one_that_is_missing() -> None:
    """Of four peers two are left, one of which has voted; so had the two that go."""
    master, now = admitted(1, 4), LIMITS.newborn_s + 1.0
    for voter in (2, 3, 4):
        master.handle(Received(voter, Initiate(0, SPEC)), now)
    master.remove(*(Departure(master.roster.accepted[PeerId(peer)], "it died", now) for peer in ("p3", "p4")))
    effects = master.handle(Tick(), now)
    assert list(master.roster.accepted) == ["p1", "p2", "p5"]
    assert not [each for each in effects if isinstance(each, Send) and isinstance(each.message, Start)]
    (started,) = [
        each
        for each in master.handle(Received(1, Initiate(0, SPEC)), now)
        if isinstance(each, Send) and isinstance(each.message, Start)
    ]
    assert started.connections == (1, 2)
