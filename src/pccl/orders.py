"""The arguments of a collective's call as the order that a transaction carries out.

Owns their checks. Must not know communicators, or how an order is carried out.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from pccl.codec import Codec
from pccl.core.messages import CollectiveSpec
from pccl.dataplane.buffers import Buffers, Tensor
from pccl.dataplane.device import Operands
from pccl.dataplane.staging import Gathered
from pccl.descriptors import ReduceOpDescriptor, codec_of
from pccl.errors import UsageError
from pccl.feedback import ErrorFeedback
from pccl.transaction import Order, Part
from pccl.types import TAG_MAX, CollectiveKind, ReduceInfo, ReduceOp, Result, part_tag

Op = ReduceOp | str | int
"""An operation: `ReduceOp.AVG`, its name in any case, or its number."""


def operation(op: Op, call: str) -> ReduceOp:
    """The operation that is meant."""
    try:
        return ReduceOp.named(op)
    except ValueError as error:
        raise UsageError(f"{call}: op: {error}", Result.INVALID_ARGUMENT) from None


Quantize = Codec | ErrorFeedback | str
"""How floats travel: a codec by its name or with choices, or one that makes good what was lost."""


class How(Struct, frozen=True):
    """How elements travel, and whether a collective that was aborted is tried again."""

    retry: bool = False
    codec: Codec | None = None
    feedback: ErrorFeedback | None = None

    def part(self, call: str, tag: int, spec: CollectiveSpec, buffers: Buffers) -> Part:
        """A collective that does so. Raises `UsageError` for what its codec cannot do."""
        if self.codec is None:
            return Part(tag, spec, buffers)
        refusal = self.codec.refusal(spec.dtype, spec.op)
        if not refusal and self.feedback is not None and spec.op not in (ReduceOp.SUM, ReduceOp.AVG):
            refusal = f"error feedback is for sums and averages, not for {spec.op.name}; pass its codec alone"
        if refusal:
            raise UsageError(f"{call}: {refusal}", Result.INVALID_ARGUMENT)
        lend = None if self.feedback is None else partial(self.feedback.lend, tag, spec.count, spec.dtype)
        return Part(tag, replace(spec, codec=str(self.codec)), buffers, lend)

    def order(self, call: str, tag: int, parts: list[Part], deliver: Callable[[], object] | None) -> Order:
        """Of such collectives. What was lost is kept once all are committed, together with their results."""
        feedback = self.feedback
        if feedback is None:
            return Order(call, tag, parts, self.retry, deliver)

        def keep() -> None:
            if deliver is not None:
                deliver()
            for part in parts:
                feedback.keep(part.tag)

        return Order(call, tag, parts, self.retry, keep, deliver_at_once=deliver is None)


def how(call: str, retry: bool, quantize: Quantize | None, options: Codec | None = None) -> How:
    """The codec by whichever name it was chosen."""
    if quantize is None:
        return How(retry, options)
    if options is not None:
        raise UsageError(f"{call}: pass quantize or quantization_options, not both", Result.INVALID_ARGUMENT)
    if isinstance(quantize, ErrorFeedback):
        return How(retry, quantize.codec, quantize)
    try:
        return How(retry, quantize if isinstance(quantize, Codec) else Codec(quantize))
    except ValueError as error:
        raise UsageError(f"{call}: quantize: {error}", Result.INVALID_ARGUMENT) from None


def of_tensor(call: str, tag: int, op: ReduceOp, what: Operands, way: How) -> Order:
    """One tensor, one collective."""
    return way.order(call, tag, [_part(call, tag, op, what.buffers, way)], what.deliver)


def of_many(call: str, tag: int, op: ReduceOp, gathered: Gathered, way: How) -> Order:
    """Many tensors, one collective for each type of element."""
    try:
        _check_tag(call, tag)
        parts = []
        for number, share in enumerate(gathered.shares):
            spec = CollectiveSpec(share.buffers.send.count, share.dtype, op, layout=share.layout)
            parts.append(way.part(call, part_tag(tag, number), spec, share.buffers))
    except UsageError:
        gathered.release()
        raise
    order = way.order(call, tag, parts, gathered.deliver)
    return dataclasses.replace(order, deliver_at_once=gathered.quick, release=gathered.release)


def spec_of(kind: CollectiveKind, given: Tensor, op: ReduceOp, root: str = "") -> CollectiveSpec:
    """Of a collective of another kind than all-reduce, over the tensor that this peer brings."""
    return CollectiveSpec(given.count, given.dtype, op, kind=kind, root=root)


def of_kind(call: str, tag: int, spec: CollectiveSpec, what: Operands, retry: bool) -> Order:
    """A collective of another kind than an all-reduce."""
    _check_tag(call, tag)
    return Order(call, tag, [Part(tag, spec, what.buffers)], retry, what.deliver)


def of_descriptor(call: str, described: ReduceOpDescriptor) -> Order:
    """What a script written for PCCL describes; tried until it is done."""
    descriptor, buffers = described.descriptor, described.buffers()
    codec = codec_of(descriptor.quantization_options, buffers.send.dtype, call)
    part = _part(call, descriptor.tag, operation(descriptor.op, call), buffers, How(codec=codec))
    return Order(call, descriptor.tag, [part], retry=True)


def total(infos: Sequence[ReduceInfo], group_size: int) -> ReduceInfo:
    """All of them together."""
    last = infos[-1] if infos else ReduceInfo(group_size, 0, 0)
    return ReduceInfo(
        last.local_world_size,
        sum(info.tx_bytes for info in infos),
        sum(info.rx_bytes for info in infos),
        last.peers,
        max((info.seconds for info in infos), default=0.0),
        max((info.attempts for info in infos), default=1),
    )


def _part(call: str, tag: int, op: ReduceOp, buffers: Buffers, way: How) -> Part:
    _check_tag(call, tag)
    return way.part(call, tag, CollectiveSpec(buffers.send.count, buffers.send.dtype, op), buffers)


def _check_tag(call: str, tag: int) -> None:
    if not isinstance(tag, int) or isinstance(tag, bool) or not 0 <= tag <= TAG_MAX:
        raise UsageError(f"{call}: tag: {tag!r} is no whole number from 0 to {TAG_MAX}", Result.INVALID_ARGUMENT)
