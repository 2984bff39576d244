"""The user's tensors as the data plane sees them: an address, a number of elements, and their type.

Owns the checks that a tensor can be reduced where it lies, and the sentences that say why it cannot. Imports neither
numpy nor torch: whatever is there is recognised by what its tensors can do. Must not know peers or lanes.
"""

import contextlib
import ctypes
import mmap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from msgspec import Struct

from pccl.dataplane.tensors.dlpack import NotLent, lent
from pccl.errors import UsageError
from pccl.types import DataType, Result

_FORMATS = {
    **dict.fromkeys("bhilqn", "int"),
    **dict.fromkeys("BHILQN", "uint"),
    **dict.fromkeys("efd", "float"),
}
"""Characters of the `struct` module that name an element of a buffer; how long one is, the buffer says itself."""


class Extent(NamedTuple):
    """From where to where a tensor lies; two of different spaces never meet."""

    space: str
    begin: int
    end: int

    def meets(self, other: "Extent") -> bool:
        """They share memory. What is empty shares none."""
        return self.space == other.space and self.begin < other.end and other.begin < self.end


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

    @property
    def extent(self) -> Extent:
        """Where it lies; the address of nothing may be anything."""
        return Extent("", self.address, self.address + self.nbytes) if self.count else Extent("", 0, 0)

    def part(self, begin: int, length: int) -> memoryview:
        """Some of its bytes, where they are; writing to them is up to who made the tensor writable."""
        if not length:
            return memoryview(bytearray())
        return memoryview((ctypes.c_uint8 * length).from_address(self.address + begin)).cast("B")

    def put(self, begin: int, content: memoryview) -> None:
        """Replace some of its bytes, without the GIL."""
        ctypes.memmove(self.address + begin, (ctypes.c_uint8 * len(content)).from_buffer(content), len(content))


class Feedback(Struct, frozen=True):
    """What coding has lost before and is to be made good, and room for what it loses now; one number for each element,
    of the type that sums are computed in. They must not share memory."""

    carried: Tensor
    lost: Tensor


class Buffers(Struct, frozen=True):
    """What a collective reads and writes; both may be the same."""

    send: Tensor
    recv: Tensor | None
    """None while it is not known how long the result will be: that depends on the peers at the start."""
    feedback: Feedback | None = None
    reads: tuple[Extent, ...] = ()
    """Where the caller's tensors lie that `send` is a copy of."""
    writes: tuple[Extent, ...] = ()
    """Where those lie that `recv` will be copied to."""

    @property
    def output(self) -> Tensor:
        """Where the result goes, once that is known."""
        assert self.recv is not None, "an attempt starts with room for its result"
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


def tensor(array: Any, what: str, *, writable: bool, because: str = "") -> Tensor:
    """The memory of a tensor on the CPU; `what` names call and argument in errors, such as `all_reduce: send`, and
    `because` is why it must be writable, where that is no matter of course."""
    if isinstance(array, Tensor):
        return array
    if hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        found = _of_torch(array, what, writable)
    elif hasattr(array, "__array_interface__") and hasattr(array, "flags"):
        found = _of_numpy(array, what, writable, because)
    elif hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        found = _of_dlpack(array, what, writable, because)
    else:
        found = _of_buffer(array, what, writable, because)
    return at(found, what)


def at(found: Tensor, what: str) -> Tensor:
    """The same, provided that there is memory behind it: whatever has elements lies somewhere."""
    if not isinstance(found.address, int) or (found.count and found.address <= 0):
        raise wrong(
            what, f"its {found.count} elements lie at no address ({found.address!r}); pass memory that is there"
        )
    return found


def refuse_unplain(array: Any, what: str, writable: bool) -> None:
    """Of what torch calls tensors, those whose elements are not simply their memory are refused. Reading the memory of
    a view that negates would give the wrong numbers, and a wrapper has none of its own."""
    if hasattr(array, "to_local"):
        raise wrong(what, "it is a DTensor, of which only a part is here; pass tensor.to_local()")
    try:
        why = _not_plain(array, writable)
        where, needed = array.device.type, array.numel() * array.element_size()
        if not why and needed and where in ("cpu", "cuda"):  # what others say of their storage is not known
            there = array.untyped_storage().nbytes() - array.storage_offset() * array.element_size()
            if there < needed or (where == "cpu" and not array.data_ptr()):
                why = (
                    f"it has no memory for its {needed} bytes: freed, as FSDP does between uses, or a wrapper; {_PLAIN}"
                )
    except (RuntimeError, ValueError, TypeError) as error:  # how torch says that a tensor has no memory of its own
        raise wrong(what, f"it has no memory of its own ({str(error).partition(chr(10))[0]}); {_PLAIN}") from error
    if why:
        raise wrong(what, why)


_PLAIN = "pass a plain tensor that holds its elements"


def _not_plain(array: Any, writable: bool) -> str:
    layout = str(getattr(array, "layout", "torch.strided"))
    if hasattr(array, "fake_mode"):
        return f"it is a {type(array).__name__}, which has no elements; {_PLAIN}"
    if getattr(array, "is_nested", False):
        return "it is a nested tensor; pass the tensors of tensor.unbind() to all_reduce_many"
    if layout != "torch.strided":
        return f"its layout is {layout}, not plain memory; pass tensor.to_dense() and go on with that"
    if getattr(array, "is_quantized", False):
        return "it is quantised; pass tensor.dequantize(), and quantize= if codes shall travel"
    for view in ("neg", "conj"):
        if getattr(array, f"is_{view}", bool)():
            remedy = _remedy(writable, f"tensor.resolve_{view}()", "tensor.copy_(copy)")
            return f"it is a view of other values than lie in memory (is_{view}); {remedy}"
    return ""


def _of_torch(array: Any, what: str, writable: bool) -> Tensor:
    refuse_unplain(array, what, writable)
    if array.device.type != "cpu":
        raise wrong(what, f"it lies on {array.device}, of which nothing can be copied; move it to the CPU first")
    if not array.is_contiguous():
        raise wrong(what, f"it is not contiguous; {_remedy(writable, 'tensor.contiguous()', 'tensor.copy_(copy)')}")
    # `parameter.data = x` and `set_` give a tensor other memory: what keeps the old one is the storage.
    owner = (array, array.untyped_storage())
    return Tensor(array.data_ptr(), array.numel(), type_of(array.dtype, what), owner)


def _remedy(writable: bool, copy: str, back: str) -> str:
    """What to do about a tensor that must be copied: where a result is written it would be lost with the copy."""
    return f"pass copy = {copy}, and afterwards {back}: the result is in the copy" if writable else f"pass {copy}"


def _not_contiguous(writable: bool) -> str:
    return "it is not contiguous; pass a contiguous copy" + (
        ", and afterwards copy the result back" if writable else ""
    )


def _of_numpy(array: Any, what: str, writable: bool, because: str) -> Tensor:
    if hasattr(array, "mask") and hasattr(array, "filled"):
        raise wrong(what, "it is a masked array, whose mask would be ignored; pass array.filled(...) or array.data")
    if not array.flags.c_contiguous:
        copy = _remedy(writable, "numpy.ascontiguousarray(array)", "array[...] = copy")
        raise wrong(what, f"it is not contiguous; {copy}")
    if writable and not array.flags.writeable:
        raise _read_only(what + because, type(array).__name__)
    if not array.dtype.isnative:
        raise wrong(what, f"its byte order is not this machine's ({array.dtype}); convert it with astype")
    return Tensor(array.__array_interface__["data"][0], array.size, type_of(array.dtype, what), array)


def _of_dlpack(array: Any, what: str, writable: bool, because: str) -> Tensor:
    try:
        memory = lent(array)
    except NotLent as error:
        raise wrong(what, str(error)) from error
    if not memory.contiguous:
        raise wrong(what, _not_contiguous(writable))
    if writable and not memory.writable:
        raise _read_only(what + because, type(array).__name__)
    return Tensor(memory.address, memory.count, _dtype(memory.element, what), (array, memory.capsule))


def _of_buffer(array: Any, what: str, writable: bool, because: str) -> Tensor:
    try:
        view = memoryview(array)
    except TypeError:
        raise wrong(
            what,
            f"it must be a tensor, got a {type(array).__name__}; pass a numpy array, a torch tensor, or anything with "
            "__dlpack__ or a buffer",
        ) from None
    if not view.c_contiguous:
        raise wrong(what, _not_contiguous(writable))
    if writable and view.readonly:
        raise _read_only(what + because, type(array).__name__)
    kind = _FORMATS.get(view.format.lstrip("@=<"))
    name = view.format if kind is None else f"{kind}{8 * view.itemsize}"
    return Tensor(_address(view), view.nbytes // view.itemsize, _dtype(name, what), view)


class _PyBuffer(ctypes.Structure):
    """The first fields of CPython's `Py_buffer`, and room for the rest."""

    _fields_ = (("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("rest", ctypes.c_byte * 128))


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = (ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = (ctypes.POINTER(_PyBuffer),)
_release_buffer.restype = None


def _address(view: memoryview) -> int:
    """Where a buffer lies. The view keeps it there; a `from_buffer` of ctypes would refuse what is read-only."""
    buffer = _PyBuffer()
    _get_buffer(view, ctypes.byref(buffer), 0)
    address = buffer.buf or 0
    _release_buffer(ctypes.byref(buffer))
    return int(address)


_ELEMENTS: dict[Any, DataType] = {}
"""By the type that numpy or torch has for it: asking one of these for its name takes longer than all else."""


def type_of(dtype: Any, what: str) -> DataType:
    """The type of elements that numpy or torch means by this."""
    found = _ELEMENTS.get(dtype)
    if found is None:
        name = dtype.name if hasattr(dtype, "name") else str(dtype).removeprefix("torch.")
        found = _ELEMENTS[dtype] = _dtype(name, what)
    return found


def _dtype(name: str, what: str) -> DataType:
    try:
        return DataType.from_element_name(name)
    except ValueError as error:
        raise wrong(what, str(error)) from None


def buffers(send: Any, recv: Any, call: str = "all_reduce") -> Buffers:
    """Both sides of a collective, checked against each other. In place, `send` and `recv` are the same object."""
    if recv is send:
        both = tensor(send, f"{call}: send", writable=True, because=", which is written because there is no recv")
        return Buffers(both, both)
    source, target = tensor(send, f"{call}: send", writable=False), tensor(recv, f"{call}: recv", writable=True)
    fit_together(source, target, call)
    return Buffers(source, target)


class Described(Protocol):
    """What is known of a tensor, wherever it lies."""

    @property
    def count(self) -> int: ...
    @property
    def dtype(self) -> DataType: ...
    @property
    def extent(self) -> Extent: ...


def fit_together(source: Described, target: Described, call: str) -> None:
    """Refuse two sides of a collective that differ, or of which one would overwrite the other."""
    if (source.count, source.dtype) != (target.count, target.dtype):
        sides = [f"{side.count} x {side.dtype.name}" for side in (source, target)]
        raise wrong(call, f"send holds {sides[0]}, recv {sides[1]}; make them alike")
    if source.extent.begin != target.extent.begin and source.extent.meets(target.extent):
        raise wrong(call, "send and recv overlap; pass the same tensor or two apart")


def apart(tensors: Sequence[Described], what: str) -> None:
    """Refuse tensors that share memory: which of two results should it hold?"""
    extents = [each.extent for each in tensors]
    order = sorted((place for place, each in enumerate(extents) if each.end), key=extents.__getitem__)
    for one, other in pairwise(order):
        if extents[one].meets(extents[other]):
            first, second = sorted((one, other))
            raise wrong(what, f"number {second} shares memory with number {first}; pass each tensor once")


def _read_only(what: str, kind: str) -> UsageError:
    return wrong(what, f"this {kind} is read-only; pass something writable, such as a copy")


def wrong(what: str, why: str) -> UsageError:
    """An argument that is refused, and why."""
    return UsageError(f"{what}: {why}", Result.INVALID_ARGUMENT)
