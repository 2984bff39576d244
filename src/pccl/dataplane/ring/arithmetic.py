"""What happens to elements, in numpy: the definition that every native kernel must match bit for bit.

Owns the operations of a collective, the conversions of 16-bit floats, and the check of a segment's bytes. Pure
functions of arrays. Must not know rings, lanes or segments.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pccl.types import DataType, ReduceOp

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

STORED: dict[DataType, npt.DTypeLike] = {
    DataType.UINT8: np.uint8,
    DataType.INT8: np.int8,
    DataType.INT16: np.int16,
    DataType.UINT16: np.uint16,
    DataType.UINT32: np.uint32,
    DataType.INT32: np.int32,
    DataType.UINT64: np.uint64,
    DataType.INT64: np.int64,
    DataType.FLOAT16: np.float16,
    DataType.BFLOAT16: np.uint16,  # numpy has none: the upper half of a float32, as bits
    DataType.FLOAT: np.float32,
    DataType.DOUBLE: np.float64,
}

# ── 16-bit floats ────────────────────────────────────────────────────────────────────────────────────────────────────

HALF_NAN = np.uint16(0x7E00)
BFLOAT_NAN = np.uint16(0x7FC0)


def widen(values: Array, dtype: DataType) -> Array:
    """Elements in the type they are computed in: 16-bit floats in float32, all others in their own."""
    if dtype is DataType.FLOAT16:
        with np.errstate(all="ignore"):  # of a signalling NaN some machines complain
            return values.astype(np.float32)
    if dtype is DataType.BFLOAT16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def narrow(values: Array, dtype: DataType) -> Array:
    """The way back: rounded to nearest, ties to even. Every NaN becomes the one quiet NaN, whatever it carried."""
    if dtype is DataType.FLOAT16:
        with np.errstate(all="ignore"):  # too large is infinite
            halves = values.astype(np.float16)
        halves.view(np.uint16)[np.isnan(values)] = HALF_NAN
        return halves
    if dtype is DataType.BFLOAT16:
        bits = values.view(np.uint32)
        even = (bits >> np.uint32(16)) & np.uint32(1)
        upper = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
        upper[np.isnan(values)] = BFLOAT_NAN
        return upper
    return values


# ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _larger(a: Array, b: Array) -> Array:
    return np.where((a > b) | (a != a), a, b)  # NaN wins from either side


def _smaller(a: Array, b: Array) -> Array:
    return np.where((a < b) | (a != a), a, b)


_OPERATIONS: dict[ReduceOp, Callable[[Array, Array], Array]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,  # the division comes once, at the end
    ReduceOp.PROD: np.multiply,
    ReduceOp.MAX: _larger,
    ReduceOp.MIN: _smaller,
}


def combine(a: Array, b: Array, dtype: DataType, op: ReduceOp) -> Array:
    """a op b, element by element, rounded to the type once. Integers wrap around."""
    with np.errstate(all="ignore"):  # infinities and NaN are results like others
        return narrow(_OPERATIONS[op](widen(a, dtype), widen(b, dtype)), dtype)


def divide(values: Array, dtype: DataType, peers: int) -> Array:
    """The end of AVG: floats are divided in the type they are computed in, integers truncated towards zero."""
    with np.errstate(all="ignore"):
        wide = widen(values, dtype)
        if wide.dtype.kind == "f":
            return narrow(wide / wide.dtype.type(peers), dtype)
    if wide.dtype.kind == "u":
        return (wide.astype(np.uint64) // np.uint64(peers)).astype(wide.dtype)
    whole = wide.astype(np.int64)
    rounded_down = whole // peers
    towards_zero: Array = rounded_down + ((whole < 0) & (whole % peers != 0))
    return towards_zero.astype(wide.dtype)


_NANS: dict[DataType, tuple[npt.DTypeLike, int, int]] = {
    DataType.FLOAT16: (np.uint16, 0x7C00, 0x7E00),
    DataType.BFLOAT16: (np.uint16, 0x7F80, 0x7FC0),
    DataType.FLOAT: (np.uint32, 0x7F80_0000, 0x7FC0_0000),
    DataType.DOUBLE: (np.uint64, 0x7FF0_0000_0000_0000, 0x7FF8_0000_0000_0000),
}
"""Bits of floats: their integer type, infinity, and the one quiet NaN."""


def reduce_all(contributions: list[Array], dtype: DataType, op: ReduceOp) -> Array:
    """All contributions of an exchange, by rank. Every peer computes this for itself, so the bits must follow from the
    contributions alone: the order is fixed, and every NaN becomes the same one."""
    result = contributions[0].copy()
    for each in contributions[1:]:
        result = combine(result, each, dtype, op)
    if op is ReduceOp.AVG:
        result = divide(result, dtype, len(contributions))
    return with_one_nan(result, dtype)


def with_one_nan(values: Array, dtype: DataType) -> Array:
    """The same array, every NaN in it replaced by the one quiet NaN."""
    if dtype in _NANS:
        unsigned, infinity, nan = _NANS[dtype]
        bits = values.view(unsigned)
        bits[(bits & bits.dtype.type(np.iinfo(bits.dtype).max >> 1)) > infinity] = nan
    return values


# ── the check ────────────────────────────────────────────────────────────────────────────────────────────────────────

_STEP = 0x9E3779B97F4A7C15
_PLAIN = 0xC2B2AE3D27D4EB4F
_FINISH = 0xD6E8FEB86659FD93
_LOW_64 = (1 << 64) - 1


def check(data: Bytes) -> int:
    """64 bits that tell damaged bytes from whole ones, of two sums over words of eight bytes.

    In one each word is mixed with its place, so that moved words are noticed; the other is of the plain words, which no
    single flipped bit leaves as it was. The last word is filled up with zeros; the length is mixed in, so that those
    are not taken for data.
    """
    padded = np.zeros(-(-len(data) // 8) * 8, np.uint8)
    padded[: len(data)] = data
    words = padded.view("<u8").astype(np.uint64, copy=False)
    keys = np.arange(1, len(words) + 1, dtype=np.uint64) * np.uint64(_STEP)
    half = np.uint64(32)
    mixed = words ^ keys
    products = (mixed & np.uint64(0xFFFFFFFF)) * (mixed >> half)
    shares = products + ((words << half) | (words >> half))
    total, plain = (int(each.sum(dtype=np.uint64)) for each in (shares, words))
    plain = (plain ^ plain >> 32) * _PLAIN & _LOW_64  # not linear: what leaves one sum as it was cannot cancel here
    total ^= plain ^ plain >> 29 ^ len(data) * _STEP & _LOW_64
    total = (total ^ total >> 32) * _FINISH & _LOW_64
    return total ^ total >> 32
