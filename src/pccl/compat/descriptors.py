"""How scripts written for PCCL describe a reduction: plain holders, with PCCL's names and defaults.

Owns these and their translation into what we call things. Must not know communicators.
"""

from dataclasses import dataclass, field
from typing import Any

from pccl.arguments import choice, of_kind
from pccl.codec import Codec
from pccl.dataplane.tensors.buffers import Buffers, Tensor, at
from pccl.dataplane.tensors.device import Operands, described_sides, on_device, operands
from pccl.dataplane.tensors.pool import Pool
from pccl.errors import UsageError
from pccl.types import DataType, DistributionHint, QuantizationAlgorithm, ReduceOp, Result


@dataclass(frozen=True)
class ReduceOperandDescriptor:
    """The elements that are reduced. The hint has no effect."""

    datatype: DataType
    distribution_hint: DistributionHint = DistributionHint.NONE


@dataclass(frozen=True)
class QuantizationOptions:
    """How elements shall travel: floats as codes of MIN_MAX (UINT8, UINT16) or ZERO_POINT_SCALE (those, INT8, INT16).
    `quantize="int8"` has fewer bytes and smaller errors."""

    quantized_datatype: DataType = DataType.UINT8
    algorithm: QuantizationAlgorithm = QuantizationAlgorithm.MIN_MAX


@dataclass(frozen=True)
class ReduceDescriptor:
    """One reduction, without its tensors."""

    count: int
    op: ReduceOp
    tag: int
    operand_descriptor: ReduceOperandDescriptor
    quantization_options: QuantizationOptions


@dataclass(frozen=True)
class ReduceOpDescriptor:
    """One reduction with its tensors, by address. Made by `from_torch` or `from_numpy` it keeps them alive, and they
    may lie on a device."""

    send_ptr: int
    recv_ptr: int
    descriptor: ReduceDescriptor
    owners: tuple[Any, Any] | None = field(default=None, repr=False)

    @staticmethod
    def from_torch(send: Any, recv: Any, reduce_descriptor: ReduceDescriptor) -> "ReduceOpDescriptor":
        """Of two tensors, or twice the same."""
        return _of_tensors((send, recv), "ReduceOpDescriptor.from_torch", reduce_descriptor)

    @staticmethod
    def from_numpy(send: Any, recv: Any, reduce_descriptor: ReduceDescriptor) -> "ReduceOpDescriptor":
        """Of two arrays, or twice the same."""
        return _of_tensors((send, recv), "ReduceOpDescriptor.from_numpy", reduce_descriptor)

    def operands(self, pool: Pool) -> Operands:
        """Its elements, wherever they lie."""
        if self.owners is not None and any(map(on_device, self.owners)):
            return operands(*self.owners, "ReduceOpDescriptor", pool)
        return Operands(self.buffers())

    def buffers(self) -> Buffers:
        """Where its elements lie."""
        call, given = "ReduceOpDescriptor", of_kind(ReduceDescriptor, self.descriptor, "ReduceOpDescriptor: descriptor")
        operand = of_kind(ReduceOperandDescriptor, given.operand_descriptor, f"{call}: operand_descriptor")
        dtype, count = (
            choice(DataType, operand.datatype, f"{call}: datatype"),
            of_kind(int, given.count, f"{call}: count"),
        )
        if count < 0:
            raise UsageError(f"{call}: count must be 0 or more, got {count}", Result.INVALID_ARGUMENT)
        send, recv = (
            at(Tensor(address, count, dtype, self.owners), f"{call}: {name}")
            for name, address in (("send_ptr", self.send_ptr), ("recv_ptr", self.recv_ptr))
        )
        return Buffers(send, recv)


def _of_tensors(given: tuple[Any, Any], call: str, descriptor: ReduceDescriptor) -> ReduceOpDescriptor:
    sides = described_sides(*given, call)
    of_kind(ReduceDescriptor, descriptor, "ReduceOpDescriptor: reduce_descriptor")
    check_operand(descriptor.operand_descriptor, sides[0].dtype, "ReduceOpDescriptor")
    if descriptor.count != sides[0].count:
        raise UsageError(
            f"ReduceOpDescriptor: the descriptor's count is {descriptor.count}, but the tensors have "
            f"{sides[0].count} elements; make them alike",
            Result.INVALID_ARGUMENT,
        )
    owners = given if any(map(on_device, given)) else (sides[0].owner, sides[1].owner)
    return ReduceOpDescriptor(sides[0].extent.begin, sides[1].extent.begin, descriptor, owners)


def check_operand(operand: ReduceOperandDescriptor | None, dtype: DataType, call: str) -> None:
    """The elements must be what the descriptor states."""
    if operand is None:
        return
    argument = f"{call}: operand_descriptor"
    stated = choice(DataType, of_kind(ReduceOperandDescriptor, operand, argument).datatype, f"{argument}: datatype")
    if stated is not dtype:
        raise UsageError(f"{argument} says {stated.name}, but the tensors hold {dtype.name}", Result.INVALID_ARGUMENT)


_CODECS = {
    (QuantizationAlgorithm.MIN_MAX, DataType.UINT8): "minmax8",
    (QuantizationAlgorithm.MIN_MAX, DataType.UINT16): "minmax16",
    (QuantizationAlgorithm.ZERO_POINT_SCALE, DataType.UINT8): "zeropoint8",
    (QuantizationAlgorithm.ZERO_POINT_SCALE, DataType.INT8): "zeropoint8",
    (QuantizationAlgorithm.ZERO_POINT_SCALE, DataType.UINT16): "zeropoint16",
    (QuantizationAlgorithm.ZERO_POINT_SCALE, DataType.INT16): "zeropoint16",
}


def codec_of(options: QuantizationOptions | None, dtype: DataType, call: str) -> Codec | None:
    """The codec that is meant. What we do not have is refused: no caller gets another precision than asked for."""
    if options is None:
        return None
    argument = f"{call}: quantization_options"
    of_kind(QuantizationOptions, options, argument, 'or pass quantize="int8"')
    algorithm = choice(QuantizationAlgorithm, options.algorithm, f"{argument}: algorithm")
    quantized = choice(DataType, options.quantized_datatype, f"{argument}: quantized_datatype")
    if algorithm is QuantizationAlgorithm.NONE or quantized is dtype:
        return None
    if (algorithm, quantized) not in _CODECS:
        known = ", ".join(each.name for which, each in _CODECS if which is algorithm)
        raise UsageError(
            f"{argument}: {algorithm.name} to {quantized.name} is not there; choose one of {known}",
            Result.INVALID_ARGUMENT,
        )
    return Codec(_CODECS[algorithm, quantized])


def described(
    operand: ReduceOperandDescriptor | None, options: QuantizationOptions | None, dtype: DataType, call: str
) -> Codec | None:
    """The codec that is meant, after the elements were found to be what is stated."""
    check_operand(operand, dtype, call)
    return codec_of(options, dtype, call)
