"""What a launched collective is to its user: something to wait for, with a result.

Owns `Work`, and `ShareWork` with `Shares` for results whose length depends on how many peers take part: their memory is
of the kind of tensor that the user passed. Imports numpy or torch only where the user has done so. Must not know how a
collective comes to its end.
"""

import importlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import wait
from datetime import timedelta
from typing import Any, NamedTuple, Self

from pccl.api.transaction import Order, Part, Transaction
from pccl.core.effects.peer_effects import Committed
from pccl.dataplane.ring.segments import chunk
from pccl.dataplane.tensors.buffers import Tensor
from pccl.dataplane.tensors.device import Copies, on_device, remote
from pccl.errors import UsageError
from pccl.types import CollectiveKind, PeerId, ReduceInfo, Result

Timeout = float | timedelta
"""Seconds, or a span of time."""


def limit_of(call: str, timeout: Timeout | None, async_op: bool) -> float | None:
    """How many seconds a call has until it must have started; None for no limit."""
    if async_op and timeout is not None:
        raise UsageError(
            f"{call}: timeout must be None with async_op, got {timeout!r}; pass it to the wait of the Work"
        )
    return seconds(call, timeout)


def seconds(call: str, timeout: Timeout | None) -> float | None:
    """The same in seconds; None for no limit. Raises `UsageError` for what is no span of time."""
    if timeout is None:
        return None
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= threading.TIMEOUT_MAX:
        raise UsageError(
            f"{call}: timeout must be seconds from 0 on or a timedelta, got {timeout!r}; pass None for no limit",
            Result.INVALID_ARGUMENT,
        )
    return given


class Work:
    """A collective that was launched. It goes on whether or not a thread waits, and keeps its tensors alive; they are
    yours again when it is done. Any thread may wait, and several may."""

    def __init__(self, transaction: Transaction, communicator: object) -> None:
        self._transaction = transaction
        self._communicator = communicator
        """Kept: a Communicator that is collected leaves the run, and this would fail."""
        self._process = os.getpid()

    def wait(self, timeout: Timeout | None = None) -> ReduceInfo:
        """Wait for the end, and return what it was or raise why there is no result.

        When `timeout` (seconds, or a `timedelta`) was not enough it raises `TimeoutError`, and the collective goes on:
        wait again."""
        timeout = seconds("wait", timeout)
        if self._process != os.getpid():
            raise UsageError("wait: this Work belongs to the process that launched it, not to its forked children")
        outcome = self._transaction.outcome
        try:
            return outcome.result(timeout)
        except TimeoutError:
            if outcome.done():
                raise
            raise TimeoutError(self._unfinished(f"is not finished after {timeout:g} s")) from None

    def within(self, timeout_s: float | None) -> Self:
        """Give it so much time to start: votes for what has not started then are taken back, so that `wait` ends soon;
        what has started is waited for, so that no tensor is written to after its call has returned."""
        if timeout_s is not None and not wait([self._transaction.outcome], timeout_s).done:
            self._transaction.expire(timeout_s)
        return self

    def done(self) -> bool:
        """It has ended, with a result or without. Never waits."""
        return self._transaction.outcome.done()

    def result(self) -> ReduceInfo:
        """Like `wait`, but never waits: raises `UsageError` while it is not done."""
        if not self.done():
            raise UsageError(f"result: {self._unfinished('is not finished')}")
        return self.wait()

    def settled(self) -> None:
        """Wait until the tensors are free again, whatever came of it."""
        self._transaction.outcome.exception()

    def _unfinished(self, state: str) -> str:
        order, waiting = self._transaction.order, self._transaction.waiting
        reason = f" The master says: {waiting}." if waiting else ""
        return f"{order.call} tag {order.tag} {state}.{reason} It goes on, so wait again, or close the Communicator"


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

    def __init__(self, order: Order, transaction: Transaction, communicator: object, given: Any, me: PeerId) -> None:
        super().__init__(transaction, communicator)
        # Of the order as it was: a transaction that has ended, which may be so by now, has let its parts go.
        self._spec = order.parts[0].spec
        self._given = given
        self._me = me
        self._shares: Shares | None = None

    def shares(self, timeout: Timeout | None = None) -> Shares:
        """Wait for the end, like `wait`, and give the result. On a device its memory is taken from the current stream,
        and so comes after what that has queued."""
        info = self.wait(timeout)
        if self._shares is None:
            self._shares = self._share_out(info)
        return self._shares

    def _share_out(self, info: ReduceInfo) -> Shares:
        output = self._transaction.output
        assert output is not None, "it was committed"
        size, spec = len(info.peers), self._spec
        if spec.kind is CollectiveKind.ALL_GATHER:
            shape = (size, *getattr(self._given, "shape", (spec.count,)))
            return Shares(_like(self._given, output, shape), range(size * spec.count), info)
        span = chunk(spec.count, size, info.peers.index(self._me))
        return Shares(_like(self._given, output, (len(span),)), span, info)


def rows_of(part: Part, given: Any, peers: Sequence[PeerId]) -> tuple[Any, ...]:
    """What each of these peers brought to an all-gather that is committed, like what was given here."""
    assert part.output is not None, "it was committed"
    assert isinstance(part.answer, Committed), "so it has a ring"
    ring, shape = part.answer.ring, getattr(given, "shape", (part.spec.count,))
    table = _like(given, part.output, (len(ring), *shape))
    if isinstance(table, memoryview):
        length = part.spec.count * part.spec.dtype.itemsize
        return tuple(table[ring.index(peer) * length :][:length] for peer in peers)
    return tuple(table[ring.index(peer)] for peer in peers)


def _like(given: Any, result: Tensor, shape: Sequence[int]) -> Any:
    """The result as a tensor of the same library as what was given, in the same place."""
    name = result.dtype.element_name
    if on_device(given):
        there = given.detach().new_empty(shape)
        Copies([(remote(there, "the result", written=True), result.address)]).back()
        return there
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
