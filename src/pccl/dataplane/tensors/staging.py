"""Many tensors as one stretch of memory for each type of element, and back.

Owns the memory, which is kept from call to call, and the layout. The input is gathered in one stretch and the result
arrives in another: the tensors themselves are not touched before `deliver`. Must not know peers, lanes or retries.
"""

import ctypes
import hashlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from pccl.dataplane.tensors.buffers import Buffers, Tensor, apart, fresh, tensor
from pccl.dataplane.tensors.device import copy_back, host_copy, on_device
from pccl.types import DataType

HUGE_PAGE_BYTES = 2 * 1024 * 1024
"""Stretches are whole pages of this length, which cost a five-hundredth of the faults of small ones."""

KEPT_MAX = 4
"""Stretches that are kept for the next call: input and result of two types of elements, or of two calls at a time."""

QUICK_BYTES = 256 * 1024
"""To copy so much takes some ten microseconds, less than to wake a thread for it."""


class Pool:
    """Stretches that are not in use. Used by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Tensor] = []

    def take(self, nbytes: int) -> Tensor:
        """The smallest kept stretch that is long enough, else a new one."""
        with self._lock:
            fitting = [stretch for stretch in self._free if stretch.nbytes >= nbytes]
            if fitting:
                found = min(fitting, key=lambda stretch: stretch.nbytes)
                self._free.remove(found)
                return found
        return fresh(max(1, -(-nbytes // HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES, DataType.UINT8)

    def give(self, stretch: Tensor) -> None:
        """Keep it for the next call; the smallest goes when there are too many."""
        with self._lock:
            self._free.append(stretch)
            if len(self._free) > KEPT_MAX:
                self._free.remove(min(self._free, key=lambda each: each.nbytes))


class Share(Struct, frozen=True):
    """All tensors with one type of element, as one collective."""

    dtype: DataType
    layout: str
    """A digest of the tensors' lengths in their order, so that peers notice when theirs differ."""
    buffers: Buffers


class _Place(Struct, frozen=True):
    """Where one tensor's elements lie: at home, and in the stretch of results."""

    home: int
    result: int
    nbytes: int


class Gathered:
    """Tensors whose elements were gathered, until the result is delivered or given up."""

    def __init__(self, arrays: Sequence[Any], what: str, pool: Pool) -> None:
        self._pool = pool
        self._stretches: list[Tensor] = []
        self._places: list[_Place] = []
        self._tensors, self._copies_back = _on_host(arrays, what)
        """Kept, and with them their memory."""
        apart(self._tensors, what)
        by_type: dict[DataType, list[Tensor]] = {}
        for each in self._tensors:
            by_type.setdefault(each.dtype, []).append(each)
        self.shares = [self._gather(dtype, by_type[dtype]) for dtype in sorted(by_type)]

    @property
    def quick(self) -> bool:
        """`deliver` takes no time to speak of."""
        return not self._copies_back and sum(each.nbytes for each in self._tensors) <= QUICK_BYTES

    def _gather(self, dtype: DataType, tensors: list[Tensor]) -> Share:
        nbytes = sum(each.nbytes for each in tensors)
        source, target = self._pool.take(nbytes), self._pool.take(nbytes)
        self._stretches += (source, target)
        offset = 0
        for each in tensors:
            ctypes.memmove(source.address + offset, each.address, each.nbytes)
            self._places.append(_Place(each.address, target.address + offset, each.nbytes))
            offset += each.nbytes
        count = nbytes // dtype.itemsize
        send, recv = (Tensor(stretch.address, count, dtype, stretch) for stretch in (source, target))
        return Share(dtype, _layout([each.count for each in tensors]), Buffers(send, recv))

    def deliver(self) -> None:
        """The result stands: into the tensors with it."""
        for place in self._places:
            ctypes.memmove(place.home, place.result, place.nbytes)
        for copy in self._copies_back:
            copy()

    def release(self) -> None:
        """The memory is for the next call now; nothing may run on it any more."""
        while self._stretches:
            self._pool.give(self._stretches.pop())


def _on_host(arrays: Sequence[Any], what: str) -> tuple[list[Tensor], list[Callable[[], object]]]:
    """The tensors, those of devices as copies on the CPU, and how each copy gets back."""
    tensors: list[Tensor] = []
    copies_back: list[Callable[[], object]] = []
    for number, array in enumerate(arrays):
        host, named = array, f"{what}[{number}]"
        if on_device(array):
            host = host_copy(array, named)
            copies_back.append(partial(copy_back, array, host))
        tensors.append(tensor(host, named, writable=True))
    return tensors, copies_back


def _layout(counts: list[int]) -> str:
    return hashlib.blake2b(",".join(map(str, counts)).encode(), digest_size=8).hexdigest()
