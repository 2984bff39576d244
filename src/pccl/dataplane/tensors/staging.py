"""Many tensors as one stretch of memory for each type of element, and back.

Owns the layout. The input is gathered in one stretch and the result arrives in another: the tensors themselves are not
touched before `deliver`. Must not know peers, lanes or retries.
"""

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from pccl.dataplane.tensors.buffers import Buffers, Tensor, apart, tensor
from pccl.dataplane.tensors.device import Copies, Remote, on_device, remote
from pccl.dataplane.tensors.pool import Pool
from pccl.types import DataType

QUICK_BYTES = 256 * 1024
"""To copy so much takes some ten microseconds, less than to wake a thread for it."""


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
    """Tensors whose elements were gathered, until the result is delivered or given up. What lies on a device is
    gathered by `stage`."""

    def __init__(self, arrays: Sequence[Any], what: str, pool: Pool) -> None:
        self._pool = pool
        self._stretches: list[Tensor] = []
        self._places: list[_Place] = []
        self._inputs: list[tuple[Remote, int]] = []
        self._outputs: list[tuple[Remote, int]] = []
        self._tensors = [_described(array, f"{what}[{number}]") for number, array in enumerate(arrays)]
        """Kept, and with them their memory."""
        apart(self._tensors, what)
        by_type: dict[DataType, list[Tensor | Remote]] = {}
        for each in self._tensors:
            by_type.setdefault(each.dtype, []).append(each)
        self.shares = [self._gather(dtype, by_type[dtype]) for dtype in sorted(by_type)]
        inputs, self._copies_back = Copies(self._inputs), Copies(self._outputs)
        self.stage: Callable[[], object] | None = inputs.out if inputs else None

    @property
    def quick(self) -> bool:
        """`deliver` takes no time to speak of."""
        return not self._copies_back and sum(each.nbytes for each in self._tensors) <= QUICK_BYTES

    def _gather(self, dtype: DataType, tensors: list[Tensor | Remote]) -> Share:
        nbytes = sum(each.nbytes for each in tensors)
        source, target = self._pool.take(nbytes), self._pool.take(nbytes)
        self._stretches += (source, target)
        offset = 0
        for each in tensors:
            if isinstance(each, Remote):
                self._inputs.append((each, source.address + offset))
                self._outputs.append((each, target.address + offset))
            else:
                ctypes.memmove(source.address + offset, each.address, each.nbytes)
                self._places.append(_Place(each.address, target.address + offset, each.nbytes))
            offset += each.nbytes
        count, homes = nbytes // dtype.itemsize, tuple(each.extent for each in tensors)
        send, recv = (Tensor(stretch.address, count, dtype, stretch) for stretch in (source, target))
        return Share(dtype, _layout([each.count for each in tensors]), Buffers(send, recv, writes=homes))

    def deliver(self) -> None:
        """The result stands: into the tensors with it."""
        self._copies_back.back()
        for place in self._places:
            ctypes.memmove(place.home, place.result, place.nbytes)

    def release(self) -> None:
        """The memory is for the next call now; nothing may run on it any more."""
        while self._stretches:
            self._pool.give(self._stretches.pop())


def _described(array: Any, what: str) -> Tensor | Remote:
    return remote(array, what, written=True) if on_device(array) else tensor(array, what, writable=True)


def _layout(counts: list[int]) -> str:
    return hashlib.blake2b(",".join(map(str, counts)).encode(), digest_size=8).hexdigest()
