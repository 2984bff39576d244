"""What an exchange computes, native against reference against numpy, and the form of a parcel on its lane."""

import random
import threading

import numpy as np
import pytest
import torch

from pccl.core.fields import CollectiveSpec
from pccl.core.rules.schedule import PARCEL_BYTES_MAX, PARCELS_BYTES_MAX, PARCELS_KEPT_MAX, PARCELS_MAX
from pccl.dataplane.native import NativePlane
from pccl.dataplane.reference import ReferencePlane
from pccl.dataplane.ring.arithmetic import STORED
from pccl.dataplane.ring.parcels import Damaged, Exchanged, Inbox, wrap
from pccl.dataplane.ring.segments import HEADER_BYTES
from pccl.dataplane.tensors.buffers import buffers, tensor
from pccl.types import DataType, ReduceOp
from tests.native import oracle

PLANES = (NativePlane(60.0), ReferencePlane(60.0))


def reduced(plane, spec, contributions):
    out = np.zeros(spec.count * spec.dtype.itemsize, np.uint8)
    plane.reduce_all(spec, contributions, tensor(out, "out", writable=True))
    return out.tobytes()


@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("dtype", list(DataType))
def test_native_equals_reference_for_any_bits(dtype, op):
    """Random bytes are full of NaN, infinities and denormals; every one of them must come out the same."""
    draw = np.random.default_rng(dtype * 10 + op)
    for count in (1, 2, 3, 17, 1_009):
        for peers in range(2, 9):
            contributions = [draw.bytes(count * dtype.itemsize) for _ in range(peers)]
            spec = CollectiveSpec(count, dtype, op)
            native, reference = (reduced(plane, spec, contributions) for plane in PLANES)
            assert native == reference


@pytest.mark.parametrize("dtype", [DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE])
def test_every_nan_becomes_the_same_one(dtype):
    draw = np.random.default_rng(int(dtype))
    ones = b"\xff" * dtype.itemsize  # a NaN with all bits set
    contributions = [draw.bytes(64 * dtype.itemsize), ones * 64]
    for plane in PLANES:
        values = np.frombuffer(reduced(plane, CollectiveSpec(64, dtype, ReduceOp.SUM), contributions), np.uint8)
        assert len(np.unique(values.reshape(64, -1), axis=0)) == 1
        assert values[-1] & 0x80 == 0


@pytest.mark.parametrize("op", list(ReduceOp))
def test_it_is_what_numpy_says(op):
    inputs = oracle.inputs(np.random.default_rng(3), DataType.DOUBLE, op, 100, 4)
    expected = {
        ReduceOp.SUM: np.sum, ReduceOp.AVG: np.mean, ReduceOp.PROD: np.prod, ReduceOp.MAX: np.max, ReduceOp.MIN: np.min,
    }[op](inputs, axis=0)  # fmt: skip
    for plane in PLANES:
        result = reduced(plane, CollectiveSpec(100, DataType.DOUBLE, op), [each.tobytes() for each in inputs])
        np.testing.assert_allclose(np.frombuffer(result, STORED[DataType.DOUBLE]), expected, rtol=1e-12)


@pytest.mark.parametrize("in_place", [True, False])
def test_an_abort_after_the_end_puts_the_input_back(in_place):
    given = np.arange(5, dtype=np.float32)
    out = given if in_place else np.zeros(5, np.float32)
    plane, contribution = PLANES[0], given.tobytes()
    plane.offers.offer(1, buffers(given, out))
    plane.offers.began(1, Exchanged(plane.offers.find(1), len(contribution), 2))
    spec = CollectiveSpec(5, DataType.FLOAT, ReduceOp.SUM)
    plane.reduce_all(spec, [contribution, contribution], plane.offers.find(1).output)
    assert out.tolist() == [0, 2, 4, 6, 8]
    plane.offers.settle(1, committed=False)
    plane.offers.withdraw(1)
    assert given.tolist() == [0, 1, 2, 3, 4]


# ── parcels ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def parcel(number, oldest=1, contribution=b"abcdefgh"):
    return wrap(number, oldest, contribution, PLANES[0].check(contribution))


def test_parcels_come_in_any_portions():
    draw = random.Random(0)
    sent = {number: draw.randbytes(draw.choice((1, 8, 1000, PARCEL_BYTES_MAX))) for number in range(1, 30)}
    stream = b"".join(parcel(number, 1, contribution) for number, contribution in sent.items())
    inbox = Inbox(PLANES[1].check)
    while stream:
        portion = draw.choice((1, 7, HEADER_BYTES, 5_000, 200_000))
        inbox.feed(stream[:portion])
        stream = stream[portion:]
    assert inbox.parcels == sent


def test_what_is_not_needed_any_more_is_forgotten():
    inbox = Inbox(PLANES[0].check)
    for number in (1, 2, 3):
        inbox.feed(parcel(number))
    inbox.feed(parcel(4, oldest=3))
    assert list(inbox.parcels) == [3, 4]


@pytest.mark.parametrize("place", range(HEADER_BYTES + 8))
def test_a_flipped_bit_is_noticed(place):
    damaged = bytearray(parcel(7))
    damaged[place] ^= 1 << place % 8
    with pytest.raises(Damaged):
        Inbox(PLANES[0].check).feed(bytes(damaged))


def test_nobody_makes_us_keep_parcels_without_end():
    inbox = Inbox(PLANES[0].check)
    for number in range(PARCELS_KEPT_MAX):
        inbox.feed(parcel(1 + number, oldest=0))
    with pytest.raises(Damaged, match="do not start"):
        inbox.feed(parcel(1 + PARCELS_KEPT_MAX, oldest=0))
    assert len(inbox.parcels) == PARCELS_KEPT_MAX


def test_nobody_makes_us_keep_more_bytes_than_the_longest_in_use():
    """It was 64 MiB for each link, and never freed."""
    inbox = Inbox(PLANES[0].check)
    long = bytes(PARCEL_BYTES_MAX)
    for number in range(PARCELS_MAX):
        inbox.feed(parcel(1 + number, 0, long))
    assert inbox.kept_bytes == PARCELS_BYTES_MAX
    with pytest.raises(Damaged, match="do not start"):
        inbox.feed(parcel(1 + PARCELS_MAX, 0, b"x"))
    inbox.take(5)
    assert inbox.kept_bytes == PARCELS_BYTES_MAX - PARCEL_BYTES_MAX


@pytest.mark.parametrize("second", [parcel(6), parcel(7), parcel(8, contribution=b"")], ids=["older", "same", "empty"])
def test_what_no_sender_of_ours_sends_is_no_parcel(second):
    inbox = Inbox(PLANES[0].check)
    inbox.feed(parcel(7))
    with pytest.raises(Damaged):
        inbox.feed(second)


def test_an_announcement_is_not_believed_beyond_the_limit():
    long = parcel(1, contribution=bytes(PARCEL_BYTES_MAX + 1))
    with pytest.raises(Damaged, match="more than any parcel has"):
        Inbox(PLANES[0].check).feed(long[:HEADER_BYTES])


def test_the_mode_of_a_thread_does_not_change_a_result():
    """`torch.set_flush_denormal` holds for the thread that calls it and for those it starts: the control thread may be
    one of them, at one peer and not at another."""
    spec = CollectiveSpec(4, DataType.FLOAT, ReduceOp.SUM)
    contributions = [np.full(4, 1e-40, np.float32).tobytes()] * 2
    flushed = []

    def flush():
        assert torch.set_flush_denormal(True)
        flushed.append(reduced(PLANES[0], spec, contributions))

    thread = threading.Thread(target=flush)
    thread.start()
    thread.join()
    assert flushed == [reduced(PLANES[0], spec, contributions)]
    assert np.frombuffer(flushed[0], np.float32)[0] > 0
