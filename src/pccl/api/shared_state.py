"""What peers keep equal: named tensors and a revision.

Owns PCCL's `SharedState` and `TensorInfo`. Imports neither numpy nor torch. Must not know elections, lanes or digests.
"""

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from pccl.arguments import choice, of_kind
from pccl.dataplane.state.digests import Progress
from pccl.dataplane.state.manifest import Entry, Holding, Manifest, shown_element, take_manifest
from pccl.dataplane.tensors.buffers import Tensor
from pccl.dataplane.tensors.device import Remote
from pccl.dataplane.tensors.elements import Element, state_tensor
from pccl.errors import UsageError
from pccl.types import DataType, DeviceType, Result, SharedStateSyncStrategy

LONG_BYTES = 4 << 30
"""A state of this length takes about half a second to hash: long enough for a person to wonder."""


class SharedStateSyncInfo(NamedTuple):
    """Bytes of content that a sync moved; both 0 for a peer that was in step and served no other peer."""

    tx_bytes: int
    rx_bytes: int


class TensorInfo:
    """One entry of a shared state: a name, and memory that is looked at whenever the state is synced.

    With `allow_content_inequality` its content may differ from peer to peer: it is not compared, but a newcomer gets
    that of another peer."""

    def __init__(
        self,
        name: str,
        data_ptr: int,
        *,
        numel: int,
        dtype: DataType,
        device_type: DeviceType = DeviceType.CPU,
        allow_content_inequality: bool = False,
    ) -> None:
        of_kind(str, name, "TensorInfo: name")
        if of_kind(int, numel, f"TensorInfo {name!r}: numel") < 0:
            raise UsageError(f"TensorInfo {name!r}: numel must be 0 or more, got {numel}", Result.INVALID_ARGUMENT)
        if not of_kind(int, data_ptr, f"TensorInfo {name!r}: data_ptr") and numel:
            raise ValueError(f"TensorInfo {name!r}: data_ptr is null")
        if device_type != DeviceType.CPU:
            raise UsageError(
                f"TensorInfo {name!r}: memory of a device is reached only through its tensor: use from_torch",
                Result.INVALID_ARGUMENT,
            )
        self.name = name
        self.numel = numel
        known = choice(DataType, dtype, f"TensorInfo {name!r}: dtype")
        self.dtype: Element = known
        """The name of one that cannot be reduced, such as `bool`."""
        self.device_type: DeviceType = device_type
        self.allow_content_inequality = allow_content_inequality
        self._array: Any = Tensor(data_ptr, numel, known, None)
        """What it was made from, or what has taken its place in the model."""
        self._of_module = False
        """It is looked up in a model at every sync."""

    @classmethod
    def from_torch(cls, tensor: Any, name: str, *, allow_content_inequality: bool = False) -> Self:
        """A torch tensor or parameter with elements of any type, on any device; on the CPU it must be contiguous."""
        return cls._of(tensor, name, allow_content_inequality)

    @classmethod
    def from_numpy(cls, tensor: Any, name: str, *, allow_content_inequality: bool = False) -> Self:
        """A numpy array, contiguous and writable, or anything with `__dlpack__` or a buffer."""
        return cls._of(tensor, name, allow_content_inequality)

    @classmethod
    def _of(cls, array: Any, name: str, free: bool) -> Self:
        of_kind(str, name, "TensorInfo: name")
        element, given = state_tensor(array, f"TensorInfo {name!r}")
        info = cls(name, 0, numel=0, dtype=DataType.UINT8, allow_content_inequality=free)
        info.numel, info.dtype, info._array = _numel(array, element, given), element, array
        info.device_type = DeviceType.CUDA if isinstance(given, Remote) else DeviceType.CPU
        return info

    def _entry(self) -> Entry:
        """As the data plane sees it, where it lies now: `parameter.data = x` puts a tensor elsewhere."""
        element, given = state_tensor(self._array, f"TensorInfo {self.name!r}")
        numel = _numel(self._array, element, given)
        if (numel, element) != (self.numel, self.dtype):
            raise UsageError(
                f"TensorInfo {self.name!r} was made of {self.numel} x {shown_element(self.dtype)}, and its tensor "
                f"holds {numel} x {shown_element(element)} now; make a new SharedState",
                Result.INVALID_ARGUMENT,
            )
        self.device_type = DeviceType.CUDA if isinstance(given, Remote) else DeviceType.CPU
        return Entry(self.name, element, given.count, self.allow_content_inequality, given)


def _numel(array: Any, element: Element, given: Tensor | Remote) -> int:
    """Elements, also of what is moved as bytes; those are tensors of torch or arrays of numpy."""
    if isinstance(element, DataType):
        return given.count
    return int(array.numel() if hasattr(array, "numel") else array.size)


class SharedState:
    """Named tensors that all peers of a group hold alike, and the number of their version.

    `revision` starts at 0 and is yours to raise, by one for every step after which you sync. A sync sets it to the
    revision that was elected."""

    def __init__(self, tensors: Sequence[TensorInfo]) -> None:
        remedy = "make each by TensorInfo.from_torch(tensor, name) or from_numpy"
        self.tensors = [of_kind(TensorInfo, each, "SharedState: each of tensors", remedy) for each in tensors]
        self._revision = 0
        self._torn = False
        self._kept: Holding | None = None
        """What was found in step by the last sync, for visitors."""
        self._look: Callable[[], Sequence[tuple[str, Any]]] = list
        """What a model and its optimizer hold at this moment, by name; nothing without one."""
        if not self.tensors:
            raise UsageError("SharedState: there is nothing to share; pass at least one TensorInfo")

    @classmethod
    def from_module(cls, module: Any, optimizer: Any = None) -> Self:
        """All parameters, buffers and optimizer state of a torch model, by name.

        Each sync looks them up again: a model that was moved, converted or loaded since is synced as it is then; if
        that changed a name, a type or a length, the sync raises and names the entry. Optimizers make their state in
        their first step; it is made here, so that a newcomer has the entries that the others have. Whatever is no
        tensor, such as a learning rate, is not part of it."""
        from pccl.training.state import Following

        following = Following(module, optimizer)
        state = cls([TensorInfo.from_torch(each, name) for name, each in following.look()])
        state._look = following.look
        for info in state.tensors:
            info._of_module = True
        return state

    @property
    def revision(self) -> int:
        """The version of the content."""
        return self._revision

    @revision.setter
    def revision(self, revision: int) -> None:
        if not isinstance(revision, int) or not 0 <= revision < 2**63:
            raise UsageError(f"revision must be an integer from 0 on, got {revision!r}", Result.INVALID_ARGUMENT)
        self._revision = revision
        self._torn = False

    @property
    def torn(self) -> bool:
        """A sync failed while it replaced contents, or a prefetch has replaced some: this is a mixture of two states,
        and of no use. Until the next sync succeeds it is offered to no other peer; set `revision` to say that the
        content is right after all."""
        return self._torn

    def strategy(self, wanted: SharedStateSyncStrategy) -> SharedStateSyncStrategy:
        """How it is synced: what is torn can only be replaced, and `torn` goes along to say so."""
        if self._torn and wanted is SharedStateSyncStrategy.SEND_ONLY:
            raise UsageError(
                "sync_shared_state: a failed sync or a prefetch left a mixture of two states here, which must not be "
                "sent to others; load the state again and set its revision, or let this peer receive"
            )
        return wanted

    def interrupted(self, pulled: bool) -> None:
        """A sync ended without saying what is held now."""
        self._torn = self._torn or pulled

    def push_revision(self) -> None:
        """The next one."""
        self._revision += 1

    def entries(self) -> list[Entry]:
        """As the data plane sees them, with their present content."""
        self._follow()
        return [each._entry() for each in self.tensors]

    def _follow(self) -> None:
        """The tensors of a model are those that it has now."""
        now, infos = dict(self._look()), {info.name: info for info in self.tensors if info._of_module}
        for name in [*(name for name in infos if name not in now), *(name for name in now if name not in infos)]:
            change = "is not there any more" if name in infos else "was not there before"
            raise UsageError(
                f"SharedState: {name!r} {change}: the model has other tensors than from_module found, or its optimizer "
                "holds parameters that are no longer the model's; build the optimizer after the model was moved or "
                "loaded with assign=True, and make a new SharedState",
                Result.INVALID_ARGUMENT,
            )
        for name, info in infos.items():
            info._array = now[name]


def keep(state: SharedState, holding: Holding) -> Callable[[], Holding | None]:
    """Let visitors have this until the next sync, or until the state is gone: it alone keeps the memory."""
    state._kept = holding
    there = weakref.ref(state)

    def kept() -> Holding | None:
        state = there()
        return None if state is None else state._kept

    return kept


def hashed(state: SharedState) -> tuple[Manifest, list[Entry]]:
    """A state's manifest, with a bar on the terminal when that takes long, and what it was made of."""
    entries = state.entries()
    total = sum(entry.tensor.nbytes for entry in entries)
    with bar("hashing shared state", total) as progress:
        return take_manifest(entries, progress), entries


@contextmanager
def bar(what: str, total: int) -> Iterator[Progress | None]:
    """A progress bar on a terminal, where the package `rich` is; otherwise nothing. Short work gets none."""
    if total < LONG_BYTES or not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress as Bar
    except ImportError:
        yield None
        return
    with Bar(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done: shown.update(task, completed=done)
