"""e3m0: a sign and three bits of exponent: 0, or ± 2^(code - 7) of the largest magnitude, which is the metadata."""

import numpy as np

from pccl.dataplane.ring.arithmetic import Array, Bytes
from pccl.dataplane.ring.codecs import parts
from pccl.dataplane.ring.codecs.parts import Draws, Number

HALF_SIGNIFICAND = np.uint32(1 << 22)
"""A threshold that rounds to the nearer neighbour."""


class E3M0:
    """Twin of `native/codec_e3m0.hpp`."""

    def encode(self, values: Array, draws: Draws | None) -> Bytes:
        """See `BlockCodec`."""
        number = parts.number_of(values)
        top = np.abs(values).max(axis=1)
        uppers = parts.steps(top, 1, parts.moderate(top))
        unit = parts.whole(uppers, number)
        coded = unit > 0
        per_unit = number.real(1) / np.where(coded, unit, number.real(1))
        places = (np.where(coded, values, number.real(0)) * per_unit).astype(np.float32)
        codes = _codes(places, HALF_SIGNIFICAND if draws is None else draws >> np.uint32(9))
        return parts.with_equals(parts.joined(uppers, parts.packed(codes, 4)), values, top)

    def decode(self, coded: Bytes, number: Number, count: int) -> Array:
        """See `BlockCodec`."""
        unit = parts.whole(parts.column(coded, 0, number.upper), number)
        codes = parts.unpacked(coded[:, number.upper().itemsize :], 4, count)
        exponents = codes & 7
        magnitudes = np.where(exponents == 0, 0.0, np.ldexp(1.0, exponents - 7))
        signed = np.copysign(magnitudes, np.where(codes & 8, -1.0, 1.0)).astype(number.real)
        values = parts.nan_where(signed * unit, ~parts.finite(unit, number), number)
        return parts.equals_where(values, coded, number)


def _codes(places: Array, threshold: Array | np.uint32) -> Array:
    """Between two powers of two the significand says how near the upper one is: adding a threshold of its length to it
    carries into the exponent if the upper one is to be taken. Below the lowest power there are no more digits."""
    bits = places.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFF_FFFF)
    exponent = ((magnitude + threshold) >> np.uint32(23)).astype(np.int32)
    normal = np.minimum(exponent - 120, 7)
    small = np.abs(places) * np.float32(2.0**29) > np.asarray(threshold).astype(np.float32)
    code = np.where(magnitude < np.uint32(121 << 23), small, normal).astype(np.uint32)
    return np.where(code == 0, np.uint32(0), code | ((bits >> np.uint32(28)) & np.uint32(8)))
