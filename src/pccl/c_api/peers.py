"""Peers of programs in C: from their handles to `Communicator`, with what C cannot keep itself.

Owns the collectives that were launched and not awaited, and whether a failed sync left a mixture behind. Must not know
how calls come in.

Memory is the program's: it is named by its address, used while a call runs, and not kept. A `SharedState` lives for one
call; visitors get nothing of memory without an owner (`net/transfers.py`).
"""

from pccl import (
    AsyncReduceHandle,
    Communicator,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    SharedState,
    SharedStateSyncInfo,
    TensorInfo,
    UsageError,
)
from pccl.arguments import choice
from pccl.c_api.handles import Handles
from pccl.c_api.layouts import CReduceDescriptor, CReduceOpDescriptor, CSharedState, CTensorInfo, many_at, wrong
from pccl.dataplane.tensors.buffers import Tensor
from pccl.types import Attribute, DataType, DeviceType, DistributionHint, QuantizationAlgorithm, ReduceOp

Contents = tuple[int, ...]
"""What tells one state from another: its revision and where its tensors lie."""


class CPeer:
    """One communicator, from its creation to its destruction."""

    def __init__(self, address: str, group: int, lanes: int) -> None:
        # A guest sets no handlers.
        self.communicator = Communicator(address, group, lanes, sigterm=False, sigusr1=False)
        self._launched: dict[int, AsyncReduceHandle] = {}
        self._torn: Contents | None = None

    def all_reduce(self, send: int, recv: int, given: CReduceDescriptor) -> ReduceInfo:
        """One collective, waited for."""
        tensors, described = _tensors(send, recv, given), _described(given)
        return self.communicator.all_reduce(
            *tensors,
            op=described.op,
            tag=described.tag,
            operand_descriptor=described.operand_descriptor,
            quantization_options=described.quantization_options,
        )

    def launch(self, send: int, recv: int, given: CReduceDescriptor) -> None:
        """One collective, to be awaited."""
        tensors, described = _tensors(send, recv, given), _described(given)
        if described.tag in self._launched:
            raise wrong(f"pcclAllReduceAsync: tag {described.tag} was launched before; call pcclAwaitAsyncReduce first")
        self._launched[described.tag] = self.communicator.all_reduce_async(
            *tensors,
            op=described.op,
            tag=described.tag,
            operand_descriptor=described.operand_descriptor,
            quantization_options=described.quantization_options,
        )

    def await_launched(self, tag: int) -> ReduceInfo:
        """The end of one that was launched. Raises why it failed."""
        handle = self._launched.pop(tag, None)
        if handle is None:
            raise wrong(f"pcclAwaitAsyncReduce: tag {tag} was not launched here, or was awaited before")
        info = handle.wait()[2]
        if handle.error is not None:
            raise handle.error
        return info

    def all_reduce_multiple(self, given: list[CReduceOpDescriptor], max_in_flight: int) -> ReduceInfo:
        """Many, again and again until all are done."""
        orders = [
            ReduceOpDescriptor(each.sendbuf or 0, each.recvbuf or 0, _described(each.descriptor)) for each in given
        ]
        return self.communicator.all_reduce_multiple_with_retry(orders, max_in_flight=max_in_flight)

    def sync(self, given: CSharedState, strategy: int) -> SharedStateSyncInfo:
        """Sync what the struct describes, and set its revision.

        A failed sync may leave a mixture of two states. The same struct with the same revision is still that mixture,
        and is not offered to others; another revision says that the program has put something else there."""
        infos = many_at(CTensorInfo, given.infos or 0, given.count, "shared_state: infos")
        state = SharedState([_tensor_info(each) for each in infos])
        state.revision = given.revision
        contents = (given.revision, *(each.data or 0 for each in infos))
        if self._torn == contents:
            state.interrupted(pulled=True)
        try:
            info = self.communicator.sync_shared_state(state, strategy)  # type: ignore[arg-type]  # checked there
        except BaseException:
            self._torn = contents if state.torn else None
            raise
        self._torn = None
        given.revision = state.revision
        return info

    def check_can_optimise(self) -> None:
        """As in PCCL a peer alone has nothing to optimise."""
        if self.communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
            raise UsageError("pcclOptimizeTopology: this peer is alone; there is no ring to order")

    def close(self) -> None:
        """Leave. Memory of what was in flight is free when this returns."""
        try:
            self.communicator.close()
        finally:
            for handle in list(self._launched.values()):
                handle.wait()


PEERS: Handles[CPeer] = Handles("communicator", "pcclCreateCommunicator")


def _tensors(send: int, recv: int, given: CReduceDescriptor) -> tuple[Tensor, Tensor]:
    """Both sides; one object if they are one. Whether there is memory is asked where tensors are checked."""
    dtype = choice(DataType, given.datatype, "datatype")
    if given.count and not (send and recv):
        raise wrong(f"{'recvbuff' if send else 'sendbuff'} must not be NULL")
    source = Tensor(send, given.count, dtype, None)
    return source, source if send == recv else Tensor(recv, given.count, dtype, None)


def _described(given: CReduceDescriptor) -> ReduceDescriptor:
    return ReduceDescriptor(
        given.count,
        choice(ReduceOp, given.op, "op"),
        given.tag,
        ReduceOperandDescriptor(
            choice(DataType, given.datatype, "datatype"),
            choice(DistributionHint, given.distribution_hint, "distribution_hint"),
        ),
        QuantizationOptions(
            choice(DataType, given.quantized_datatype, "quantized_datatype"),
            choice(QuantizationAlgorithm, given.algorithm, "algorithm"),
        ),
    )


def _tensor_info(given: CTensorInfo) -> TensorInfo:
    if given.name is None:
        raise wrong("shared_state: the name of a tensor must not be NULL")
    name = given.name.decode()
    if given.device_type != DeviceType.CPU:
        raise wrong(f"device_type of tensor {name!r} must be pcclDeviceCpu, got {given.device_type}; copy it first")
    return TensorInfo(
        name,
        given.data or 0,
        numel=given.count,
        dtype=choice(DataType, given.datatype, f"datatype of tensor {name!r}"),
        allow_content_inequality=given.allow_content_inequality,
    )
