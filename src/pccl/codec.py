"""Which codecs there are, how one is named, and how many bytes its codes take: all that peers must agree on.

Owns the names, the choices that come with one, and their form in a collective's parameters. Pure. Must not know how
anything is coded: `dataplane/codecs/` and `native/codec_*.hpp` do. docs/quantisation.md compares them.
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


CODES: dict[str, Shape] = {
    "int8": Shape(8, 2, 4),
    "int4": Shape(4, 2, 4),
    "e3m0": Shape(4, 2, 4),
    "minmax8": Shape(8, 6, 12),
    "minmax16": Shape(16, 6, 12),
    "zeropoint8": Shape(8, 4, 6),
    "zeropoint16": Shape(16, 4, 6),
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
            raise ValueError(f"there is no codec {self.name!r}; there are {', '.join(CODES)}")
        for field in ("block", "seed"):  # also those of numpy; what is no integer could not be told to others
            try:
                structs.force_setattr(self, field, int(operator.index(getattr(self, field))))
            except TypeError:
                raise ValueError(f"a {field} of {getattr(self, field)!r}: it must be a whole number") from None
        if not BLOCK_MIN <= self.block <= BLOCK_MAX or self.block & (self.block - 1):
            raise ValueError(f"a block of {self.block}: it must be a power of two from {BLOCK_MIN} to {BLOCK_MAX}")
        if not 0 <= self.seed <= SEED_MAX:
            raise ValueError(f"a seed of {self.seed}: it must be a whole number from 0 to {SEED_MAX}")

    def __str__(self) -> str:
        """As it stands in a collective's parameters: whatever must be alike on all peers."""
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
        raise ValueError(f"{text!r} names no codec")

    @property
    def number(self) -> int:
        """Its number in the native part."""
        return 1 + list(CODES).index(self.name)

    def coded_bytes(self, count: int, dtype: DataType) -> int:
        """So many elements as codes."""
        shape = CODES[self.name]
        metadata = shape.metadata_wide if dtype is DataType.DOUBLE else shape.metadata
        return -(-count // self.block) * metadata + -(-count * shape.bits // 8)

    def refusal(self, dtype: DataType, op: ReduceOp) -> str:
        """Why it cannot do this; empty if it can."""
        if dtype not in SOURCES:
            return f"codec {self.name} is for floats, and the elements are {dtype.name}; leave it out"
        if op not in OPERATIONS:
            return f"codec {self.name} cannot do {op.name}; leave it out, or choose SUM, AVG, MAX or MIN"
        if CODES[self.name].bits >= 8 * dtype.itemsize:
            return f"codec {self.name} makes {dtype.name} no shorter; leave it out, or choose int8 or int4"
        return ""


def contribution_bytes(codec: str, count: int, dtype: DataType) -> int:
    """What a peer's elements are on a lane, under the codec that a collective's parameters name."""
    chosen = Codec.parse(codec)
    return count * dtype.itemsize if chosen is None else chosen.coded_bytes(count, dtype)
