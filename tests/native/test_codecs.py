"""Codecs: every native variant against the definition in numpy, bit for bit; and that against its promises."""

import itertools

import numpy as np
import pytest

from pccl import _native
from pccl.codec import CODES, Codec
from pccl.dataplane.ring.codecs import CODECS
from pccl.dataplane.ring.codecs.parts import DOUBLE, FLOAT
from pccl.dataplane.ring.coding import Coding
from pccl.types import DataType, ReduceOp

VARIANTS = range(len(_native.kernel_names()))
every_codec = pytest.mark.parametrize("name", CODES)
every_width = pytest.mark.parametrize("number", [FLOAT, DOUBLE], ids=["float", "double"])
LENGTHS = (1, 2, 3, 7, 8, 15, 31, 64, 255, 256, 257, 1009, 4095, 4096)
GUARD = 0xA5


def test_both_sides_agree_on_what_there_is():
    assert [(name, *shape) for name, shape in ((n, _facts(s)) for n, s in CODES.items())] == _native.codec_shapes()
    assert list(CODECS) == list(CODES)


def _facts(shape):
    return shape.bits, shape.metadata, shape.metadata_wide


def spread(rng, count, number):
    """Kinds of blocks that there are, and some that should not be."""
    x = rng.standard_normal(count)
    strange = [np.nan, np.inf, -np.inf, 2.0**126, -(2.0**126), -1e38, 1e-40, -0.0]
    with np.errstate(all="ignore"):
        kinds = {
            "normal": x,
            "any scale": x * 10.0 ** rng.integers(-46, 38),
            "constant": np.full(count, x[0]),
            "constant, of any size": np.full(count, x[0] * 10.0 ** rng.integers(-46, 38)),
            "constant but for one": np.where(np.arange(count) == rng.integers(count), x, x[0]),
            "largest": np.full(count, np.finfo(number.real).max),
            "narrow": x[0] + np.spacing(number.real(x[0])) * rng.integers(-9, 10, count),
            "all positive": np.abs(x) + 5,
            "all negative": -np.abs(x),
            "far from zero": x + 1e4,
            "zeros": rng.choice([0.0, -0.0], count),
            "denormal": x * float(number.smallest) / 4,
            "on the grid": rng.integers(-127, 128, count) * 2.0**-3,
            "half way": np.round(x * 16) / 2,
            "strange": np.where(np.arange(count) == rng.integers(count), rng.choice(strange), x),
            "heavy": rng.standard_cauchy(count),
        }
        made = {kind: np.ascontiguousarray(values.astype(number.real)) for kind, values in kinds.items()}
    bits = rng.integers(0, 256, count * made["normal"].itemsize, dtype=np.uint8)
    return {**made, "any bits": bits.view(number.real)}


def native_encode(variant, name, values, key=None):
    """Coded natively, from and to places that are not aligned; what lies behind must not be touched."""
    wide = values.dtype == np.float64
    size = Codec(name, 4096).coded_bytes(len(values), DataType.DOUBLE if wide else DataType.FLOAT)
    room = np.full(size + 40, GUARD, np.uint8)
    shift = 2 if CODES[name].bits == 16 else 1
    number = Codec(name).number
    _native.encode_block(variant, number, wide, room.ctypes.data + shift, values.ctypes.data, len(values), key)
    assert np.all(room[shift + size :] == GUARD), "wrote beyond the end"
    return room[shift : shift + size]


def native_decode(variant, name, coded, number, count):
    out = np.full(count + 4, 7, number.real)
    wide = number is DOUBLE
    _native.decode_block(variant, Codec(name).number, wide, out.ctypes.data, coded.ctypes.data, count)
    assert np.all(out[count:] == 7), "wrote beyond the end"
    return out[:count]


def draws(key, count):
    x = np.uint32(key) + np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return (x ^ x >> np.uint32(16)).reshape(1, -1)


@every_codec
@every_width
@pytest.mark.parametrize("variant", VARIANTS, ids=_native.kernel_names())
def test_native_equals_reference(variant, number, name):
    rng = np.random.default_rng([len(name), variant])
    for count in LENGTHS:
        for kind, values in spread(rng, count, number).items():
            for key in (None, int(rng.integers(2**32))):
                with np.errstate(all="ignore"):
                    random = None if key is None else draws(key, count)
                    wanted = CODECS[name].encode(values.reshape(1, -1), random).ravel()
                    decoded = CODECS[name].decode(wanted.reshape(1, -1), number, count).ravel()
                coded = native_encode(variant, name, values, key)
                assert coded.tobytes() == wanted.tobytes(), (kind, count, key)
                got = native_decode(variant, name, np.array(coded), number, count)
                assert got.tobytes() == decoded.tobytes(), (kind, count, key)


@every_codec
@every_width
@pytest.mark.parametrize("variant", VARIANTS, ids=_native.kernel_names())
def test_any_bytes_decode_to_the_same(variant, number, name):
    """Metadata that lies included: steps that are NaN, infinite, negative or zero."""
    rng = np.random.default_rng(variant)
    for count, _ in itertools.product(LENGTHS, range(20)):
        size = Codec(name, 4096).coded_bytes(count, DataType.DOUBLE if number is DOUBLE else DataType.FLOAT)
        coded = rng.integers(0, 256, size, dtype=np.uint8)
        if rng.random() < 0.5:
            place = rng.integers(0, min(12, size))
            coded[place : place + 2] = rng.choice([0x00, 0x7F, 0x80, 0xFF, 0xC0], min(2, size - place))
        with np.errstate(all="ignore"):
            wanted = CODECS[name].decode(coded.reshape(1, -1), number, count).ravel()
        got = native_decode(variant, name, coded, number, count)
        assert got.tobytes() == wanted.tobytes()


# ── what is promised ─────────────────────────────────────────────────────────────────────────────────────────────────


def coded_and_back(name, values, stream=0, **choices):
    dtype = DataType.DOUBLE if values.dtype == np.float64 else DataType.FLOAT
    coding = Coding(Codec(name, **choices), dtype, ReduceOp.SUM)
    return coding.decode(coding.encode(values, 0, coding.stream(stream)), len(values))


@every_codec
@every_width
def test_errors_are_at_most_half_a_step(number, name):
    rng = np.random.default_rng(1)
    for scale in (1e-30, 1.0, 1e30):
        values = (rng.standard_normal(10_000) * scale).astype(number.real)
        back = coded_and_back(name, values)
        rows = np.abs(values[: 39 * 256].reshape(39, 256).astype(np.float64))
        error = np.abs(values - back)[: 39 * 256].reshape(39, 256)
        top = rows.max(axis=1, keepdims=True)
        levels = {"int8": 127, "int4": 7, "minmax8": 127.5, "minmax16": 32767.5, "zeropoint8": 127.5}
        if name == "e3m0":
            assert np.all(error <= np.maximum(rows * 0.34, top * 2.0**-7 * 1.01))
        else:
            assert np.all(error <= top / levels.get(name, 32767.5) * (0.5 if "int" in name[:3] else 1) * 1.02)


@every_codec
@every_width
def test_special_blocks(number, name):
    def back(values):
        return coded_and_back(name, np.array(values, number.real))

    assert np.array_equal(back([0.0, -0.0, 0.0]), [0, 0, 0])
    assert not np.any(np.signbit(back([0.0, -0.0, -0.0])))
    assert len(back([])) == 0
    tiny = number.smallest
    assert np.array_equal(back([tiny / 8, -tiny / 8]), [-tiny / 8] * 2 if name.startswith("minmax") else [0, 0])
    for poison in (np.nan, np.inf, -np.inf, number.too_large, -number.too_large):
        values = np.ones(600)
        values[300] = poison
        bits = back(values).view(number.bits)
        assert np.all(bits[256:512] == number.quiet_nan), "the whole block, and the one quiet NaN"
        assert np.all(np.abs(back(values)[np.r_[:256, 512:600]] - 1) < 0.01), "and no other block"
    large = float(number.too_large) * 0.999
    assert np.all(np.isfinite(back([large, -large, 1.0, 0.0])))


@every_codec
@every_width
@pytest.mark.parametrize("stochastic", [False, True])
def test_equal_values_are_exact(number, name, stochastic):
    """Blocks of any length, the shortest too; and what is equal is one value whatever stands in other blocks."""
    largest, tiny = np.finfo(number.real).max, np.finfo(number.real).smallest_subnormal
    for value in (42, 85, -3, 0.1, -1 / 3, 0, number.smallest, tiny, -5 * tiny, number.too_large, largest, -largest):
        for count in (1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 300):
            values = np.full(count, value, number.real)
            assert coded_and_back(name, values, stochastic=stochastic).tobytes() == values.tobytes(), (value, count)
        mixed = np.random.default_rng(1).standard_normal(768).astype(number.real)
        mixed[256:512] = number.real(value)
        assert np.all(coded_and_back(name, mixed, stochastic=stochastic)[256:512] == number.real(value)), value


@every_codec
@every_width
def test_equal_values_that_are_no_numbers(number, name):
    for value in (np.nan, np.inf, -np.inf):
        for count in (1, 3, 256):
            back = coded_and_back(name, np.full(count, value, number.real))
            assert np.all(back.view(number.bits) == number.quiet_nan)


@pytest.mark.parametrize("name", [name for name in CODES if name.startswith(("minmax", "zeropoint"))])
@every_width
@pytest.mark.parametrize("far", [1, 30, 1000, 1e6])
def test_a_range_is_as_exact_wherever_it_lies(number, name, far):
    """Codes between zero and values that are all of one sign would be wasted."""
    values = np.random.default_rng(3).random(256)
    around = (values - 0.5).astype(number.real)
    usual = np.abs(coded_and_back(name, around) - around).max()
    for shift in (far, -far - 1):
        shifted = (values + shift).astype(number.real)
        error = np.abs(coded_and_back(name, shifted) - shifted).max()
        assert error <= 1.05 * usual + 2 * np.spacing(number.real(far)), shift


@every_width
@pytest.mark.parametrize("name", ["zeropoint8", "zeropoint16"])
def test_zero_is_exact_where_it_is_in_the_range(number, name):
    for seed in range(20):
        values = (np.random.default_rng(seed).standard_normal(256) + seed % 3).astype(number.real)
        values[::5] = 0
        assert np.all(coded_and_back(name, values)[::5] == 0)


@every_codec
def test_negative_blocks_use_the_whole_range(name):
    """PCCL's scan for the largest begins at a positive number, and wastes the range up to it."""
    values = (np.random.default_rng(3).random(256) - 1001).astype(np.float32)  # between -1001 and -1000
    error = np.abs(coded_and_back(name, values) - values).max()
    limits = {"minmax8": 0.003, "minmax16": 1e-4, "zeropoint8": 0.003, "zeropoint16": 1e-4}
    assert error <= limits.get(name, 180 if name == "e3m0" else 100 if name == "int4" else 5)


@every_codec
def test_stochastic_rounding_has_no_direction(name):
    values = np.random.default_rng(4).uniform(-1, 1, 2_000).astype(np.float32)
    means = np.mean([coded_and_back(name, values, stream, stochastic=True) for stream in range(400)], axis=0)
    nearest = np.abs(coded_and_back(name, values) - values).mean()
    assert np.abs(means - values).mean() < nearest / 4
    assert abs((means - values).mean()) < nearest / 20


def test_stochastic_rounding_is_the_same_for_the_same_seed():
    values = np.random.default_rng(5).standard_normal(3_000).astype(np.float32)
    first, again, other = (coded_and_back("int4", values, stochastic=True, seed=seed) for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()


def test_random_numbers_are_even():
    coding = Coding(Codec("int4", stochastic=True), DataType.FLOAT, ReduceOp.SUM)
    some = coding._draws(0, np.empty((4096, 256), np.float32), coding.stream(1, 2, 3))
    counts = np.bincount((some >> np.uint32(24)).ravel(), minlength=256)
    assert np.all(np.abs(counts - 4096) < 6 * 64)
    assert len(np.unique(some)) > 0.999 * some.size


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "codec", [Codec("int8"), Codec("e3m0", 4096), Codec("zeropoint16", 4096, True, 2**63 - 1), Codec("int4", 512, True)]
)
def test_a_codec_survives_its_name(codec):
    assert Codec.parse(str(codec)) == codec
    assert len(str(codec)) <= 64


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Codec("int7"), "a codec must be one of int8, int4, e3m0, .*, got 'int7'"),
        (lambda: Codec("int8", 300), "a power of two from 256 to 4096"),
        (lambda: Codec("int8", 128), "a power of two from 256 to 4096"),
        (lambda: Codec("int8", seed=-1), "seed must be .*, got -1"),
        (lambda: Codec.parse("int8"), "must be written like int8.256"),
        (lambda: Codec.parse("int8.256.x.1"), "must be written like int8.256"),
    ],
)
def test_nonsense_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
