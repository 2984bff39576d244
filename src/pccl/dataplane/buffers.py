"""The user's tensors as the data plane sees them: an address, a number of elements, and their type.

Owns the checks that a tensor can be reduced where it lies. Imports neither numpy nor torch: whichever is there is
recognised by what its tensors can do. Must not know peers or lanes.
"""

import contextlib
import ctypes
import mmap
from typing import Any

from msgspec import Struct

from pccl.errors import UsageError
from pccl.types import DataType, Result

_BY_NAME = {
    "uint8": DataType.UINT8,
    "int8": DataType.INT8,
    "int16": DataType.INT16,
    "uint16": DataType.UINT16,
    "uint32": DataType.UINT32,
    "int32": DataType.INT32,
    "uint64": DataType.UINT64,
    "int64": DataType.INT64,
    "float16": DataType.FLOAT16,
    "bfloat16": DataType.BFLOAT16,
    "float32": DataType.FLOAT,
    "float64": DataType.DOUBLE,
}


class Tensor(Struct, frozen=True):
    """A contiguous stretch of elements in this process's memory."""

    address: int
    count: int
    dtype: DataType
    owner: Any
    """Kept, so that the memory stays."""

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.count * self.dtype.itemsize


class Buffers(Struct, frozen=True):
    """What a collective reads and writes; both may be the same."""

    send: Tensor
    recv: Tensor | None
    """None while nobody knows how long the result will be: that depends on who is there when it starts."""

    @property
    def output(self) -> Tensor:
        """Where the result goes, once that is known."""
        assert self.recv is not None, "a run starts with room for its result"
        return self.recv

    @property
    def in_place(self) -> bool:
        """The result overwrites the input."""
        return self.output.address == self.send.address


def fresh(count: int, dtype: DataType) -> Tensor:
    """Room for so many elements; `owner` exports its bytes as a buffer. Zeroed, and mapped page by page as it is
    written: a large one costs nothing here, where it is asked for in the event loop."""
    memory = mmap.mmap(-1, max(1, count * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # advice: a kernel without large pages is slower, and no worse
            memory.madvise(mmap.MADV_HUGEPAGE)  # 64 MiB are filled in 8 ms instead of 42
    return Tensor(ctypes.addressof(ctypes.c_uint8.from_buffer(memory)), count, dtype, memory)


def tensor(array: Any, what: str, *, writable: bool) -> Tensor:
    """The memory of a numpy array or a torch tensor; `what` names it in errors."""
    if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        return _of_torch(array, what)
    if hasattr(array, "__array_interface__"):
        return _of_numpy(array, what, writable)
    raise _wrong(what, f"a {type(array).__name__} is neither a numpy array nor a torch tensor")


def _of_torch(array: Any, what: str) -> Tensor:
    if array.device.type != "cpu":
        raise _wrong(what, f"it lies on {array.device}; copy it to the CPU first")
    if not array.is_contiguous():
        raise _wrong(what, "it is not contiguous; pass tensor.contiguous()")
    return Tensor(array.data_ptr(), array.numel(), _dtype(str(array.dtype).removeprefix("torch."), what), array)


def _of_numpy(array: Any, what: str, writable: bool) -> Tensor:
    if not array.flags.c_contiguous:
        raise _wrong(what, "it is not contiguous; pass numpy.ascontiguousarray(array)")
    if writable and not array.flags.writeable:
        raise _wrong(what, "it is read-only; pass a copy")
    if not array.dtype.isnative:
        raise _wrong(what, f"its byte order is not this machine's ({array.dtype}); convert it first")
    return Tensor(array.__array_interface__["data"][0], array.size, _dtype(array.dtype.name, what), array)


def _dtype(name: str, what: str) -> DataType:
    if name not in _BY_NAME:
        raise _wrong(what, f"elements of type {name} cannot be reduced; these can: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def buffers(send: Any, recv: Any) -> Buffers:
    """Both sides of a collective, checked against each other."""
    source, target = tensor(send, "send", writable=False), tensor(recv, "recv", writable=True)
    if (source.count, source.dtype) != (target.count, target.dtype):
        sides = [f"{side.count} x {side.dtype.name}" for side in (source, target)]
        raise UsageError(
            f"all_reduce: send holds {sides[0]}, recv {sides[1]}; make them alike", Result.INVALID_ARGUMENT
        )
    apart = abs(source.address - target.address)
    if 0 < apart < source.nbytes:
        raise UsageError(
            "all_reduce: send and recv overlap; pass the same tensor or two apart", Result.INVALID_ARGUMENT
        )
    return Buffers(source, target)


def _wrong(what: str, why: str) -> UsageError:
    return UsageError(f"all_reduce: {what}: {why}", Result.INVALID_ARGUMENT)
