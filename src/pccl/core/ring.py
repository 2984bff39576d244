"""The order in which a group's peers pass data on, and the pairs of neighbours that follow from it. Pure functions."""

from collections.abc import Collection, Sequence
from itertools import combinations, permutations

from pccl.types import PeerId

Pair = tuple[PeerId, PeerId]
"""Two peers, the smaller id first: a link has no direction."""

EXACT_MAX = 8
"""Up to this many members every order is tried: 5,040 at most, some milliseconds."""


def pair(a: PeerId, b: PeerId) -> Pair:
    """The pair of two peers."""
    return (a, b) if a < b else (b, a)


def pairs(ring: Sequence[PeerId]) -> tuple[Pair, ...]:
    """The neighbours of a ring: none for one peer, one pair for two, as many pairs as peers beyond that."""
    if len(ring) < 2:
        return ()
    if len(ring) == 2:
        return (pair(ring[0], ring[1]),)
    return tuple(pair(peer, ring[(rank + 1) % len(ring)]) for rank, peer in enumerate(ring))


def mesh(members: Sequence[PeerId]) -> tuple[Pair, ...]:
    """Every two of them."""
    return tuple(pair(a, b) for a, b in combinations(members, 2))


def arrange(members: Sequence[PeerId], avoid: Collection[Pair]) -> tuple[PeerId, ...] | None:
    """A ring of all members without an avoided pair of neighbours, the given order if it is one.

    None if there is none. For many members it may also be None although there is one: finding it can take for ever.
    """
    order = tuple(members)
    if _fits(order, avoid):
        return order
    if len(order) <= EXACT_MAX:
        orders = ((order[0], *rest) for rest in permutations(order[1:]))
        return next((ring for ring in orders if _fits(ring, avoid)), None)
    return _insert_one_by_one(order, avoid)


def _fits(ring: Sequence[PeerId], avoid: Collection[Pair]) -> bool:
    return not any(each in avoid for each in pairs(ring))


def _insert_one_by_one(order: tuple[PeerId, ...], avoid: Collection[Pair]) -> tuple[PeerId, ...] | None:
    """Those without conflicts first, in their order, then the others, each into the first gap where it fits.

    Peers behind NAT cannot reach one another but everybody else: they find gaps as long as the others outnumber them.
    """
    conflicts = dict.fromkeys(order, 0)
    for a, b in avoid:
        if a in conflicts and b in conflicts:
            conflicts[a] += 1
            conflicts[b] += 1
    ring: list[PeerId] = []
    for peer in sorted(order, key=lambda each: conflicts[each]):
        place = next((gap for gap in range(len(ring), -1, -1) if _gap_fits(ring, gap, peer, avoid)), None)
        if place is None:
            return None
        ring.insert(place, peer)
    return tuple(ring) if _fits(ring, avoid) else None


def _gap_fits(ring: list[PeerId], gap: int, peer: PeerId, avoid: Collection[Pair]) -> bool:
    return not ring or not any(pair(peer, ring[side % len(ring)]) in avoid for side in (gap - 1, gap))
