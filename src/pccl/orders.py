"""The arguments of a collective's call as the order that a transaction carries out.

Owns their checks. Must not know communicators, or how an order is carried out.
"""

from collections.abc import Sequence

from pccl.core.messages import CollectiveSpec
from pccl.dataplane.buffers import Buffers
from pccl.dataplane.device import Operands
from pccl.dataplane.staging import Gathered
from pccl.descriptors import ReduceOpDescriptor, check_quantization
from pccl.errors import UsageError
from pccl.transaction import Order, Part
from pccl.types import TAG_MAX, ReduceInfo, ReduceOp, Result, part_tag

Op = ReduceOp | str | int
"""An operation: `ReduceOp.AVG`, its name in any case, or its number."""


def operation(op: Op, call: str) -> ReduceOp:
    """The operation that is meant."""
    try:
        return ReduceOp.named(op)
    except ValueError as error:
        raise UsageError(f"{call}: op: {error}", Result.INVALID_ARGUMENT) from None


def of_tensor(call: str, tag: int, op: ReduceOp, what: Operands, retry: bool) -> Order:
    """One tensor, one collective."""
    return Order(call, tag, [_part(call, tag, op, what.buffers)], retry, what.deliver)


def of_many(call: str, tag: int, op: ReduceOp, gathered: Gathered, retry: bool) -> Order:
    """Many tensors, one collective for each type of element."""
    _check_tag(call, tag)
    parts = []
    for number, share in enumerate(gathered.shares):
        spec = CollectiveSpec(share.buffers.send.count, share.dtype, op, layout=share.layout)
        parts.append(Part(part_tag(tag, number), spec, share.buffers))
    return Order(call, tag, parts, retry, gathered.deliver, gathered.quick, gathered.release)


def of_kind(call: str, tag: int, spec: CollectiveSpec, what: Operands, retry: bool) -> Order:
    """A collective of another kind than an all-reduce."""
    _check_tag(call, tag)
    return Order(call, tag, [Part(tag, spec, what.buffers)], retry, what.deliver)


def of_descriptor(call: str, described: ReduceOpDescriptor) -> Order:
    """What a script written for PCCL describes; tried until it is done."""
    descriptor, buffers = described.descriptor, described.buffers()
    check_quantization(descriptor.quantization_options, buffers.send.dtype, call)
    part = _part(call, descriptor.tag, operation(descriptor.op, call), buffers)
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


def _part(call: str, tag: int, op: ReduceOp, buffers: Buffers) -> Part:
    _check_tag(call, tag)
    return Part(tag, CollectiveSpec(buffers.send.count, buffers.send.dtype, op), buffers)


def _check_tag(call: str, tag: int) -> None:
    if not isinstance(tag, int) or isinstance(tag, bool) or not 0 <= tag <= TAG_MAX:
        raise UsageError(f"{call}: tag: {tag!r} is no whole number from 0 to {TAG_MAX}", Result.INVALID_ARGUMENT)
