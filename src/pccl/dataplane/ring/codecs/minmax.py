"""minmax8, minmax16: whole multiples of a step above a base, which is the smallest value. Metadata: the base, and the
upper half of the step. What PCCL calls MIN_MAX, for each block and rounded to nearest. Equal values have no step: all
of them are the base."""

import numpy as np

from pccl.dataplane.ring.arithmetic import Array, Bytes
from pccl.dataplane.ring.codecs import parts
from pccl.dataplane.ring.codecs.parts import Draws, Number


class MinMax:
    """Twin of `native/codec_minmax.hpp`."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._most = (1 << bits) - 1

    def encode(self, values: Array, draws: Draws | None) -> Bytes:
        """See `BlockCodec`."""
        number = parts.number_of(values)
        zero = number.real(0)
        low, high = values.min(axis=1) + zero, values.max(axis=1) + zero  # zeros are positive from here on
        sane = parts.moderate(low) & parts.moderate(high) | (low == high) & parts.finite(low, number)
        low, high = np.where(sane, low, zero), np.where(sane, high, zero)
        uppers = parts.steps(high - low, self._most, sane)
        step = parts.whole(uppers, number)
        coded = step > 0
        per_step = number.real(1) / np.where(coded, step, number.real(1))
        base = self._base(low.reshape(-1, 1), high.reshape(-1, 1), np.where(coded, step, zero), per_step)
        places = np.where(coded, values - base, zero) * per_step
        codes = parts.integers(parts.moved(places, draws), 0, self._most) * coded
        return parts.joined(base, uppers, parts.packed(codes, self._bits))

    def decode(self, coded: Bytes, number: Number, count: int) -> Array:
        """See `BlockCodec`."""
        at, begin = number.real().itemsize, number.real().itemsize + number.upper().itemsize
        base = parts.column(coded, 0, number.real)
        step = parts.whole(parts.column(coded, at, number.upper), number)
        values = base + parts.unpacked(coded[:, begin:], self._bits, count).astype(number.real) * step
        return parts.nan_where(values, ~(parts.finite(step, number) & parts.finite(base, number)), number)

    def _base(self, low: Array, high: Array, step: Array, per_step: Array) -> Array:
        """What code 0 stands for."""
        return low
