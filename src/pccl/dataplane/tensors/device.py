"""Tensors of devices (CUDA and the like): reduced in a copy on the CPU, which is copied back when the result stands.

Owns what is known of such a tensor without touching it, and which copies a collective needs; how they are made is up to
the mover. Recognises torch's tensors by what they can do, and imports nothing. Tested on a device of our own
(tests/device), which has memory that the host cannot touch and streams; never yet on a real one.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from pccl.dataplane.tensors.buffers import (
    Buffers,
    Extent,
    Tensor,
    buffers,
    fit_together,
    refuse_unplain,
    tensor,
    type_of,
    wrong,
)
from pccl.dataplane.tensors.mover import Portion, mover_of, portions_of
from pccl.dataplane.tensors.pool import Pool
from pccl.types import DataType


class Remote(Struct, frozen=True):
    """A tensor of a device, described; nothing of it was copied."""

    array: Any
    count: int
    dtype: DataType
    extent: Extent

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return self.count * self.dtype.itemsize

    @property
    def owner(self) -> Any:
        """What keeps its memory."""
        return self.array

    def part(self, begin: int, length: int) -> memoryview:
        """A copy of some of its bytes, as they are on the device now."""
        copy = memoryview(bytearray(length))

        def take(number: int, content: memoryview) -> None:
            ctypes.memmove(_address(copy), _address(content), length)

        if length:
            mover_of(self.array.device).read([Portion(self.array, begin, length)], None, take)
        return copy

    def put(self, begin: int, content: memoryview) -> None:
        """Replace some of its bytes; nothing that is queued on the device may work on them."""

        def give(number: int, room: memoryview) -> None:
            ctypes.memmove(_address(room), _address(content), len(content))

        if content:
            mover_of(self.array.device).write([Portion(self.array, begin, len(content))], None, give)


def remote(array: Any, what: str, *, written: bool, as_bytes: bool = False) -> Remote:
    """A tensor of a device, provided that a collective can work on it; `what` names it in errors. `as_bytes`: whatever
    its elements are, as in a shared state."""
    refuse_unplain(array, what, written)
    if written and _overlaps_itself(array):
        raise wrong(
            what,
            "elements of it share memory (an expanded view); pass copy = tensor.contiguous(), and use that afterwards",
        )
    count = array.numel()
    dtype, length = (DataType.UINT8, count * array.element_size()) if as_bytes else (type_of(array.dtype, what), count)
    return Remote(array, length, dtype, _extent(array))


def _overlaps_itself(array: Any) -> bool:
    """An element lies where another one does, or might."""
    reach = 0
    for stride, size in sorted(zip(array.stride(), array.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def _extent(array: Any) -> Extent:
    """From its first byte to its last. On Apple's devices an address is a name of a buffer, in which offsets count."""
    if not array.numel():
        return Extent("", 0, 0)
    begin, space = array.data_ptr(), str(array.device)
    if array.device.type == "mps":
        space += f" {array.untyped_storage().data_ptr()}"
    last = sum(stride * (size - 1) for stride, size in zip(array.stride(), array.shape, strict=True))
    return Extent(space, begin, begin + (last + 1) * array.element_size())


def on_device(array: Any) -> bool:
    """A tensor that can be copied to and from the CPU, and must be."""
    kind = getattr(getattr(array, "device", None), "type", "cpu")
    # A meta tensor has no elements to copy, and a DTensor is refused by name, wherever it lies.
    return kind not in ("cpu", "meta") and hasattr(array, "copy_") and not hasattr(array, "to_local")


def read_all(tensors: list[tuple[Remote, Callable[[memoryview], object]]], length: int) -> None:
    """Call each function with the content of its tensor, in portions of this length, as the streams of this thread
    leave it."""
    by_device: dict[Any, list[tuple[Portion, Callable[[memoryview], object]]]] = {}
    for there, take in tensors:
        for portion in portions_of(there.array, there.nbytes, length):
            by_device.setdefault(there.array.device, []).append((portion, take))
    for device, taken in by_device.items():
        mover = mover_of(device)

        def hand(number: int, content: memoryview, taken: list[Any] = taken) -> None:
            taken[number][1](content)

        mover.read([portion for portion, _ in taken], mover.mark(), hand)


class Copies:
    """Tensors of devices, each with a place for its elements on the host. Made in the caller's thread: what its streams
    have queued then comes before any copy."""

    def __init__(self, places: list[tuple[Remote, int]]) -> None:
        self._by_device: dict[Any, list[tuple[Remote, int]]] = {}
        for there, address in places:
            if there.nbytes:
                self._by_device.setdefault(there.array.device, []).append((there, address))
        self._after = {device: mover_of(device).mark() for device in self._by_device}

    def __bool__(self) -> bool:
        return bool(self._by_device)

    def out(self) -> None:
        """From the devices to the host."""
        for device, places in self._by_device.items():
            portions, addresses = _portions(places)

            def take(number: int, content: memoryview, addresses: list[int] = addresses) -> None:
                ctypes.memmove(addresses[number], _address(content), len(content))

            mover_of(device).read(portions, self._after[device], take)

    def back(self) -> None:
        """From the host to the devices."""
        for device, places in self._by_device.items():
            portions, addresses = _portions(places)

            def give(number: int, room: memoryview, addresses: list[int] = addresses) -> None:
                ctypes.memmove(_address(room), addresses[number], len(room))

            mover_of(device).write(portions, self._after[device], give)


def _portions(places: list[tuple[Remote, int]]) -> tuple[list[Portion], list[int]]:
    """All of these, and where on the host each portion lies."""
    portions: list[Portion] = []
    addresses: list[int] = []
    for there, address in places:
        for portion in portions_of(there.array, there.nbytes):
            portions.append(portion)
            addresses.append(address + portion.begin)
    return portions, addresses


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_uint8.from_buffer(view))


class Operands(Struct, frozen=True):
    """What a collective works on, and what is to be done before its vote and once its result stands."""

    buffers: Buffers
    stage: Callable[[], object] | None = None
    """Copies the input to the CPU; None when it is there already. Waits for the device."""
    deliver: Callable[[], object] | None = None
    """Copies the result from the CPU to where it belongs; None when it is there already."""
    release: Callable[[], object] | None = None
    """Gives the memory of the copies back."""


def operands(send: Any, recv: Any, call: str, pool: Pool) -> Operands:
    """Both sides of a collective, wherever they lie. In place, `send` and `recv` are the same object."""
    if not on_device(send) and not on_device(recv):
        return Operands(buffers(send, recv, call))
    source, target = described_sides(send, recv, call)
    stretch = pool.take(source.nbytes)
    # One copy serves both: the tensors themselves are untouched until the result stands.
    host = Tensor(stretch.address, source.count, source.dtype, stretch)
    reads = (source.extent,) if isinstance(source, Remote) else ()
    writes = (target.extent,) if isinstance(target, Remote) else ()
    both = Buffers(
        host if isinstance(source, Remote) else source,
        host if isinstance(target, Remote) else target,
        reads=reads,
        writes=writes,
    )
    inputs = Copies([(source, host.address)] if isinstance(source, Remote) else [])
    outputs = Copies([(target, host.address)] if isinstance(target, Remote) else [])
    stage, deliver = inputs.out if inputs else None, outputs.back if outputs else None
    return Operands(both, stage, deliver, lambda: pool.give(stretch))


def described_sides(send: Any, recv: Any, call: str) -> tuple[Tensor | Remote, Tensor | Remote]:
    """Both sides of a collective, checked against each other; nothing is copied."""
    if not on_device(send) and not on_device(recv):
        both = buffers(send, recv, call)
        return both.send, both.output
    source = _side(send, f"{call}: send", written=recv is send)
    target = source if recv is send else _side(recv, f"{call}: recv", written=True)
    fit_together(source, target, call)
    return source, target


def contribution(array: Any, call: str, pool: Pool) -> Operands:
    """What is only read, and whose result gets room of its own on the CPU."""
    what = f"{call}: tensor"
    source = _side(array, what, written=False)
    if not isinstance(source, Remote):
        return Operands(Buffers(source, None))
    stretch = pool.take(source.nbytes)
    host = Tensor(stretch.address, source.count, source.dtype, stretch)
    inputs = Copies([(source, host.address)])
    stage = inputs.out if inputs else None
    return Operands(Buffers(host, None, reads=(source.extent,)), stage, None, lambda: pool.give(stretch))


def _side(array: Any, what: str, *, written: bool) -> Tensor | Remote:
    return remote(array, what, written=written) if on_device(array) else tensor(array, what, writable=written)
