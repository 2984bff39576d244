"""What a peer tells all others with each reduction: exact integers, one row of each peer.

Owns the fields and their form. From the rows of a round, which are the same on all its peers, all of them compute the
same weights, guards and metrics without another call. Must not know how rows travel.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pccl import PeerId, UsageError

FORM = 3
"""Of a row: another number is of another version of this library."""


class Row(NamedTuple):
    """Of one peer in one round. Floats travel as the bits of a float64."""

    form: int = FORM
    round: int = 0
    tokens: int = 0
    """That were counted since the last contribution; 0 if no count was given."""
    steps: int = 0
    counts: int = 0
    """1: tokens are counted here."""
    finite: int = 1
    """0: the delta was not finite, and is left out."""
    holds: int = 0
    """1: it has steps that no round has taken yet, though a round should have."""
    synced: int = 0
    """1: it holds what its group has agreed on."""
    digest_high: int = 0
    digest_low: int = 0
    """Of the outer state before this round."""
    loss: float = 0.0
    rate: float = 0.0
    """The inner learning rate."""
    norm: float = 0.0
    """Of the delta."""
    computed_s: float = 0.0
    waited_s: float = 0.0
    reduced_s: float = 0.0
    """How long the last reduction took here."""
    wants: int = 0
    """Samples that it would lease for the next round."""
    ends: int = 0
    """Samples after which it stops, counted over all peers; 0 for no end."""
    taken: int = 0
    """Samples of its lease that it has used."""
    shards: int = 0
    """Parts of a dataset that is read in order, of which it leases one; 0: samples are leased one by one."""
    drained: int = 0
    """1: its shard has come to its end."""
    party: int = 0
    """The number of the party that this peer belongs to; 0: it is one by itself."""

    def pack(self, extra: torch.Tensor) -> torch.Tensor:
        """As it travels; `extra` are float64 behind it."""
        bits = struct.pack(_FORM, *self)
        row = torch.frombuffer(bytearray(bits), dtype=torch.int64)
        return torch.cat([row, extra.to(torch.float64).view(torch.int64)])

    @classmethod
    def unpack(cls, packed: torch.Tensor) -> tuple["Row", torch.Tensor]:
        """The way back. Raises `UsageError` if it is a row of another version."""
        fields = len(cls._fields)
        row = cls(*struct.unpack(_FORM, packed[:fields].contiguous().numpy().tobytes()))
        if row.form != FORM:
            raise UsageError(f"training: rows must be of form {FORM}, got {row.form}; install one version on all peers")
        return row, packed[fields:].contiguous().view(torch.float64)

    @property
    def digest(self) -> tuple[int, int]:
        """Of the outer state."""
        return self.digest_high, self.digest_low


_FORM = "=" + "".join("d" if kind is float else "q" for kind in Row.__annotations__.values())


def halves(digest: bytes) -> tuple[int, int]:
    """16 bytes as two numbers that a row can hold."""
    high, low = struct.unpack(">qq", digest)
    return high, low


class Table(NamedTuple):
    """The rows of a round."""

    peers: tuple[PeerId, ...]
    rows: tuple[Row, ...]
    extras: tuple[torch.Tensor, ...] = ()

    def weights(self, weigh: str) -> list[int]:
        """What each contribution counts, as integers. Where no peer counts tokens, steps weigh; a peer that does not
        count while others do weighs nothing, and is told so (`uncounted`)."""
        counted = weigh == "tokens" and any(row.counts for row in self.rows)
        return [_weight(row, weigh, counted) for row in self.rows]

    def uncounted(self, weigh: str) -> list[PeerId]:
        """Peers that made steps without counting tokens, while others count."""
        if weigh != "tokens" or not any(row.counts for row in self.rows):
            return []
        return [peer for peer, row in zip(self.peers, self.rows, strict=True) if row.steps and not row.counts]

    def diverged(self) -> list[PeerId]:
        """Peers whose outer state is not the most common one."""
        digests = [row.digest for row in self.rows]
        common = max(digests, key=lambda each: (digests.count(each), each))
        return [peer for peer, digest in zip(self.peers, digests, strict=True) if digest != common]


def _weight(row: Row, weigh: str, counted: bool) -> int:
    if not row.finite or not row.steps:
        return 0
    if weigh == "equal":
        return 1
    return (row.tokens if row.counts else 0) if counted else row.steps


def own_weight(row: Row, weigh: str) -> int:
    """What this peer multiplies its delta by, before it knows the others' rows."""
    return _weight(row, weigh, weigh == "tokens" and bool(row.counts))


def median(values: Sequence[float]) -> float:
    """The middle one; 0 of none."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0
