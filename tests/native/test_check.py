"""The check of a segment's bytes: the same in every variant and in the reference, and it notices damage."""

import numpy as np
import pytest

from pccl import _native
from pccl.dataplane.ring.arithmetic import check
from pccl.dataplane.ring.segments import HEADER_BYTES, Header, seal

VARIANTS = list(enumerate(_native.kernel_names()))
every_variant = pytest.mark.parametrize(
    "variant", [number for number, _ in VARIANTS], ids=[name for _, name in VARIANTS]
)


def data(length, seed=0):
    return np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)


@every_variant
def test_variants_agree_with_the_reference(variant):
    for length in [*range(101), 1000, 4096, 4097, 65536, (1 << 20) + 5]:
        for shift in (0, 1, 7):
            there = data(length + shift, length)[shift:]
            assert _native.check(variant, there.ctypes.data, length) == check(there), (length, shift)


@pytest.mark.parametrize("fill", ["random", "zeros", "ones"])
def test_any_flipped_bit_is_noticed(fill):
    for length in (1, 3, 8, 9, 16, 40, 100):
        whole = data(length) if fill == "random" else np.full(length, 0 if fill == "zeros" else 255, np.uint8)
        for bit in range(8 * length):
            damaged = whole.copy()
            damaged[bit // 8] ^= 1 << bit % 8
            assert check(damaged) != check(whole), (length, bit)


def test_flipped_bits_are_noticed_in_words_chosen_against_the_check():
    """Words for which the product of the halves is blind: one half is zero or one after mixing with the key."""
    for place in range(4):
        key = (place + 1) * 0x9E3779B97F4A7C15 % 2**64
        for low, high in [(0, 5), (1, 5), (2**32 - 1, 5), (5, 0), (5, 1), (0, 0), (1, 1)]:
            words = np.arange(10, 14, dtype=np.uint64)
            words[place] = ((high << 32) | low) ^ key
            for bit in range(64):
                damaged = words.copy()
                damaged[place] ^= np.uint64(1 << bit)
                assert check(damaged.view(np.uint8)) != check(words.view(np.uint8)), (place, low, high, bit)


def test_two_flipped_bits_are_noticed():
    """All pairs in three words: damage of one bit is not undone by damage of another."""
    words = data(24, 7)
    checks = set()
    for first in range(192):
        for second in range(first):
            damaged = words.copy()
            damaged[first // 8] ^= 1 << first % 8
            damaged[second // 8] ^= 1 << second % 8
            checks.add(check(damaged))
    assert len(checks) == 192 * 191 // 2


def test_swapped_words_are_noticed():
    words = np.random.default_rng(3).integers(0, 2**64, 40, dtype=np.uint64)
    wanted = check(words.view(np.uint8))
    for first in range(40):
        for second in range(first):
            swapped = words.copy()
            swapped[[first, second]] = words[[second, first]]
            assert check(swapped.view(np.uint8)) != wanted
    halves = words.view(np.uint32)
    for word in range(40):
        swapped = halves.copy()
        swapped[[2 * word, 2 * word + 1]] = halves[[2 * word + 1, 2 * word]]
        assert check(swapped.view(np.uint8)) != wanted


def test_cut_and_extended_data_are_noticed():
    whole = data(200)
    assert len({check(whole[:length]) for length in range(201)}) == 201
    zeros = np.zeros(200, np.uint8)
    assert len({check(zeros[:length]) for length in range(201)}) == 201
    extended = np.concatenate([whole[:51], zeros])
    assert len({check(extended[:length]) for length in range(51, 251)}) == 200


def test_a_damaged_header_is_noticed():
    """Any flipped bit, and any place that is not the one it was sealed for."""
    header = Header(7, 3, 2, 11, 64, 0, check(data(64))).sealed()
    whole = header.pack()
    assert Header.unpack(whole) == header
    assert seal(header) == header.seal
    for bit in range(8 * HEADER_BYTES):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        unpacked = Header.unpack(damaged)
        assert unpacked.seal != seal(unpacked), bit
