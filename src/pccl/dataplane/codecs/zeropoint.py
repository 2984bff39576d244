"""zeropoint8, zeropoint16: whole multiples of a step around the code that stands for zero. Metadata: the upper half of
the step, and that code. What PCCL calls ZERO_POINT_SCALE, for each block; signed and unsigned codes are the same, one
shifted against the other."""

import numpy as np

from pccl.dataplane.arithmetic import Array, Bytes
from pccl.dataplane.codecs import parts
from pccl.dataplane.codecs.parts import Draws, Number


class ZeroPoint:
    """Twin of `native/codec_zeropoint.hpp`."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._most = (1 << bits) - 1

    def encode(self, values: Array, draws: Draws | None) -> Bytes:
        """See `BlockCodec`."""
        number = parts.number_of(values)
        nothing, one = number.real(0), number.real(1)
        least, greatest = values.min(axis=1), values.max(axis=1)
        sane = parts.moderate(least) & parts.moderate(greatest)
        low, high = np.where(least < 0, least, nothing), np.where(greatest > 0, greatest, nothing)
        uppers = parts.steps(np.where(sane, high - low, nothing), self._most, sane)
        step = parts.whole(uppers, number)
        coded = step > 0
        per_step = one / np.where(coded, step, one)
        zero = parts.integers(np.where(coded, -low.reshape(-1, 1), nothing) * per_step, 0, self._most)
        places = np.where(coded, values, nothing) * per_step + zero.astype(number.real)
        codes = parts.integers(parts.moved(places, draws), 0, self._most) * coded
        return parts.joined(uppers, zero.astype("<u2"), parts.packed(codes, self._bits))

    def decode(self, coded: Bytes, number: Number, count: int) -> Array:
        """See `BlockCodec`."""
        at = number.upper().itemsize
        step = parts.whole(parts.column(coded, 0, number.upper), number)
        zero = parts.column(coded, at, "<u2").astype(np.int32)
        codes = parts.unpacked(coded[:, at + 2 :], self._bits, count)
        return parts.nan_where((codes - zero).astype(number.real) * step, ~parts.finite(step, number), number)
