"""zeropoint8, zeropoint16: minmax with another base where zero lies within the range: the multiple of the step that is
nearest to the smallest value, so that one of the codes stands for zero itself. What PCCL calls ZERO_POINT_SCALE, for
each block; signed and unsigned codes are the same, one shifted against the other. Values that are all of one sign are
as in minmax: codes from there to zero would be wasted."""

import numpy as np

from pccl.dataplane.ring.arithmetic import Array
from pccl.dataplane.ring.codecs import parts
from pccl.dataplane.ring.codecs.minmax import MinMax


class ZeroPoint(MinMax):
    """Twin of `native/codec_zeropoint.hpp`."""

    def _base(self, low: Array, high: Array, step: Array, per_step: Array) -> Array:
        nothing = low.dtype.type(0)
        zero = parts.integers(-low * per_step, 0, self._most).astype(low.dtype)
        return np.where((low > 0) | (high < 0), low, nothing - zero * step)
