"""Bytes between a device and the host: one mover for each device, with a stream and two slots of its own.

Owns the order of these copies. Host and device go on by themselves, so three things must be waited for: what the
caller's stream had queued when it handed a tensor over (`mark`), a slot's copy before the slot is read, and a slot's
copy before the slot is filled again. The caller's stream is waited for by the host, before the mover is taken: while
the tensors of one call are not ready, those of another are moved. Uses nothing of torch but streams, events and
`copy_`, so that the same code serves every kind of device. Must not know collectives, or what the bytes are.
"""

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

SLOT_BYTES = 64 << 20
"""The most that a slot holds. A power of two, since torch rounds pinned memory up to one and keeps it; large enough
that the wait for a copy, some 10 us, is nothing beside its 5 ms."""

SLOT_BYTES_MIN = 1 << 20
"""Slots grow with what is moved: who reduces a few numbers pins no more than this."""

PORTION_BYTES = 4 << 20
"""A long tensor is moved in portions of this length, so that any two slots hold what fits."""

NEVER_PINNED = ("mps",)
"""Kinds of devices that share the host's memory and gain nothing by pinning; some versions of torch take what was
pinned for a tensor of the device there (pytorch#181374), or use it again too early (pytorch#193819)."""


class Portion(NamedTuple):
    """Some bytes of a tensor of this device."""

    array: Any
    begin: int
    length: int


def portions_of(array: Any, nbytes: int, length: int = PORTION_BYTES) -> Iterator[Portion]:
    """All of a tensor, in portions of this length."""
    for begin in range(0, nbytes, length):
        yield Portion(array, begin, min(length, nbytes - begin))


class _Placed(NamedTuple):
    """A portion in a slot."""

    number: int
    """Among all of the call."""
    portion: Portion
    offset: int


class _Slot:
    """Memory of the host that copies go through, and the event of the latest of them."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._pins = device.type not in NEVER_PINNED
        self.event = torch.Event(device)
        self.host: Any = None
        self.pinned = False

    @property
    def nbytes(self) -> int:
        return 0 if self.host is None else int(self.host.numel())

    def reserve(self, nbytes: int) -> None:
        """Make it at least as long as this."""
        if self.nbytes >= nbytes:
            return
        self.host = None  # before there is another
        wanted = 1 << (min(SLOT_BYTES, max(SLOT_BYTES_MIN, nbytes)) - 1).bit_length()
        empty = partial(self._torch.empty, wanted, dtype=self._torch.uint8, device="cpu")
        if self._pins:
            with contextlib.suppress(RuntimeError):  # the device has no such memory, or no more of it
                self.host = empty(pin_memory=True)
        self.pinned = self.host is not None and self.host.device.type == "cpu"
        if not self.pinned:
            self.host = empty()

    def view(self, placed: _Placed) -> memoryview:
        """Where a portion lies in it."""
        address = self.host.data_ptr() + placed.offset
        return memoryview((ctypes.c_uint8 * placed.portion.length).from_address(address)).cast("B")


class Mover:
    """Copies between the host and one device, in any thread, for one call at a time."""

    def __init__(self, device: Any) -> None:
        self._torch = torch = sys.modules["torch"]  # a tensor of a device is torch's
        self._device = device
        self._stream = torch.Stream(device)
        self._slots = (_Slot(torch, device), _Slot(torch, device))
        self._taken = threading.Lock()

    def mark(self) -> Any:
        """An event behind all that the current stream of this thread has queued."""
        event = self._torch.Event(self._device)
        event.record(self._torch.accelerator.current_stream(self._device))
        return event

    def read(self, portions: Sequence[Portion], after: Any, take: Callable[[int, memoryview], object]) -> None:
        """Call `take` with the number and the content of each portion, in order; the content is there only during the
        call. `after` is a mark, or None if nothing is queued that writes to them."""
        self._await_caller(after)
        with self._taken, self._quiet_after_failure():
            flat = self._flat(portions)
            before: tuple[_Slot, list[_Placed]] | None = None
            for slot, batch in zip(cycle(self._slots), _batches(portions, self._limit(portions)), strict=False):
                slot.reserve(_end(batch))
                with self._stream:
                    for placed in batch:
                        self._copy(slot, placed, flat, out=True)
                slot.event.record(self._stream)
                if before is not None:
                    self._hand_out(*before, take)
                before = slot, batch
            if before is not None:
                self._hand_out(*before, take)

    def write(self, portions: Sequence[Portion], after: Any, give: Callable[[int, memoryview], object]) -> None:
        """Call `give` with the number of each portion and the room for its content, in order. Returns when all of it is
        on the device, for every stream. `after` is as in `read`."""
        self._await_caller(after)
        with self._taken, self._quiet_after_failure():
            flat, slot = self._flat(portions), self._slots[0]
            for turn, batch in enumerate(_batches(portions, self._limit(portions))):
                slot = self._slots[turn % 2]
                if turn > 1:
                    self._await_free(slot)
                slot.reserve(_end(batch))
                for placed in batch:
                    give(placed.number, slot.view(placed))
                with self._stream:
                    for placed in batch:
                        self._copy(slot, placed, flat, out=False)
                slot.event.record(self._stream)
            self._spread(portions, flat)
            slot.event.record(self._stream)
            self._await_done(slot)

    # ── what is waited for: without any one of these, values are wrong ───────────────────────────────────────────────

    def _await_caller(self, after: Any) -> None:
        if after is not None and not after.query():
            after.synchronize()

    def _await_filled(self, slot: _Slot) -> None:
        slot.event.synchronize()

    def _await_free(self, slot: _Slot) -> None:
        slot.event.synchronize()

    def _await_done(self, slot: _Slot) -> None:
        slot.event.synchronize()

    @contextlib.contextmanager
    def _quiet_after_failure(self) -> Iterator[None]:
        """Copies that were queued before the failure still use the slots."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(RuntimeError):
                self._stream.synchronize()
            raise

    # ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _limit(self, portions: Sequence[Portion]) -> int:
        """What a slot is filled with: no more than there is."""
        return min(SLOT_BYTES, sum(portion.length for portion in portions))

    def _flat(self, portions: Sequence[Portion]) -> dict[int, Any]:
        """The tensors of these as bytes. One whose elements do not lie side by side is gathered on the device first."""
        arrays = {id(portion.array): portion.array for portion in portions}
        with self._stream:
            # Detached: threads of ours are not in the caller's mode, and a copy is none of autograd's business.
            flat = {key: array.detach().contiguous().reshape(-1) for key, array in arrays.items()}
        return {key: array.view(self._torch.uint8) for key, array in flat.items()}

    def _spread(self, portions: Sequence[Portion], flat: dict[int, Any]) -> None:
        """Where elements do not lie side by side they go from what was gathered to their places."""
        scattered = {id(portion.array): portion.array for portion in portions if not portion.array.is_contiguous()}
        with self._stream:
            for key, array in scattered.items():
                array.detach().copy_(flat[key].view(array.dtype).view(array.shape))

    def _copy(self, slot: _Slot, placed: _Placed, flat: dict[int, Any], *, out: bool) -> None:
        portion = placed.portion
        there = flat[id(portion.array)][portion.begin : portion.begin + portion.length].detach()
        here = slot.host[placed.offset : placed.offset + portion.length]
        target, source = (here, there) if out else (there, here)
        target.copy_(source, non_blocking=slot.pinned)

    def _hand_out(self, slot: _Slot, batch: list[_Placed], take: Callable[[int, memoryview], object]) -> None:
        self._await_filled(slot)
        for placed in batch:
            take(placed.number, slot.view(placed))


def _batches(portions: Sequence[Portion], limit: int) -> Iterator[list[_Placed]]:
    """As many portions at a time as a slot holds."""
    batch: list[_Placed] = []
    for number, portion in enumerate(portions):
        if batch and _end(batch) + portion.length > limit:
            yield batch
            batch = []
        batch.append(_Placed(number, portion, _end(batch)))
    if batch:
        yield batch


def _end(batch: list[_Placed]) -> int:
    return batch[-1].offset + batch[-1].portion.length if batch else 0


_movers: dict[Any, Mover] = {}
_making = threading.Lock()


def mover_of(device: Any) -> Mover:
    """The mover of a tensor's device."""
    with _making:
        if device not in _movers:
            _movers[device] = Mover(device)
        return _movers[device]
