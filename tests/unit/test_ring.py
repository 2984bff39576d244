"""Rings and their neighbours, against brute force."""

from itertools import permutations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pccl.core.rules.ring import LOOKS_MAX, Pair, arrange, mesh, pair, pairs
from pccl.types import PeerId


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"p{number:02d}") for number in range(count)]


def test_one_peer_has_no_neighbour_two_share_one_link_three_have_three() -> None:
    assert pairs(peers(1)) == ()
    assert pairs(peers(2)) == (("p00", "p01"),)
    assert len(set(pairs(peers(3)))) == 3


@given(st.integers(3, 6), st.data())
def test_arrange_finds_a_ring_exactly_when_there_is_one(count: int, data: st.DataObject) -> None:
    members = peers(count)
    every = [pair(a, b) for number, a in enumerate(members) for b in members[number + 1 :]]
    avoid: list[Pair] = data.draw(st.lists(st.sampled_from(every), unique=True))
    found = arrange(members, avoid)
    possible = any(not set(pairs(order)) & set(avoid) for order in permutations(members))
    assert (found is not None) == possible
    if found is not None:
        assert sorted(found) == sorted(members)
        assert not set(pairs(found)) & set(avoid)


def test_the_given_order_is_kept_when_nothing_is_in_its_way() -> None:
    members = peers(5)
    assert arrange(members, [pair(members[0], members[2])]) == tuple(members)


def test_a_search_without_end_is_given_up() -> None:
    """Twenty peers, one of which nobody can reach: without the bound this would take years."""
    members = peers(20)
    assert arrange(members, [pair(members[19], other) for other in members[:19]]) is None


class Looked(str):
    """A name that counts how often somebody looks it up."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Looked.looks += 1
        return super().__hash__()


def test_a_search_among_many_is_given_up_as_soon() -> None:
    """A thousand, and more of them behind NAT than not: a step costs a look at each member."""
    members = [PeerId(Looked(name)) for name in peers(1000)]
    avoid = mesh(members[:501])
    Looked.looks = 0
    assert arrange(members, frozenset(avoid)) is None
    unavoidable = 10 * len(avoid) + 2 * len(members) ** 2
    assert Looked.looks < unavoidable + 2 * LOOKS_MAX


@pytest.mark.parametrize("count", [9, 12, 30])
def test_a_ring_of_many_is_found_between_pairs_that_cannot_reach_each_other(count: int) -> None:
    """There is one for sure: only pairs that are no neighbours in a hidden one are avoided, up to a third of them."""
    for seed in range(30):
        random = Random(seed)
        members = peers(count)
        hidden = set(pairs(random.sample(members, count)))
        avoid = [ends for ends in mesh(members) if ends not in hidden and random.random() < 0.3]
        found = arrange(members, avoid)
        assert found is not None
        assert sorted(found) == members
        assert not set(pairs(found)) & set(avoid)


def test_peers_behind_nat_find_places_when_the_others_are_as_many() -> None:
    members = peers(20)
    assert arrange(members, mesh(members[5:15])) is not None
    assert arrange(members, mesh(members[5:16])) is None
