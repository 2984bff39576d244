"""What can be reduced where it lies, what cannot, and that the error says what to do."""

import array
import ctypes
import gc
import weakref

import numpy as np
import pytest

from pccl import DataType, UsageError
from pccl.dataplane.tensors.buffers import Tensor, apart, buffers, tensor
from pccl.dataplane.tensors.dlpack import lent
from pccl.dataplane.tensors.pool import KEPT_MAX, Pool
from pccl.dataplane.tensors.staging import Gathered

CALL = "all_reduce: send"


def elements(found, dtype):
    return np.frombuffer((ctypes.c_char * found.nbytes).from_address(found.address), dtype)


class Lender:
    """What lends its memory by DLPack and in no other way, like an array of JAX."""

    def __init__(self, array, *, versions=True, device=1):
        self._array, self._versions, self._device = array, versions, device

    def __dlpack_device__(self):
        return (self._device, 0)

    def __dlpack__(self, **options):
        if options and not self._versions:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self._array.__dlpack__(**options)


# ── what can ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [each for each in DataType if each is not DataType.BFLOAT16])
def test_numpy_arrays_of_every_type(dtype):
    values = np.arange(6).astype(dtype.to_numpy_dtype()).reshape(2, 3)
    found = tensor(values, CALL, writable=True)
    assert (found.count, found.dtype) == (6, dtype)
    assert found.address == values.ctypes.data
    assert DataType.from_numpy_dtype(values.dtype) is dtype
    assert DataType.from_numpy_dtype(values.dtype.type) is dtype


@pytest.mark.parametrize(
    ("lender", "count", "dtype"),
    [
        (bytearray(b"abc"), 3, DataType.UINT8),
        (array.array("f", [1, 2]), 2, DataType.FLOAT),
        (array.array("d", [1]), 1, DataType.DOUBLE),
        (array.array("q", [1, 2]), 2, DataType.INT64),
        (array.array("H", [1, 2]), 2, DataType.UINT16),
        (memoryview(np.ones(8, np.float16)), 8, DataType.FLOAT16),
        (memoryview(bytearray(24)).cast("B").cast("i", (2, 3)), 6, DataType.INT32),
        (np.float32(3), 1, DataType.FLOAT),
    ],
)
def test_whatever_has_a_buffer(lender, count, dtype):
    found = tensor(lender, CALL, writable=False)
    assert (found.count, found.dtype) == (count, dtype)
    assert elements(found, np.uint8).tobytes() == bytes(memoryview(lender).cast("B"))


def test_a_buffer_in_use_cannot_be_resized():
    lender = bytearray(8)
    found = tensor(lender, CALL, writable=True)
    with pytest.raises(BufferError):
        lender.append(1)
    del found
    gc.collect()
    lender.append(1)


@pytest.mark.parametrize("versions", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int16", "int64"])
def test_whatever_lends_by_dlpack(dtype, versions):
    values = np.arange(12).astype(dtype).reshape(3, 4)
    found = tensor(Lender(values, versions=versions), CALL, writable=False)
    assert found.dtype is DataType.from_element_name(dtype)
    assert np.array_equal(elements(found, dtype), values.reshape(-1))


def test_dlpack_without_dimensions_and_without_elements():
    assert tensor(Lender(np.array(7, np.float32)), CALL, writable=False).count == 1
    assert tensor(Lender(np.empty((0, 3), np.float32)), CALL, writable=False).count == 0


def test_what_is_lent_stays_lent_while_it_is_used():
    values = np.arange(3.0)
    found, watched = tensor(Lender(values), CALL, writable=False), weakref.ref(values)
    del values
    gc.collect()
    assert elements(found, np.float64).tolist() == [0, 1, 2]
    del found
    gc.collect()
    assert watched() is None


def test_contiguity_is_read_from_the_strides():
    values = np.ones((4, 6))
    assert lent(values).contiguous
    assert lent(values[:1]).contiguous
    assert lent(values[:, :1][:1]).contiguous
    assert not lent(values[::2]).contiguous
    assert not lent(values.T).contiguous


# ── what cannot ──────────────────────────────────────────────────────────────────────────────────────────────────────

FROZEN = np.ones(3)
FROZEN.flags.writeable = False


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ([1.0], "send: it must be a tensor, got a list; pass a numpy array, a torch tensor, or anything"),
        ("text", "send: it must be a tensor, got a str"),
        (np.ones((4, 4))[:, ::2], r"send: it is not contiguous; pass copy = numpy.ascontiguousarray\(array\)"),
        (np.ones(3, ">f4"), "send: its byte order is not this machine's"),
        (np.ones(3, np.complex64), "send: elements of type complex64 cannot be reduced; these can: uint8"),
        (np.array(["a"]), "send: elements of type str"),
        (FROZEN, "send: this ndarray is read-only; pass something writable"),
        (b"abc", "send: this bytes is read-only"),
        (Lender(FROZEN), "send: this Lender is read-only"),
        (Lender(np.ones(3), versions=False), "send: this Lender is read-only"),
        (Lender(np.ones(3), device=2), r"send: it lies on a device \(CUDA\); copy it to the CPU first"),
        (Lender(np.ones(3), device=99), "number 99 of DLPack"),
        (Lender(np.ones((3, 4))[:, ::2]), "send: it is not contiguous"),
        (memoryview(array.array("f", [1, 2, 3]))[::2], "send: it is not contiguous"),
        (memoryview(bytearray(4)).cast("?"), r"elements of type \?"),
    ],
)
def test_errors_name_the_argument_and_the_remedy(wrong, sentence):
    with pytest.raises(UsageError, match=sentence) as raised:
        tensor(wrong, CALL, writable=True)
    assert str(raised.value).startswith("all_reduce: ")


def test_both_sides_must_fit():
    with pytest.raises(UsageError, match="all_reduce: send holds 3 x DOUBLE, recv 4 x DOUBLE; make them alike"):
        buffers(np.ones(3), np.ones(4))
    with pytest.raises(UsageError, match="send holds 3 x DOUBLE, recv 3 x FLOAT"):
        buffers(np.ones(3), np.ones(3, np.float32))
    values = np.ones(9)
    with pytest.raises(UsageError, match="send and recv overlap"):
        buffers(values[:6], values[3:])
    assert buffers(values[:3], values[:3]).send.address == values.ctypes.data


def test_in_place_the_only_argument_must_be_writable():
    with pytest.raises(UsageError, match="send, which is written because there is no recv: this ndarray is read-only"):
        buffers(FROZEN, FROZEN)
    assert buffers(FROZEN, np.ones(3)).send.count == 3


def test_tensors_of_one_transaction_are_apart():
    values = np.ones(10)
    whole, begin, end = (tensor(part, CALL, writable=True) for part in (values, values[:4], values[4:]))
    apart([end, begin], "all_reduce_many: tensors")
    with pytest.raises(UsageError, match="tensors: number 2 shares memory with number 0; pass each tensor once"):
        apart([begin, end, whole], "all_reduce_many: tensors")
    nothing = Tensor(values.ctypes.data + 8, 0, DataType.DOUBLE, values)
    apart([begin, nothing, nothing], "all_reduce_many: tensors")


# ── many tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_tensors_become_one_stretch_for_each_type_and_go_back():
    tensors = [np.arange(3, dtype=np.float32), np.arange(2, dtype=np.int64), np.zeros(0, np.float32)]
    gathered = Gathered(tensors, "all_reduce_many: tensors", Pool())
    integers, floats = gathered.shares
    assert (integers.dtype, floats.dtype) == (DataType.INT64, DataType.FLOAT)
    assert elements(floats.buffers.send, np.float32).tolist() == [0, 1, 2]
    elements(floats.buffers.recv, np.float32)
    for share in gathered.shares:
        ctypes.memmove(share.buffers.recv.address, share.buffers.send.address, share.buffers.send.nbytes)
        ctypes.memset(share.buffers.recv.address, 0, share.dtype.itemsize)
    assert tensors[0].tolist() == [0, 1, 2]
    gathered.deliver()
    assert tensors[0].tolist() == [0, 1, 2]
    assert tensors[1].tolist() == [0, 1]


def test_the_layout_tells_lengths_and_their_order():
    def layout(*lengths):
        return Gathered([np.ones(length) for length in lengths], "x", Pool()).shares[0].layout

    assert len({layout(3, 5), layout(5, 3), layout(8, 0), layout(4, 4), layout(1, 2, 5)}) == 5
    assert layout(3, 5) == layout(3, 5)


def test_memory_is_kept_for_the_next_call():
    pool = Pool()
    first = pool.take(1000)
    pool.give(first)
    assert pool.take(2000) is first, "stretches are whole pages, so this fits too"
    larger = pool.take(first.nbytes + 1)
    assert larger.nbytes > first.nbytes
    for stretch in [first, larger, *(pool.take(5 * larger.nbytes) for _ in range(KEPT_MAX - 1))]:
        pool.give(stretch)
    assert pool.take(1) is larger, "the smallest had to go"
