"""int8, int4: whole multiples of a step, from -most to most. Metadata: the upper half of the step."""

import numpy as np

from pccl.dataplane.ring.arithmetic import Array, Bytes
from pccl.dataplane.ring.codecs import parts
from pccl.dataplane.ring.codecs.parts import Draws, Number


class Linear:
    """Twin of `native/codec_linear.hpp`."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._most = (1 << (bits - 1)) - 1

    def encode(self, values: Array, draws: Draws | None) -> Bytes:
        """See `BlockCodec`."""
        number = parts.number_of(values)
        top = np.abs(values).max(axis=1)
        uppers = parts.steps(top, self._most, parts.moderate(top))
        step = parts.whole(uppers, number)
        coded = step > 0
        per_step = number.real(1) / np.where(coded, step, number.real(1))
        places = parts.moved(np.where(coded, values, number.real(0)) * per_step, draws)
        codes = parts.integers(places, -self._most, self._most) * coded
        return parts.with_equals(parts.joined(uppers, parts.packed(codes, self._bits)), values, top)

    def decode(self, coded: Bytes, number: Number, count: int) -> Array:
        """See `BlockCodec`."""
        step = parts.whole(parts.column(coded, 0, number.upper), number)
        codes = parts.unpacked(coded[:, number.upper().itemsize :], self._bits, count)
        sign = 1 << (self._bits - 1)
        values = ((codes ^ sign) - sign).astype(number.real) * step
        values = parts.nan_where(values, ~parts.finite(step, number), number)
        return parts.equals_where(values, coded, number)
