"""What codecs are made of, in numpy: blocks as rows of an array, steps, rounding, and codes in bytes.

Owns nothing else. `native/codec_parts.hpp` is its twin.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pccl.dataplane.ring.arithmetic import Array, Bytes

Draws = npt.NDArray[np.uint32]
"""Of each element a random number; for rounding to nearest there are none."""


class BlockCodec(Protocol):
    """Codes blocks of equal length, one in each row. Values are float32, or float64."""

    def encode(self, values: Array, draws: Draws | None) -> Bytes:
        """Metadata and codes of each block."""

    def decode(self, coded: Bytes, number: "Number", count: int) -> Array:
        """The way back, to so many values in each block. Any bytes decode to something."""


@dataclass(frozen=True)
class Number:
    """The floats that are computed with."""

    real: Any
    bits: Any
    upper: Any
    """What holds the upper half of one."""
    shift: int
    infinity: int
    quiet_nan: int
    smallest: float
    """The smallest with all its digits."""
    too_large: float
    """From here on a range, or a decoded number, could overflow."""


FLOAT = Number(np.float32, np.uint32, np.uint16, 16, 0x7F80_0000, 0x7FC0_0000, 2.0**-126, 2.0**126)
DOUBLE = Number(
    np.float64, np.uint64, np.uint32, 32, 0x7FF0_0000_0000_0000, 0x7FF8_0000_0000_0000, 2.0**-1022, 2.0**1022
)


def number_of(values: Array) -> Number:
    return DOUBLE if values.dtype == np.float64 else FLOAT


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def moderate(values: Array) -> npt.NDArray[np.bool_]:
    """False for NaN."""
    limit = values.dtype.type(number_of(values).too_large)
    return np.asarray((values < limit) & (values > -limit))


def steps(ranges: Array, codes: int, sane: npt.NDArray[np.bool_]) -> Array:
    """The upper half of a step for so many codes to each range, rounded up: no code gets larger than it may. Nothing
    for a range too short to have one, NaN for one that is not sane."""
    number = number_of(ranges)
    many = number.real(codes)
    bits = (ranges / many).view(number.bits)
    rounded = (bits + number.bits((1 << number.shift) - 1)) >> number.bits(number.shift)
    rounded[ranges < many * number.real(number.smallest)] = 0
    rounded[~sane] = number.quiet_nan >> number.shift
    return np.asarray(rounded.astype(number.upper))


def whole(uppers: Array, number: Number) -> Array:
    """Numbers whose upper halves these are, as a column."""
    values: Array = (uppers.astype(number.bits) << number.bits(number.shift)).view(number.real)
    return values.reshape(-1, 1)


def finite(values: Array, number: Number) -> npt.NDArray[np.bool_]:
    magnitude = values.view(number.bits) & number.bits((1 << (8 * number.bits().itemsize - 1)) - 1)
    return np.asarray(magnitude < number.bits(number.infinity))


def nan_where(values: Array, broken: npt.NDArray[np.bool_], number: Number) -> Array:
    """The same, with the one quiet NaN in all blocks that are broken."""
    values[broken.ravel()] = np.array(number.quiet_nan, number.bits).view(number.real)
    return values


# ── rounding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def moved(values: Array, draws: Draws | None) -> Array:
    """For random rounding: by less than a half, in 4096 equal steps."""
    if draws is None:
        return values
    real = values.dtype.type
    by: Array = (draws >> np.uint32(20)).astype(real) * real(2.0**-12) - real(0.5 - 2.0**-13)
    return np.asarray(values + by)


def integers(values: Array, low: int, high: int) -> npt.NDArray[np.int32]:
    """The nearest integers between these, ties to even."""
    real = values.dtype.type
    return np.asarray(np.rint(np.clip(values, real(low), real(high))), np.int32)


# ── codes in bytes ───────────────────────────────────────────────────────────────────────────────────────────────────


def packed(codes: Array, bits: int) -> Bytes:
    """Codes of each row as bytes. Of 4 bits, byte k has code k below and code k + half above."""
    if bits == 16:
        return codes.astype("<u2").view(np.uint8)
    if bits == 8:
        return codes.astype(np.uint8)
    half = (codes.shape[1] + 1) // 2
    nibbles = codes.astype(np.uint8) & np.uint8(15)
    below = nibbles[:, :half].copy()
    below[:, : codes.shape[1] - half] |= nibbles[:, half:] << np.uint8(4)
    return below


def unpacked(data: Bytes, bits: int, count: int) -> npt.NDArray[np.int32]:
    """The way back, unsigned."""
    data = np.ascontiguousarray(data[:, : -(-count * bits // 8)])  # what may stand behind is not ours
    if bits == 16:
        return data.view("<u2").astype(np.int32)
    if bits == 8:
        return data.astype(np.int32)
    return np.hstack([data & np.uint8(15), data >> np.uint8(4)])[:, :count].astype(np.int32)


def joined(*parts: Array) -> Bytes:
    """Columns of numbers, and bytes, row by row one behind the other."""
    rows = len(parts[0])
    return np.hstack([np.ascontiguousarray(part).view(np.uint8).reshape(rows, -1) for part in parts])


def column(coded: Bytes, begin: int, kind: Any) -> Array:
    """The numbers of this kind that stand at a place of each row."""
    return np.ascontiguousarray(coded[:, begin : begin + np.dtype(kind).itemsize]).view(kind)


# ── equal values ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _step_of_equals(number: Number) -> Any:
    """That of a block whose values are all the same: minus zero, which no range has. Behind it stands that value, where
    the codes would be. Zeros need none of this: their step is zero."""
    return number.upper(1 << (8 * number.upper().itemsize - 1))


def with_equals(coded: Bytes, values: Array, top: Array) -> Bytes:
    """These blocks, of which those of one value are written as that; `top` is the largest magnitude of each. All have
    room for it, also the shortest."""
    number = number_of(values)
    least = number.upper().itemsize + number.real().itemsize
    coded = np.pad(coded, ((0, 0), (0, max(0, least - coded.shape[1]))))
    equal = np.all(values == values[:, :1], axis=1) & finite(top, number) & (top > 0)
    one = np.zeros_like(coded)
    one[:, :least] = joined(np.full(len(values), _step_of_equals(number)), values[:, :1])
    return np.where(equal.reshape(-1, 1), one, coded)


def equals_where(values: Array, coded: Bytes, number: Number) -> Array:
    """The same, with that one value in all blocks that were written so."""
    equal = (column(coded, 0, number.upper) == _step_of_equals(number)).ravel()
    one = column(coded[equal], number.upper().itemsize, number.real)
    values[equal] = nan_where(one, ~finite(one, number), number)
    return values
