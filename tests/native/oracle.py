"""What a ring must give: folded chunk by chunk with the functions of `arithmetic.py`; and what numpy makes of it."""

from typing import NamedTuple

import numpy as np

from pccl.codec import Codec
from pccl.dataplane.ring import arithmetic
from pccl.dataplane.ring.arithmetic import STORED
from pccl.dataplane.ring.coding import Coding
from pccl.dataplane.ring.segments import chunk
from pccl.types import CollectiveKind, DataType, ReduceOp

TAG = 7
WIDE_FLOATS = (DataType.FLOAT, DataType.DOUBLE)
HALF_STEP = {DataType.FLOAT16: 2**-11, DataType.BFLOAT16: 2**-8, DataType.FLOAT: 2**-24, DataType.DOUBLE: 2**-53}


def inputs(rng, dtype, op, count, peers):
    """Ordinary numbers: any integers; floats around one, whose products stay in range."""
    stored = np.dtype(STORED[dtype])
    if dtype not in HALF_STEP:
        return [rng.integers(0, 256, count * stored.itemsize, dtype=np.uint8).view(stored) for _ in range(peers)]
    made = []
    for _ in range(peers):
        values = rng.uniform(0.7, 1.4, count) if op is ReduceOp.PROD else rng.standard_normal(count)
        if dtype is DataType.DOUBLE:
            made.append(values)
        else:
            made.append(arithmetic.narrow(values.astype(np.float32), dtype))
    return made


def wild_inputs(rng, dtype, count, peers):
    """Any bits: NaN, infinities and subnormals among them."""
    stored = np.dtype(STORED[dtype])
    return [rng.integers(0, 256, count * stored.itemsize, dtype=np.uint8).view(stored) for _ in range(peers)]


def reduced(arrays, dtype, op, first=0):
    """The result. In chunk c the share of rank c + first comes first, then those of the ranks after it."""
    size = len(arrays)
    result = np.empty_like(arrays[0])
    for index in range(size):
        place = _chunk(arrays[0], size, index)
        values = arrays[(index + first) % size][place]
        for step in range(1, size):
            values = arithmetic.combine(values, arrays[(index + first + step) % size][place], dtype, op)
        result[place] = arithmetic.divide(values, dtype, size) if op is ReduceOp.AVG else values
    return result


def _chunk(array, size, index):
    elements = chunk(len(array), size, index)
    return slice(elements.start, elements.stop)


def results(arrays, work):
    """What each rank must end with."""
    size = len(arrays)
    match work.kind:
        case CollectiveKind.BROADCAST:
            return [arrays[work.root]] * size
        case CollectiveKind.ALL_GATHER:
            return [np.concatenate(arrays)] * size
        case CollectiveKind.REDUCE_SCATTER:
            whole = reduced(arrays, work.dtype, work.op, first=1)
            return [whole[_chunk(whole, size, rank)] for rank in range(size)]
        case _:
            return [reduced(arrays, work.dtype, work.op)] * size


class Coded(NamedTuple):
    """What a coded all-reduce must give."""

    result: np.ndarray
    lost: list[np.ndarray]
    """By rank."""


def coded(arrays, work, attempt, carried=None):
    """The result of a coded all-reduce, and what each rank has lost: chunk by chunk around the ring, without a lane."""
    size, coding = len(arrays), Coding(Codec.parse(work.codec), work.dtype, work.op)
    values = [coding.values(array.view(np.uint8)) for array in arrays]
    if carried is not None:
        values = [each + more for each, more in zip(values, carried, strict=True)]
    result, lost = np.empty_like(arrays[0]), [np.empty_like(each) for each in values]
    for index in range(size):
        place = _chunk(arrays[0], size, index)
        codes = np.empty(0, np.uint8)
        for hop in range(size):
            rank, peers = (index + hop) % size, 1
            total = values[rank][place]
            if hop > 0:
                total = coding.fold(codes, total)
            if hop == size - 1:
                total, peers = coding.average(total, size), size
            codes = coding.encode(total, place.start, coding.stream(TAG, attempt, hop))
            lost[rank][place] = coding.lost(total, codes, peers)
        decoded = coding.decode(codes, place.stop - place.start)
        result[place] = coding.stored(decoded).view(arrays[0].dtype)
    return Coded(result, lost)


def assert_equal_bits(results, wanted, dtype):
    """The same bits on every peer, and those of the oracle; which NaN a wide float is, the machine decides."""
    assert all(result.tobytes() == results[0].tobytes() for result in results), "peers differ"
    got = results[0]
    if dtype in WIDE_FLOATS:
        nan = np.isnan(wanted)
        assert np.array_equal(nan, np.isnan(got))
        got, wanted = got[~nan], wanted[~nan]
    assert got.tobytes() == wanted.tobytes()


_FOLD = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
}


def assert_agrees_with_numpy(got, arrays, dtype, op):
    """Within the rounding of one operation per share, of ordinary inputs."""
    size = len(arrays)
    if dtype not in HALF_STEP:
        wanted = _FOLD[op].reduce(np.stack(arrays), axis=0, dtype=arrays[0].dtype)
        if op is ReduceOp.AVG:
            wanted = np.array([abs(int(x)) // size * (-1 if x < 0 else 1) for x in wanted], wanted.dtype)
        assert np.array_equal(got, wanted)
        return
    wide = np.stack([arithmetic.widen(array, dtype).astype(np.float64) for array in arrays])
    wanted, scale = _FOLD[op].reduce(wide, axis=0), np.abs(wide).sum(axis=0)
    if op is ReduceOp.AVG:
        wanted, scale = wanted / size, scale / size
    if op is ReduceOp.PROD:
        scale = np.abs(wanted)
    allowed = scale * HALF_STEP[dtype] * (size + 1) * 1.01 + (2**-24 if dtype is DataType.FLOAT16 else 0)
    assert np.all(np.abs(arithmetic.widen(got, dtype).astype(np.float64) - wanted) <= allowed)
