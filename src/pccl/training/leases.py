"""Which samples of a dataset are given to which peer, so that each counts exactly once in an epoch.

Owns the ledger: positions run from 0 on without end, epoch after epoch; peers lease stretches of them by round; what a
committed contribution has used counts, and the rest is given out again. A pure function of rows that all peers have, so
their ledgers are equal. Must not know datasets, tensors or how rounds are made.
"""

import hashlib
from collections.abc import Collection, Mapping

from msgspec import Struct, field

WORDS_MAX = 8192
"""Numbers of a packed ledger, which newcomers get with the state: room for 500 peers with three stretches each."""

Span = tuple[int, int]


class Ledger(Struct):
    """What was given out, and what came back."""

    limit: int | None = None
    """Positions in all; None without end."""
    next: int = 0
    """The first position that no peer was given yet."""
    back: list[Span] = field(default_factory=list)
    """Stretches that were given out and not used, the lowest first."""
    out: dict[int, dict[str, list[Span]]] = field(default_factory=dict)
    """By round and peer."""

    def lease(self, round: int, wants: Mapping[str, int]) -> None:
        """Give each peer what it wants for a round; when there is not enough, each the same share."""
        total, left = sum(wants.values()), self.left()
        dealt: dict[str, list[Span]] = {}
        for peer in sorted(wants):
            wanted = wants[peer]
            if left is not None and total > left:
                wanted = -(-left * wanted // total)
            dealt[peer] = self._take(wanted)
        if given := {peer: spans for peer, spans in dealt.items() if spans}:
            self.out[round] = given

    def left(self) -> int | None:
        """Positions that can be given out now; None for no end of them."""
        if self.limit is None:
            return None
        return max(0, self.limit - self.next) + sum(end - begin for begin, end in self.back)

    def _take(self, count: int) -> list[Span]:
        spans: list[Span] = []
        while count and self.back:
            begin, end = self.back.pop(0)
            used = min(end, begin + count)
            spans.append((begin, used))
            count -= used - begin
            if used < end:
                self.back.insert(0, (used, end))
        end = self.next + count if self.limit is None else min(self.limit, self.next + count)
        if end > self.next:
            spans.append((self.next, end))
            self.next = end
        return spans

    def settle(self, round: int, taken: Mapping[str, int], drained: Collection[str] = ()) -> None:
        """A round is committed: so many samples of each peer's lease count, the first ones; the rest comes back."""
        for peer, spans in self.out.pop(round, {}).items():
            used = taken.get(peer, 0)
            for begin, end in spans:
                counted = min(end, begin + used)
                used -= counted - begin
                if counted < end:
                    self.back.append((counted, end))
        self.back = _joined(self.back)

    @property
    def done(self) -> bool:
        """All that there is was used."""
        return self.left() == 0 and not self.out

    def used_to(self, end: int) -> bool:
        """All positions before this one were used."""
        out = [span for peers in self.out.values() for spans in peers.values() for span in spans]
        return self.next >= end and all(begin >= end for begin, _ in [*self.back, *out])

    # ── for newcomers and checkpoints ────────────────────────────────────────────────────────────────────────────────

    def pack(self) -> list[int]:
        """As numbers, always equally many."""
        words = [self.next, len(self.back), *(each for span in self.back for each in span)]
        leases = [(round, peer, spans) for round, peers in sorted(self.out.items()) for peer, spans in peers.items()]
        words.append(len(leases))
        for round, peer, spans in leases:
            words += [round, *halves_of(peer), len(spans), *(each for span in spans for each in span)]
        if len(words) > WORDS_MAX:
            raise OverflowError(f"a ledger of leases must have at most {WORDS_MAX} numbers, got {len(words)}")
        return words + [0] * (WORDS_MAX - len(words))

    def unpack(self, words: list[int]) -> None:
        """The way back."""
        numbers = iter(words)

        def spans() -> list[Span]:
            return [(next(numbers), next(numbers)) for _ in range(next(numbers))]

        self.next, self.back, self.out = next(numbers), spans(), {}
        for _ in range(next(numbers)):
            round, high, low = next(numbers), next(numbers), next(numbers)
            self.out.setdefault(round, {})[whole_of(high, low)] = spans()

    def forget_peers(self) -> None:
        """After a restart of the whole run: what was out comes back, for those that had it are gone."""
        for round in sorted(self.out):
            self.settle(round, {})


def _joined(spans: list[Span]) -> list[Span]:
    """In order, with neighbours as one."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def halves_of(peer: str) -> tuple[int, int]:
    """A peer's id as two numbers of 64 bits with a sign."""
    whole = bytes.fromhex(peer)
    return int.from_bytes(whole[:8], "big", signed=True), int.from_bytes(whole[8:], "big", signed=True)


def whole_of(high: int, low: int) -> str:
    """The way back."""
    return (high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True)).hex()


class Shuffle:
    """The order of an epoch, computed place by place: a permutation that needs no memory and is the same everywhere.

    Four rounds of Feistel's scheme over the next power of four; what falls outside is mapped again until it is in."""

    def __init__(self, length: int, seed: int) -> None:
        self._length, self._seed = length, seed
        self._half = max(1, (max(length - 1, 1).bit_length() + 1) // 2)
        self._keys: dict[int, list[int]] = {}

    def __call__(self, position: int) -> int:
        """The sample at this position of the endless row of epochs."""
        epoch, place = divmod(position, self._length)
        keys = self._keys.get(epoch) or self._keys.setdefault(epoch, self._keys_of(epoch))
        mask = (1 << self._half) - 1
        while True:
            left, right = place >> self._half, place & mask
            for key in keys:
                left, right = right, left ^ (((right * 0x9E3779B1 + key) ^ (right * key >> 7)) >> 5 & mask)
            place = left << self._half | right
            if place < self._length:
                return place

    def _keys_of(self, epoch: int) -> list[int]:
        digest = hashlib.blake2b(f"{self._seed} {epoch}".encode(), digest_size=16).digest()
        return [int.from_bytes(digest[each : each + 4], "big") | 1 for each in range(0, 16, 4)]
