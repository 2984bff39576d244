"""What each peer of a stress drill contributes, so that every sum is known exactly.

Owns the numbers: a contribution follows from the identity of its peer, the step and the tag alone, so the result of a
collective can be told from `ReduceInfo.peers`. All are whole and small enough for sums to be exact in every type used.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PERIOD = 1021
"""A prime: no segment, chunk or page of the pattern looks like another one."""

FACTOR_MAX = 63
OFFSET_MAX = 1023
"""With these a contribution is below 2**17, so that 64 peers stay below 2**23: exact in float32."""


class Wrong(Exception):
    """Something that must never happen; the sentence says what."""


@lru_cache(maxsize=8)
def _pattern(dtype: str, count: int) -> Array:
    return (np.arange(count) % PERIOD).astype(dtype)


def pattern(dtype: str, count: int) -> Array:
    """The same for all peers. Cached by powers of two: steps have many lengths."""
    return _pattern(dtype, 1 << max(0, count - 1).bit_length())[:count]


class Tensor:
    """One tensor of one collective of one step."""

    def __init__(self, step: int, tag: int, part: int, count: int, dtype: str) -> None:
        self.step, self.tag, self.part = step, tag, part
        self.count, self.dtype = count, dtype

    def share(self, peer: str) -> tuple[int, int]:
        """Factor and offset that make the pattern this peer's."""
        drawn = hashlib.blake2b(f"{peer}/{self.step}/{self.tag}/{self.part}".encode(), digest_size=8).digest()
        return 1 + drawn[0] % FACTOR_MAX, int.from_bytes(drawn[1:3], "little") & OFFSET_MAX

    def of(self, peer: str) -> Array:
        """What this peer contributes."""
        return self.sum_of([peer])

    def sum_of(self, peers: Iterable[str]) -> Array:
        """What these peers' contributions add up to."""
        shares = [self.share(peer) for peer in peers]
        factor, offset = sum(share[0] for share in shares), sum(share[1] for share in shares)
        result: Array = pattern(self.dtype, self.count) * np.asarray(factor, self.dtype)
        result += np.asarray(offset, self.dtype)
        return result

    def check_sum(self, found: Array, peers: Iterable[str], span: range | None = None) -> None:
        """Raise unless this is exactly their sum, or this part of it."""
        peers, span = list(peers), range(self.count) if span is None else span
        self._check(found, self.sum_of(peers)[span.start : span.stop], f"the sum of {len(peers)} peers")

    def check_intact(self, found: Array, peer: str) -> None:
        """Raise unless this is still what the peer brought."""
        self._check(found, self.of(peer), "the input after a failure")

    def _check(self, found: Array, expected: Array, what: str) -> None:
        if np.array_equal(found, expected):
            return
        if found.shape != expected.shape:
            raise Wrong(f"{self}: {what} has the shape {found.shape} instead of {expected.shape}")
        places = np.flatnonzero(found != expected)
        first = int(places[0])
        raise Wrong(
            f"{self}: {what} is wrong in {len(places)} of {self.count} elements from {first} to {int(places[-1])}: "
            f"{found[first]} instead of {expected[first]}"
        )

    def __str__(self) -> str:
        return f"step {self.step} tag {self.tag} part {self.part} ({self.count} x {self.dtype})"


def whole_numbers(*numbers: int) -> Array:
    """These."""
    return np.array(numbers, np.int64)


def digest(arrays: Iterable[Array]) -> str:
    """Of the bits of these; equal on all peers."""
    summed = hashlib.blake2b(digest_size=8)
    for array in arrays:
        summed.update(np.ascontiguousarray(array).view(np.uint8).data)
    return summed.hexdigest()
