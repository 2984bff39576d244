"""Which parts of a dataset that can only be read in order are given to which peer, so that each item counts once.

Owns the ledger of shards: a position is a shard of an epoch, and a peer holds one until it has come to its end. Each
round counts how far its holder has read; the shard of a peer that is gone is given out again from there. A pure
function of rows that all peers have. Must not know how rounds are made.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from msgspec import Struct, field

from pccl import UsageError
from pccl.training.leases import WORDS_MAX, Shuffle, halves_of, whole_of

GO_ON = -1
"""An offset: where the holder is when the round before ends, which the others do not know yet."""

Place = tuple[int, int]
"""A position, and the first item of it that no round has counted."""


class Shards:
    """A dataset in `count` parts, for `run.batches`: `open(shard, offset)` gives the items of one of them, from an
    offset on. All peers must read the same."""

    def __init__(self, count: int, open: Callable[[int, int], Iterable[Any]]) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UsageError(f"Shards: count must be an integer from 1 on, got {count!r}")
        self.count, self.open = count, open


class ShardLedger(Struct):
    """What was given out, and how far it was read."""

    count: int
    """Shards of an epoch."""
    limit: int | None = None
    """Positions in all; None without end."""
    next: int = 0
    """The first position that no peer was given yet."""
    back: list[Place] = field(default_factory=list)
    """Given out and not read to the end, the lowest first."""
    kept: dict[str, Place] = field(default_factory=dict)
    """By peers that were in the last round: theirs in the next one, too."""
    out: dict[int, dict[str, Place]] = field(default_factory=dict)
    """By round and peer."""

    def lease(self, round: int, wants: Mapping[str, int]) -> None:
        """Give each peer that wants something a shard: the one that it reads, or another."""
        dealt = {peer: place for peer in sorted(wants) if (place := self._place_for(peer)) is not None}
        self.back = sorted([*self.back, *self.kept.values()])
        self.kept = {}
        for peer in sorted(wants):
            if peer not in dealt and self.back:
                dealt[peer] = self.back.pop(0)
            elif peer not in dealt and (self.limit is None or self.next < self.limit):
                dealt[peer] = (self.next, 0)
                self.next += 1
        if dealt:
            self.out[round] = dealt

    def _place_for(self, peer: str) -> Place | None:
        reads = [places[peer] for _, places in sorted(self.out.items()) if peer in places]
        return (reads[-1][0], GO_ON) if reads else self.kept.pop(peer, None)

    def settle(self, round: int, taken: Mapping[str, int], drained: Collection[str] = ()) -> None:
        """A round is committed: so many items of each peer count, and these have come to the end of their shards."""
        for peer, (position, offset) in self.out.pop(round, {}).items():
            place = position, offset + taken.get(peer, 0)
            later = [each for _, each in sorted(self.out.items()) if each.get(peer) == (position, GO_ON)]
            if peer in taken and peer in drained:
                for each in later:
                    del each[peer]  # There is nothing in it to go on with.
            elif later:
                later[0][peer] = place
            elif peer in taken:
                self.kept[peer] = place
            else:
                self.back.append(place)
        self.out = {number: places for number, places in self.out.items() if places}
        self.back.sort()

    @property
    def done(self) -> bool:
        """All that there is was read."""
        return self.limit is not None and self.next >= self.limit and not (self.back or self.kept or self.out)

    def forget_peers(self) -> None:
        """After a restart of the whole run: those that held shards are gone."""
        for round in sorted(self.out):
            self.settle(round, {})
        self.back = sorted([*self.back, *self.kept.values()])
        self.kept = {}

    # ── for newcomers and checkpoints ────────────────────────────────────────────────────────────────────────────────

    def pack(self) -> list[int]:
        """As numbers, always equally many; the first one is negative, which that of a ledger of samples never is."""
        words = [-self.count, self.next, len(self.back), *(each for place in self.back for each in place)]
        held = [(0, self.kept), *sorted(self.out.items())]
        rows = [(round, peer, place) for round, places in held for peer, place in places.items()]
        words.append(len(rows))
        for round, peer, place in rows:
            words += [round, *halves_of(peer), *place]
        if len(words) > WORDS_MAX:
            raise OverflowError(f"a ledger of shards must have at most {WORDS_MAX} numbers, got {len(words)}")
        return words + [0] * (WORDS_MAX - len(words))

    def unpack(self, words: list[int]) -> None:
        """The way back."""
        numbers = iter(words)
        self.count, self.next = -next(numbers), next(numbers)
        self.back = [(next(numbers), next(numbers)) for _ in range(next(numbers))]
        self.kept, self.out = {}, {}
        for _ in range(next(numbers)):
            round, high, low, position, offset = (next(numbers) for _ in range(5))
            held = self.out.setdefault(round, {}) if round else self.kept
            held[whole_of(high, low)] = position, offset


class Reader:
    """Reads what this peer holds, and knows when it has come to the end."""

    def __init__(self, shards: Shards, seed: int, shuffle: bool) -> None:
        self._shards = shards
        order = Shuffle(shards.count, seed)
        self._shard = order if shuffle else lambda position: position % shards.count
        self._place: Place | None = None
        """Where it is: the next item to be given."""
        self._items: Iterator[Any] = iter(())
        self._ahead: list[Any] = []
        """One item more than was given, so that the end is known with the last one."""

    def go_to(self, place: Place | None) -> None:
        """Be there; the items that follow the last one are there already."""
        if place is None or place == self._place:
            return
        if self._place is not None and place == (self._place[0], GO_ON):
            return
        self._place, self._items = place, iter(self._shards.open(self._shard(place[0]), place[1]))
        self._ahead = list(islice(self._items, 1))

    @property
    def drained(self) -> bool:
        """There is no further item."""
        return not self._ahead

    def take(self, count: int) -> list[Any]:
        """So many items, or as many as there are."""
        items = [*self._ahead, *islice(self._items, count)][: count + 1]
        self._ahead, items = items[count:], items[:count]
        if self._place is not None:
            self._place = self._place[0], self._place[1] + len(items)
        return items
