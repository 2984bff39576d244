"""Memory for copies, kept from call to call. Must not know what is copied."""

import threading

from pccl.dataplane.tensors.buffers import Tensor, fresh
from pccl.types import DataType

HUGE_PAGE_BYTES = 2 * 1024 * 1024
"""Stretches are whole pages of this length, which cost a five-hundredth of the faults of small ones."""

KEPT_MAX = 4
"""Stretches that are kept for the next call: input and result of two types of elements, or of two calls at a time."""


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
