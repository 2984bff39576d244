"""The collectives of a Communicator, as the calls that users make.

Owns their arguments, from what is checked before anything moves to what is returned. Must not know how a collective
comes to its end.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

from pccl.api.calls import Op, Quantize, of_many, of_other, of_tensor, operation, options_of, spec_of, with_gather
from pccl.api.connected import Connected
from pccl.api.transaction import Order
from pccl.api.work import Shares, ShareWork, Timeout, Work, limit_of, root_of
from pccl.compat.descriptors import QuantizationOptions, ReduceOperandDescriptor, described
from pccl.dataplane.tensors.device import contribution, operands
from pccl.dataplane.tensors.staging import Gathered
from pccl.errors import UsageError
from pccl.types import CollectiveKind, ReduceInfo, ReduceOp, Result


class Collectives(Connected):
    """What a connected peer reduces, spreads and gathers with its group."""

    @overload
    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = ...,
        tag: int = ...,
        operand_descriptor: ReduceOperandDescriptor | None = ...,
        quantization_options: QuantizationOptions | None = ...,
        quantize: Quantize | None = ...,
        retry: bool = ...,
        async_op: Literal[False] = ...,
        timeout: Timeout | None = ...,
    ) -> ReduceInfo: ...

    @overload
    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = ...,
        tag: int = ...,
        operand_descriptor: ReduceOperandDescriptor | None = ...,
        quantization_options: QuantizationOptions | None = ...,
        quantize: Quantize | None = ...,
        retry: bool = ...,
        async_op: Literal[True],
    ) -> Work: ...

    def all_reduce(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = ReduceOp.SUM,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
        quantize: Quantize | None = None,
        retry: bool = False,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> ReduceInfo | Work:
        """Reduce `send` with the same tensor of all peers of this group into `recv`; without `recv`, in place.

        Tensors are contiguous: numpy arrays, torch tensors, or anything with `__dlpack__` or a buffer on the CPU; torch
        tensors of a device are reduced in a copy. `op` is a `ReduceOp` or its name. All peers end with the same bits.

        With `quantize` floats travel as codes: "int8" has a quarter of the bytes of float32, "int4" and "e3m0" have an
        eighth; a `Codec` has choices, an `ErrorFeedback` makes good in the next round what was lost in this one. All
        peers must choose alike. docs/quantisation.md says what each costs.

        When it raises, `send` is as it was. After `CollectiveAborted` the group is rewired, and the same call can be
        made again at once; with `retry` that is done here, with the peers that are left, until it is done or no other
        peer is left, which is `TooFewPeers`. With `async_op` it returns a `Work` to wait for.

        `timeout` (seconds, or a `timedelta`; every collective takes it) is how long it may take to start, attempts with
        `retry` included. Then it raises `CollectiveTimedOut`, which names the peers that did not call it, and the vote
        is taken back. Once it has started the call waits for its outcome, so that nothing is written after it has
        returned; also while the master is away, which alone knows whether it has."""
        membership, call = self._connected("all_reduce"), "all_reduce"
        limit_s = limit_of(call, timeout, async_op)
        tensors = operands(send, send if recv is None else recv, call, self._staging)
        codec = described(operand_descriptor, quantization_options, tensors.buffers.send.dtype, call)
        options = options_of(call, retry=retry, quantize=quantize, codec=codec)
        order = of_tensor(call, tag, operation(op, call), tensors, options)
        work = Work(membership.launch(order), self)
        return work if async_op else work.within(limit_s).wait()

    @overload
    def all_reduce_many(
        self,
        tensors: Sequence[Any],
        *,
        op: Op = ...,
        tag: int = ...,
        quantize: Quantize | None = ...,
        gather: Any = ...,
        retry: bool = ...,
        async_op: Literal[False] = ...,
        timeout: Timeout | None = ...,
    ) -> ReduceInfo: ...

    @overload
    def all_reduce_many(
        self,
        tensors: Sequence[Any],
        *,
        op: Op = ...,
        tag: int = ...,
        quantize: Quantize | None = ...,
        gather: Any = ...,
        retry: bool = ...,
        async_op: Literal[True],
    ) -> Work: ...

    def all_reduce_many(
        self,
        tensors: Sequence[Any],
        *,
        op: Op = ReduceOp.SUM,
        tag: int = 0,
        quantize: Quantize | None = None,
        gather: Any = None,
        retry: bool = False,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> ReduceInfo | Work:
        """Reduce many tensors in place as one transaction: all of them among the same peers, or none of them.

        The tensors are gathered into one stretch of memory for each type of element, each stretch is one collective,
        and when all are committed the result is copied back. So no tensor is touched before the result stands, and all
        inputs are intact when it raises. The price: two copies, and memory of twice the tensors' length, which is kept
        for the next call. Peers must pass tensors of the same lengths and types in the same order. `quantize` is as in
        `all_reduce`, for the floats among them: integers beside them travel exactly.

        `gather` is one more tensor, of which all get each peer's, exactly and as part of the same transaction: weights,
        counts, digests. `ReduceInfo.gathered` has them in the order of `peers`."""
        call = "all_reduce_many"
        options, limit_s = options_of(call, retry=retry, quantize=quantize), limit_of(call, timeout, async_op)
        membership, arrays, reduce_op = self._connected(call), list(tensors), operation(op, call)
        if not arrays:
            raise UsageError(f"{call}: there is no tensor to reduce", Result.INVALID_ARGUMENT)
        if len(arrays) == 1 and gather is None:
            order = of_tensor(call, tag, reduce_op, operands(arrays[0], arrays[0], call, self._staging), options)
        else:
            order = of_many(call, tag, reduce_op, Gathered(arrays, f"{call}: tensors", self._staging), options)
        if gather is not None:
            order = with_gather(order, gather, contribution(gather, f"{call}: gather", self._staging))
        work = Work(membership.launch(order), self)
        return work if async_op else work.within(limit_s).wait()

    # ── other kinds ──────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def broadcast(
        self,
        tensor: Any,
        root: str | int,
        *,
        tag: int = ...,
        retry: bool = ...,
        async_op: Literal[False] = ...,
        timeout: Timeout | None = ...,
    ) -> ReduceInfo: ...

    @overload
    def broadcast(
        self, tensor: Any, root: str | int, *, tag: int = ..., retry: bool = ..., async_op: Literal[True]
    ) -> Work: ...

    def broadcast(
        self,
        tensor: Any,
        root: str | int,
        *,
        tag: int = 0,
        retry: bool = False,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> ReduceInfo | Work:
        """Give all peers of this group the tensor of one of them, named by its id, or by its rank in the present ring.

        In place on all others, under the rules of `all_reduce`: all have it, or no tensor was touched. When the
        root is lost it raises `CollectiveAborted`, and the next call with that root `CallMismatch`: name another."""
        membership, call = self._connected("broadcast"), "broadcast"
        limit_s = limit_of(call, timeout, async_op)
        tensors = operands(tensor, tensor, call, self._staging)
        spec = spec_of(
            CollectiveKind.BROADCAST, tensors.buffers.send, ReduceOp.SUM, root_of(root, membership.core.ring)
        )
        work = Work(membership.launch(of_other(call, tag, spec, tensors, retry=retry)), self)
        return work if async_op else work.within(limit_s).wait()

    @overload
    def all_gather(
        self,
        tensor: Any,
        *,
        tag: int = ...,
        retry: bool = ...,
        async_op: Literal[False] = ...,
        timeout: Timeout | None = ...,
    ) -> Shares: ...

    @overload
    def all_gather(self, tensor: Any, *, tag: int = ..., retry: bool = ..., async_op: Literal[True]) -> ShareWork: ...

    def all_gather(
        self,
        tensor: Any,
        *,
        tag: int = 0,
        retry: bool = False,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Shares | ShareWork:
        """Give all peers of this group the tensors of all, in the order of `Shares.info.peers`. The result is new
        memory, since only its start decides how many take part."""
        limit_s = limit_of("all_gather", timeout, async_op)
        tensors = contribution(tensor, "all_gather", self._staging)
        spec = spec_of(CollectiveKind.ALL_GATHER, tensors.buffers.send, ReduceOp.SUM)
        work = self._share(of_other("all_gather", tag, spec, tensors, retry=retry), tensor)
        return work if async_op else work.within(limit_s).shares()

    @overload
    def reduce_scatter(
        self,
        tensor: Any,
        *,
        op: Op = ...,
        tag: int = ...,
        retry: bool = ...,
        async_op: Literal[False] = ...,
        timeout: Timeout | None = ...,
    ) -> Shares: ...

    @overload
    def reduce_scatter(
        self, tensor: Any, *, op: Op = ..., tag: int = ..., retry: bool = ..., async_op: Literal[True]
    ) -> ShareWork: ...

    def reduce_scatter(
        self,
        tensor: Any,
        *,
        op: Op = ReduceOp.SUM,
        tag: int = 0,
        retry: bool = False,
        async_op: bool = False,
        timeout: Timeout | None = None,
    ) -> Shares | ShareWork:
        """Reduce a tensor with those of all peers of this group, and give each peer one part of the result: of equal
        length but for one element, in the order of ranks. `Shares.span` says which part is here."""
        limit_s = limit_of("reduce_scatter", timeout, async_op)
        tensors = contribution(tensor, "reduce_scatter", self._staging)
        spec = spec_of(CollectiveKind.REDUCE_SCATTER, tensors.buffers.send, operation(op, "reduce_scatter"))
        work = self._share(of_other("reduce_scatter", tag, spec, tensors, retry=retry), tensor)
        return work if async_op else work.within(limit_s).shares()

    def _share(self, order: Order, tensor: Any) -> ShareWork:
        membership = self._connected(order.call)
        return ShareWork(order, membership.launch(order), self, tensor, membership.core.identity.peer)
