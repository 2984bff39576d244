"""Codecs in numpy: the definition that every native one must match bit for bit.

A codec is one file, with a class that keeps `parts.BlockCodec`, and a line here; its twin is `native/codec_*.hpp`. All
of it is pure functions of arrays, and must not know rings, lanes or segments.
"""

from pccl.dataplane.ring.codecs.e3m0 import E3M0
from pccl.dataplane.ring.codecs.linear import Linear
from pccl.dataplane.ring.codecs.minmax import MinMax
from pccl.dataplane.ring.codecs.parts import BlockCodec
from pccl.dataplane.ring.codecs.zeropoint import ZeroPoint

CODECS: dict[str, BlockCodec] = {
    "int8": Linear(8),
    "int4": Linear(4),
    "e3m0": E3M0(),
    "minmax8": MinMax(8),
    "minmax16": MinMax(16),
    "zeropoint8": ZeroPoint(8),
    "zeropoint16": ZeroPoint(16),
}
