"""Results whose length depends on who is there: of all-gather and reduce-scatter.

Owns the memory of such a result as the kind of tensor that its user passed. Imports numpy or torch only where the user
has done so. Must not know how a collective comes to its end.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from pccl.dataplane.buffers import Tensor
from pccl.dataplane.segments import chunk
from pccl.errors import UsageError
from pccl.transaction import Transaction
from pccl.types import CollectiveKind, PeerId, ReduceInfo
from pccl.work import Work


class Shares(NamedTuple):
    """What an all-gather or a reduce-scatter gives."""

    output: Any
    """Of the library of the input: numpy, torch, or a memoryview for anything else. After an all-gather it has one
    dimension more, in which entry k is what `info.peers[k]` brought. After a reduce-scatter it is flat: the elements of
    `span` of the reduced tensor."""
    span: range
    """Which elements of the whole these are, the whole being flat."""
    info: ReduceInfo


class ShareWork(Work):
    """A launched all-gather or reduce-scatter: a `Work`, and `shares` is its result."""

    def __init__(self, transaction: Transaction, communicator: object, given: Any, me: PeerId) -> None:
        super().__init__(transaction, communicator)
        self._given = given
        self._me = me

    def shares(self, timeout: float | None = None) -> Shares:
        """Wait for the end, like `wait`, and give the result."""
        info = self.wait(timeout)
        (part,) = self._transaction.order.parts
        assert part.output is not None, "it was committed"
        size, spec = len(info.peers), part.spec
        if spec.kind is CollectiveKind.ALL_GATHER:
            shape = (size, *getattr(self._given, "shape", (spec.count,)))
            return Shares(_like(self._given, part.output, shape), range(size * spec.count), info)
        span = chunk(spec.count, size, info.peers.index(self._me))
        return Shares(_like(self._given, part.output, (len(span),)), span, info)


def _like(given: Any, result: Tensor, shape: Sequence[int]) -> Any:
    """The result as a tensor of the same library as what was given."""
    name = result.dtype.element_name
    if hasattr(given, "data_ptr"):
        torch = importlib.import_module("torch")
        flat = torch.frombuffer(result.owner, dtype=getattr(torch, name), count=result.count) if result.count else None
        return torch.empty(shape, dtype=getattr(torch, name)) if flat is None else flat.reshape(shape)
    if hasattr(given, "__array_interface__"):
        numpy = importlib.import_module("numpy")
        return numpy.frombuffer(result.owner, given.dtype, result.count).reshape(shape)
    return memoryview(result.owner)[: result.nbytes]


def root_of(root: PeerId | str | int, ring: Sequence[PeerId]) -> str:
    """The peer that is meant: by its id, or by its place in the present ring."""
    if isinstance(root, str):
        return root
    if not 0 <= root < len(ring):
        raise UsageError(f"broadcast: root: no rank {root} among {len(ring)} peers; pass a rank or a peer's id")
    return ring[root]
