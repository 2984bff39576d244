"""The order in which a group's peers pass data on, and the pairs of neighbours that follow from it. Pure functions."""

from collections.abc import Collection, Iterable, Sequence

from pccl.types import PeerId

Pair = tuple[PeerId, PeerId]
"""Two peers, the smaller id first: a link has no direction."""

ARRANGE_STEPS_MAX = 20_000
"""Steps of the search for a ring around unreachable pairs: milliseconds of work, and enough for any sixteen peers."""


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


def arrange(members: Sequence[PeerId], avoid: Collection[Pair]) -> tuple[PeerId, ...] | None:
    """A ring of all members without an avoided pair of neighbours, as close to the given order as the search finds.

    None if there is none, or none was found within the bound.
    """
    order = tuple(members)
    if not any(each in avoid for each in pairs(order)):
        return order
    return _Search(order, avoid).run()


class _Search:
    """Depth first from the first member, trying the others in the given order."""

    def __init__(self, members: tuple[PeerId, ...], avoid: Collection[Pair]) -> None:
        self._members = members
        self._avoid = avoid
        self._steps = 0

    def run(self) -> tuple[PeerId, ...] | None:
        found = self._extend([self._members[0]], list(self._members[1:]))
        return tuple(found) if found else None

    def _extend(self, path: list[PeerId], rest: list[PeerId]) -> Iterable[PeerId] | None:
        self._steps += 1
        if self._steps > ARRANGE_STEPS_MAX:
            return None
        if not rest:
            return path if pair(path[-1], path[0]) not in self._avoid else None
        for place, peer in enumerate(rest):
            if pair(path[-1], peer) not in self._avoid:
                found = self._extend([*path, peer], rest[:place] + rest[place + 1 :])
                if found:
                    return found
        return None
