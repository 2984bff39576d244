"""Which codecs there are, how one is named, and how many bytes its codes take: all that peers must agree on.

Owns the names, the choices that come with one, and their form in a collective's parameters. Pure. Must not know how
anything is coded: `dataplane/ring/codecs/` and `native/codec_*.hpp` do. docs/quantisation.md compares them.
"""

import operator

from msgspec import Struct, structs

from pccl.types import DataType, ReduceOp

NONE = "none"
"""In a collective's parameters: elements travel as they are."""

BLOCK_MIN, BLOCK_MAX = 256, 4096
"""Elements with metadata of their own. Fewer would cost more than a percent in bytes; with more, one outlier ruins the
precision of too many others."""

BLOCK = 256
"""The default: for int8 0.8 % more bytes than without metadata, for int4 1.6 %, and the least error that can be had.
Each doubling saves half of these bytes and costs 6 % of precision for normal values, a third for heavy-tailed ones
(docs/quantisation.md)."""

SEED_MAX = 2**63 - 1

STOCHASTIC = "stochastic"


class Shape(Struct, frozen=True):
    """What a codec makes of a block."""

    bits: int
    """Of a code."""
    metadata: int
    """Bytes for each block."""
    metadata_wide: int
    """The same for blocks of float64, which are computed in that."""

    def bytes(self, count: int, dtype: DataType) -> int:
        """So many elements as one block. There is room for a step and a whole number, so that equal values can be that
        number however few they are."""
        metadata, least = (self.metadata_wide, 12) if dtype is DataType.DOUBLE else (self.metadata, 6)
        return max(metadata + -(-count * self.bits // 8), least)


CODES: dict[str, Shape] = {
    "int8": Shape(8, 2, 4),
    "int4": Shape(4, 2, 4),
    "e3m0": Shape(4, 2, 4),
    "minmax8": Shape(8, 6, 12),
    "minmax16": Shape(16, 6, 12),
    "zeropoint8": Shape(8, 6, 12),
    "zeropoint16": Shape(16, 6, 12),
}
"""All codecs. Their order is that of `native/codecs.cpp`."""

SOURCES = (DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE)
OPERATIONS = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.MIN)
"""Not PROD: relative errors of factors add up, and codecs keep the absolute one small."""


class Codec(Struct, frozen=True):
    """How floats travel: `Codec("int8")`, or with choices of your own. All peers must choose alike.

    Raises `ValueError` for what is not there."""

    name: str
    """One of `CODES`."""
    block: int = BLOCK
    """Elements with metadata of their own: a power of two from 256 to 4096."""
    stochastic: bool = False
    """Round up or down at random, with the odds of the place between two codes, instead of to the nearest: errors have
    no direction then, and are larger."""
    seed: int = 0
    """Of the random numbers, the same on all peers; each collective draws others by itself."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in CODES:
            raise ValueError(f"a codec must be one of {', '.join(CODES)}, got {self.name!r}")
        for field in ("block", "seed"):  # also those of numpy; other peers are sent plain integers
            try:
                structs.force_setattr(self, field, int(operator.index(getattr(self, field))))
            except TypeError:
                raise ValueError(f"{field} must be an integer, got {getattr(self, field)!r}") from None
        if not BLOCK_MIN <= self.block <= BLOCK_MAX or self.block & (self.block - 1):
            raise ValueError(f"block must be a power of two from {BLOCK_MIN} to {BLOCK_MAX}, got {self.block}")
        if not 0 <= self.seed <= SEED_MAX:
            raise ValueError(f"seed must be an integer from 0 to {SEED_MAX}, got {self.seed}")

    def __str__(self) -> str:
        """As it stands in a collective's parameters: all that must be equal on all peers."""
        plain = f"{self.name}.{self.block}"
        return f"{plain}.{STOCHASTIC}.{self.seed}" if self.stochastic else plain

    @classmethod
    def parse(cls, text: str) -> "Codec | None":
        """The way back; None for `NONE`. Raises `ValueError`."""
        match text.split("."):
            case [name] if name == NONE:
                return None
            case [name, block]:
                return cls(name, int(block))
            case [name, block, word, seed] if word == STOCHASTIC:
                return cls(name, int(block), True, int(seed))
        raise ValueError(f"a codec must be written like int8.256, got {text!r}")

    @property
    def number(self) -> int:
        """Its number in the native part."""
        return 1 + list(CODES).index(self.name)

    def coded_bytes(self, count: int, dtype: DataType) -> int:
        """So many elements as codes."""
        shape = CODES[self.name]
        whole, rest = divmod(count, self.block)
        return whole * shape.bytes(self.block, dtype) + (shape.bytes(rest, dtype) if rest else 0)

    def refusal(self, dtype: DataType, op: ReduceOp) -> str:
        """Why it cannot do this; empty if it can."""
        if dtype not in SOURCES:
            return f"elements must be floats for codec {self.name}, got {dtype.name}; leave the codec out"
        if op not in OPERATIONS:
            return f"op must be SUM, AVG, MAX or MIN for codec {self.name}, got {op.name}; or leave the codec out"
        if CODES[self.name].bits >= 8 * dtype.itemsize:
            return f"elements must be longer than codes of {self.name}, got {dtype.name}; choose int8, int4 or no codec"
        return ""


def contribution_bytes(codec: str, count: int, dtype: DataType) -> int:
    """What a peer's elements are on a lane, under the codec that a collective's parameters name."""
    chosen = Codec.parse(codec)
    return count * dtype.itemsize if chosen is None else chosen.coded_bytes(count, dtype)
