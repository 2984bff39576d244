"""The order in which a group's peers pass data on, and the pairs of neighbours that follow from it. Pure functions."""

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, permutations

from pccl.types import PeerId

Pair = tuple[PeerId, PeerId]
"""Two peers, the smaller id first: a link has no direction."""

EXACT_MAX = 8
"""Up to this many members every order is tried: 5,040 at most, some milliseconds."""


DETOURS_MAX = 20_000
"""Steps of a search for a ring beyond one for each member. A group that needs more has so many pairs that cannot reach
each other that the next failure would leave no ring anyway."""

LOOKS_MAX = 500_000
"""Each step looks at up to all members, so in larger groups there are fewer detours: that many looks take some tens of
milliseconds, in which the master reads no message."""


def pair(a: PeerId, b: PeerId) -> Pair:
    """The pair of two peers."""
    return (a, b) if a < b else (b, a)


def pairs(ring: Sequence[PeerId]) -> tuple[Pair, ...]:
    """The neighbours of a ring: none for one peer, one pair for two, as many pairs as peers beyond that."""
    if len(ring) < 2:
        return ()
    return tuple(dict.fromkeys(pair(peer, ring[(rank + 1) % len(ring)]) for rank, peer in enumerate(ring)))


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
    return _search(order, avoid)


def _fits(ring: Sequence[PeerId], avoid: Collection[Pair]) -> bool:
    return not any(each in avoid for each in pairs(ring))


def _search(order: tuple[PeerId, ...], avoid: Collection[Pair]) -> tuple[PeerId, ...] | None:
    """From peer to peer, always on to the one with the most conflicts, for it is the hardest to find a place for later;
    back where that leads nowhere.

    Peers behind NAT can reach all others but not one another: they find places as long as the others are as many.
    """
    conflicts: dict[PeerId, set[PeerId]] = {peer: set() for peer in order}
    for a, b in avoid:
        if a in conflicts and b in conflicts:
            conflicts[a].add(b)
            conflicts[b].add(a)
    hardest = sorted(order, key=lambda peer: -len(conflicts[peer]))
    ring = hardest[:1]
    placed = set(ring)

    def after(peer: PeerId) -> Iterator[PeerId]:
        return (each for each in hardest if each not in placed and each not in conflicts[peer])

    ways = [after(ring[0])]
    for _ in range(len(order) + min(DETOURS_MAX, LOOKS_MAX // len(order))):
        peer = next(ways[-1], None)
        if peer is None:
            ways.pop()
            placed.remove(ring.pop())
            if not ways:
                return None
            continue
        ring.append(peer)
        placed.add(peer)
        if len(ring) == len(order) and peer not in conflicts[ring[0]]:
            return tuple(ring)
        ways.append(after(peer))
    return None
