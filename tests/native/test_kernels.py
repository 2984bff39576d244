"""Every variant of the kernels gives, bit for bit, what `arithmetic.py` defines; and that agrees with plain numpy."""

import itertools

import numpy as np
import pytest

from pccl import _native
from pccl.dataplane.ring import arithmetic
from pccl.dataplane.ring.arithmetic import STORED
from pccl.types import DataType, ReduceOp

VARIANTS = list(enumerate(_native.kernel_names()))
LENGTHS = [*range(10), 15, 16, 17, 31, 33, 63, 64, 65, 255, 256, 257, 511, 513, 1000, 4099]
SHIFTS = [0, 1, 3, 8]
"""Bytes by which an array is moved off its alignment: a tensor of the caller's may lie anywhere."""
FLOATS = {DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE}
NARROW = {DataType.FLOAT16, DataType.BFLOAT16}

every_variant = pytest.mark.parametrize(
    "variant", [number for number, _ in VARIANTS], ids=[name for _, name in VARIANTS]
)
every_dtype = pytest.mark.parametrize("dtype", list(DataType), ids=lambda dtype: dtype.name)
every_op = pytest.mark.parametrize("op", list(ReduceOp), ids=lambda op: op.name)

# Bits of numbers that go wrong where others do not: zeros, smallest and largest subnormals and normals, one,
# infinities, quiet and signalling NaN. For each width the same list with and without sign.
SPECIAL = {
    DataType.FLOAT16: [0, 1, 0x3FF, 0x400, 0x7BFF, 0x3C00, 0x3C01, 0x7C00, 0x7E00, 0x7C01, 0x7FFF],
    DataType.BFLOAT16: [0, 1, 0x7F, 0x80, 0x7F7F, 0x3F80, 0x3F81, 0x7F80, 0x7FC0, 0x7F81, 0x7FFF],
    DataType.FLOAT: [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x3F800000, 0x7F800000, 0x7FC00000, 0x7F800001, 0x477FF000],
    DataType.DOUBLE: [0, 1, (1 << 52) - 1, 1 << 52, 0x7FEFFFFFFFFFFFFF, 0x3FF << 52, 0x7FF << 52, 0x7FF8 << 48],
}


def special(dtype):
    """Numbers at the edges of a type."""
    stored = np.dtype(STORED[dtype])
    if dtype not in FLOATS:
        info = np.iinfo(stored)
        return np.array([info.min, info.min + 1, 0, 1, 2, 3, info.max - 1, info.max], stored)
    bits = np.array(SPECIAL[dtype], f"u{stored.itemsize}")
    sign = bits.dtype.type(1) << bits.dtype.type(8 * stored.itemsize - 1)
    return np.concatenate([bits, bits | sign]).view(stored)


def random_bits(rng, dtype, count):
    """Any bits at all, with a quarter of the numbers at the edges."""
    stored = np.dtype(STORED[dtype])
    values = rng.integers(0, 256, count * stored.itemsize, dtype=np.uint8).view(stored).copy()
    edges = rng.random(count) < 0.25
    values[edges] = rng.choice(special(dtype), np.count_nonzero(edges))
    return values


def moved(values, shift):
    """The same values at an address that is `shift` bytes off; with the memory that keeps them."""
    memory = np.zeros(values.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64 + shift
    there = memory[begin : begin + values.nbytes].view(values.dtype)
    there[:] = values
    return there


def assert_same(got, wanted, dtype):
    """Equal bits. Of a float32 or float64 that is NaN only that it is one: which payload it keeps is not defined."""
    assert got.dtype == wanted.dtype
    if dtype in FLOATS - NARROW:
        nan = np.isnan(wanted)
        assert np.array_equal(nan, np.isnan(got))
        got, wanted = got[~nan], wanted[~nan]
    assert got.tobytes() == wanted.tobytes()


def native_combine(variant, dtype, op, a, b, out):
    _native.combine(variant, dtype, op, out.ctypes.data, a.ctypes.data, b.ctypes.data, len(a))


@every_variant
@every_dtype
@every_op
def test_combine_is_what_the_reference_defines(variant, dtype, op):
    rng = np.random.default_rng([dtype, op])
    for count, shift in itertools.product(LENGTHS, SHIFTS):
        a, b = (moved(random_bits(rng, dtype, count), (shift * k) % 16) for k in (1, 3))
        wanted = arithmetic.combine(a, b, dtype, op)
        out = moved(random_bits(rng, dtype, count + 1), shift)
        guard = out[count:].tobytes()
        native_combine(variant, dtype, op, a, b, out[:count])
        assert_same(out[:count], wanted, dtype)
        assert out[count:].tobytes() == guard, "wrote beyond the end"
        for inplace in (a, b):  # the ring reduces into the received and into the caller's memory
            copies = a.copy(), b.copy()
            target = copies[0] if inplace is a else copies[1]
            native_combine(variant, dtype, op, *copies, target)
            assert_same(target, wanted, dtype)


@every_variant
@every_dtype
@pytest.mark.parametrize("peers", [1, 2, 3, 5, 7, 255, 256, 1000, 70000])
def test_divide_is_what_the_reference_defines(variant, dtype, peers):
    rng = np.random.default_rng([dtype, peers])
    for count, shift in itertools.product(LENGTHS, SHIFTS):
        values = moved(random_bits(rng, dtype, count + 1), shift)
        wanted, guard = arithmetic.divide(values[:count], dtype, peers), values[count:].tobytes()
        _native.divide(variant, dtype, values.ctypes.data, count, peers)
        assert_same(values[:count], wanted, dtype)
        assert values[count:].tobytes() == guard, "wrote beyond the end"


@every_variant
@pytest.mark.parametrize("dtype", sorted(NARROW), ids=lambda dtype: dtype.name)
@every_op
def test_all_16_bit_floats(variant, dtype, op):
    """Each of the 65,536 numbers with some others: no bit pattern is left to chance."""
    a = np.arange(1 << 16, dtype=np.uint16)
    others = [*special(dtype).view(np.uint16), 0x3555, 0x0123, 0xBEEF]
    for other in others:
        first, second = a.view(STORED[dtype]), np.full_like(a, other).view(STORED[dtype])
        out = np.empty_like(first)
        native_combine(variant, dtype, op, first, second, out)
        assert_same(out, arithmetic.combine(first, second, dtype, op), dtype)


# ── the definition itself ────────────────────────────────────────────────────────────────────────────────────────────


def exact(values, dtype):
    """Numbers as numpy's float64, or Python's own integers."""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return arithmetic.widen(values, dtype).astype(np.float64 if dtype in FLOATS else object)


IN_NUMPY = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.MAX: np.maximum,
    ReduceOp.MIN: np.minimum,
}
HALF_STEP = {DataType.FLOAT16: 2**-11, DataType.BFLOAT16: 2**-8, DataType.FLOAT: 2**-24, DataType.DOUBLE: 2**-53}
SMALLEST = {DataType.FLOAT16: 2**-24, DataType.BFLOAT16: 2**-133, DataType.FLOAT: 2**-149, DataType.DOUBLE: 2**-1074}


@every_dtype
@every_op
def test_the_definition_agrees_with_plain_numpy(dtype, op):
    rng = np.random.default_rng([dtype, op])
    a, b = random_bits(rng, dtype, 20_000), random_bits(rng, dtype, 20_000)
    got = arithmetic.combine(a, b, dtype, op)
    with np.errstate(all="ignore"):
        wanted = IN_NUMPY[op](exact(a, dtype), exact(b, dtype))
    if dtype not in FLOATS:
        bits = 8 * dtype.itemsize
        wrapped = wanted & ((1 << bits) - 1)
        assert np.array_equal(wrapped, got.astype(object) & ((1 << bits) - 1))
        return
    got = exact(got, dtype)
    assert np.array_equal(np.isnan(got), np.isnan(wanted)), "NaN propagates, and comes from nowhere"
    largest = 65504 if dtype is DataType.FLOAT16 else float(np.finfo(np.float32).max)
    near = np.isfinite(got) & np.isfinite(wanted)
    assert np.all(np.abs(wanted[np.isinf(got)]) >= largest * (1 - 2**-9)), "infinity only where the type ends"
    error = np.abs(got[near] - wanted[near])
    assert np.all(error <= np.abs(wanted[near]) * HALF_STEP[dtype] * (1 + 1e-6) + SMALLEST[dtype] / 2)


@pytest.mark.parametrize("dtype", sorted(set(DataType) - FLOATS), ids=lambda dtype: dtype.name)
def test_integer_averages_are_truncated(dtype):
    values = special(dtype)
    for peers in (1, 2, 3, 7, 300):
        wanted = [abs(int(value)) // peers * (-1 if value < 0 else 1) for value in values]
        assert arithmetic.divide(values, dtype, peers).tolist() == wanted


@pytest.mark.parametrize("dtype", sorted(NARROW), ids=lambda dtype: dtype.name)
def test_narrowing_undoes_widening(dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(STORED[dtype])
    wide = arithmetic.widen(every, dtype)
    back = arithmetic.narrow(wide, dtype).view(np.uint16)
    nan = np.isnan(wide)
    assert np.array_equal(back[~nan], every.view(np.uint16)[~nan])
    assert set(back[nan]) == {0x7E00 if dtype is DataType.FLOAT16 else 0x7FC0}


@pytest.mark.parametrize(
    ("convert", "kind", "bits"), [("widen", np.float16, 0x7D01), ("narrow", np.float32, 0x7F7FFFFF)]
)
def test_conversions_complain_of_nothing(convert, kind, bits):
    """Where warnings are errors, a run would break off. Of what numpy complains depends on the machine, such as of a
    signalling NaN made wider: so the mode at the moment of the conversion counts, not only what comes of it here."""
    modes = []

    class Watched(np.ndarray):
        def astype(self, *to):
            modes.append(np.geterr())
            return np.asarray(self).astype(*to)

    values = np.array([bits], f"u{np.dtype(kind).itemsize}").view(kind)
    with np.errstate(all="raise"):
        getattr(arithmetic, convert)(values.view(Watched), DataType.FLOAT16)
    assert modes == [dict.fromkeys(("divide", "over", "under", "invalid"), "ignore")]


def test_bfloat16_rounds_to_nearest_even():
    floats = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F80FFFF, 0x7F7FFFFF, 0xFF7FFFFF], np.uint32).view(
        np.float32
    )
    bits = arithmetic.narrow(floats, DataType.BFLOAT16)
    assert [hex(value) for value in bits] == ["0x3f80", "0x3f82", "0x3f81", "0x3f81", "0x7f80", "0xff80"]


@every_variant
def test_what_is_set_aside_is_the_same_and_no_more(variant):
    for length, shift, target in itertools.product(LENGTHS, SHIFTS, (0, 1, 31)):
        source = np.random.default_rng(length).integers(0, 256, length + shift, dtype=np.uint8)
        copy = np.full(target + length + 40, 7, np.uint8)
        _native.set_aside(variant, copy.ctypes.data + target, source.ctypes.data + shift, length)
        assert np.array_equal(copy[target : target + length], source[shift:])
        assert np.all(copy[:target] == 7)
        assert np.all(copy[target + length :] == 7)
