"""The arguments of a collective's call as the order that a transaction carries out.

Owns their checks. Must not know communicators, or how an order is carried out.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from pccl.api.feedback import ErrorFeedback
from pccl.api.transaction import Order, Part
from pccl.api.work import rows_of
from pccl.arguments import of_kind
from pccl.codec import SOURCES, Codec
from pccl.compat.descriptors import ReduceOpDescriptor, codec_of
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.tensors.buffers import Buffers, Tensor
from pccl.dataplane.tensors.device import Operands
from pccl.dataplane.tensors.pool import Pool
from pccl.dataplane.tensors.staging import Gathered
from pccl.errors import UsageError
from pccl.types import TAG_MAX, CollectiveKind, DataType, PeerId, ReduceInfo, ReduceOp, Result, part_tag


class NamedOp(Protocol):
    """An operation of another library, such as torch's."""

    @property
    def name(self) -> str:
        """By which it is known; its number may be another one's of ours."""


Op = ReduceOp | str | int | NamedOp
"""An operation: `ReduceOp.AVG`, its name in any case, its number, or another library's of the same name."""


def operation(op: Op, call: str) -> ReduceOp:
    """The operation that is meant."""
    try:
        return ReduceOp.named(op)
    except ValueError as error:
        raise UsageError(f"{call}: op: {error}", Result.INVALID_ARGUMENT) from None


Quantize = Codec | ErrorFeedback | str
"""How floats travel: a codec by its name or with choices, or one that makes good what was lost."""


class Options(Struct, frozen=True):
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

    def order(self, call: str, tag: int, parts: list[Part], copies: Operands | Gathered) -> Order:
        """Of such collectives. What was lost is kept once all are committed, together with their results."""
        feedback, deliver = self.feedback, copies.deliver
        order = Order(call, tag, parts, self.retry, copies.stage, deliver, release=copies.release)
        if feedback is None:
            return order

        def keep() -> None:
            for part in parts:
                if part.lend is not None:
                    feedback.keep(part.tag)
            if deliver is not None:
                deliver()

        return dataclasses.replace(order, deliver=keep, deliver_at_once=deliver is None)


def options_of(
    call: str, *, retry: bool = False, quantize: Quantize | None = None, codec: Codec | None = None
) -> Options:
    """The codec by whichever name it was chosen: ours, or `codec` by PCCL's."""
    if quantize is None:
        return Options(retry, codec)
    if codec is not None:
        raise UsageError(f"{call}: pass quantize or quantization_options, not both", Result.INVALID_ARGUMENT)
    if isinstance(quantize, ErrorFeedback):
        return Options(retry, quantize.codec, quantize)
    try:
        return Options(retry, quantize if isinstance(quantize, Codec) else Codec(quantize))
    except ValueError as error:
        raise UsageError(f"{call}: quantize: {error}", Result.INVALID_ARGUMENT) from None


def of_tensor(call: str, tag: int, op: ReduceOp, tensors: Operands, options: Options) -> Order:
    """One tensor, one collective."""
    return options.order(call, tag, [_part(call, tag, op, tensors.buffers, options)], tensors)


def of_many(call: str, tag: int, op: ReduceOp, gathered: Gathered, options: Options) -> Order:
    """Many tensors, one collective for each type of element. A codec is for the floats among them."""
    exact = Options(options.retry)
    coded = any(share.dtype in SOURCES for share in gathered.shares)
    try:
        _check_tag(call, tag)
        parts = []
        for number, share in enumerate(gathered.shares):
            spec = CollectiveSpec(share.buffers.send.count, share.dtype, op, layout=share.layout)
            chosen = exact if coded and share.dtype not in SOURCES else options
            parts.append(chosen.part(call, part_tag(tag, number), spec, share.buffers))
    except UsageError:
        gathered.release()
        raise
    return dataclasses.replace(options.order(call, tag, parts, gathered), deliver_at_once=gathered.quick)


def with_gather(order: Order, given: Any, tensors: Operands) -> Order:
    """The same, and with it, in the same transaction, one tensor of each peer for all of them."""
    spec = spec_of(CollectiveKind.ALL_GATHER, tensors.buffers.send, ReduceOp.SUM)
    part = Part(part_tag(order.tag, len(DataType)), spec, tensors.buffers)
    order = dataclasses.replace(
        order, stage=_each(order.stage, tensors.stage), release=_each(order.release, tensors.release)
    )
    first = order.parts[0]
    # A peer that gathers nothing would let this one wait for ever: now the first part shows both that they differ.
    first.spec = replace(first.spec, layout=f"gather{first.spec.layout[6:]}")
    return dataclasses.replace(order, parts=[*order.parts, part], rows=partial(rows_of, part, given))


def _each(*actions: Callable[[], object] | None) -> Callable[[], object] | None:
    """One that does all of these; None if there are none."""
    there = [each for each in actions if each is not None]
    return (lambda: [each() for each in there]) if there else None


def spec_of(kind: CollectiveKind, given: Tensor, op: ReduceOp, root: str = "") -> CollectiveSpec:
    """Of a collective of another kind than all-reduce, over the tensor that this peer brings."""
    return CollectiveSpec(given.count, given.dtype, op, kind=kind, root=PeerId(root))


def of_other(call: str, tag: int, spec: CollectiveSpec, tensors: Operands, *, retry: bool) -> Order:
    """A collective of another kind than an all-reduce."""
    _check_tag(call, tag)
    part = Part(tag, spec, tensors.buffers)
    return Order(call, tag, [part], retry, tensors.stage, tensors.deliver, release=tensors.release)


def of_descriptor(call: str, described: ReduceOpDescriptor, pool: Pool) -> Order:
    """What a script written for PCCL describes; tried until it is done."""
    remedy = "make it by ReduceOpDescriptor.from_torch or from_numpy, or pass tensors to all_reduce_many"
    given = of_kind(ReduceOpDescriptor, described, f"{call}: each descriptor", remedy).operands(pool)
    descriptor = described.descriptor
    codec = codec_of(descriptor.quantization_options, given.buffers.send.dtype, call)
    op = operation(descriptor.op, call)
    return of_tensor(call, descriptor.tag, op, given, Options(retry=True, codec=codec))


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
        lanes=max((info.lanes for info in infos), default=0),
        repeated_bytes=sum(info.repeated_bytes for info in infos),
    )


def _part(call: str, tag: int, op: ReduceOp, buffers: Buffers, options: Options) -> Part:
    _check_tag(call, tag)
    return options.part(call, tag, CollectiveSpec(buffers.send.count, buffers.send.dtype, op), buffers)


def _check_tag(call: str, tag: int) -> None:
    if not isinstance(tag, int) or isinstance(tag, bool) or not 0 <= tag <= TAG_MAX:
        raise UsageError(f"{call}: tag must be an integer from 0 to 2^63 - 1, got {tag!r}", Result.INVALID_ARGUMENT)
