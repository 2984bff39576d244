"""How the public API is used, as type checkers see it: `test_typing.py` has both read it, nothing runs it."""

import array
import enum
from typing import assert_type

import numpy as np

import pccl
from pccl import (
    AsyncReduceHandle,
    Attribute,
    Codec,
    CollectiveAborted,
    Communicator,
    DataType,
    DeviceType,
    DistributionHint,
    ErrorFeedback,
    MasterNode,
    PCCLError,
    PeerId,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    Shares,
    TooFewPeers,
    Work,
)


def calm(gradients: list[np.ndarray[tuple[int], np.dtype[np.float32]]]) -> None:
    with Communicator("localhost:48148", peer_group=1, stall_s=30.0, sigterm=False) as comm:
        assert_type(comm, Communicator)
        assert_type(comm.all_reduce(gradients[0], op="avg"), ReduceInfo)
        assert_type(comm.all_reduce(gradients[0], np.zeros(3), op=ReduceOp.MAX, async_op=False), ReduceInfo)
        work = comm.all_reduce(array.array("f", [1.0]), tag=3, retry=True, async_op=True)
        assert_type(work, Work)
        assert_type(work.wait(timeout=1.5), ReduceInfo)
        assert_type(work.wait(), ReduceInfo)
        assert_type(comm.broadcast(gradients[0], 0), ReduceInfo)
        assert_type(comm.broadcast(gradients[0], comm.ring[0], async_op=True), Work)
        assert_type(comm.all_gather(gradients[0]), Shares)
        assert_type(comm.reduce_scatter(gradients[0], op="avg", async_op=True).shares(timeout=1.0), Shares)
        assert_type(work.done(), bool)
        assert_type(work.result(), ReduceInfo)
        assert_type(comm.all_reduce_many(gradients, op="sum", retry=True), ReduceInfo)
        assert_type(comm.all_reduce_many(gradients, async_op=True), Work)
        assert_type(comm.are_peers_pending(), bool)
        comm.update_topology()
        assert_type(comm.ring, tuple[PeerId, ...])
        assert_type(comm.rank, int)


class Theirs(enum.Enum):
    """Operations of another library."""

    MIN = "smallest"


def foreign(comm: Communicator) -> None:
    assert_type(comm.all_reduce(bytearray(3), op=Theirs.MIN), ReduceInfo)
    assert_type(comm.all_reduce(bytearray(3), op=4), ReduceInfo)
    assert_type(comm.reduce_scatter(bytearray(3), op=Theirs.MIN), Shares)


def told(info: ReduceInfo) -> None:
    assert_type(info.local_world_size, int)
    assert_type(info.peers, tuple[PeerId, ...])
    assert_type(info.seconds, float)
    assert_type(info.attempts, int)
    assert_type(info.tx_bytes + info.rx_bytes, int)


def failing(comm: Communicator) -> None:
    try:
        comm.all_reduce(bytearray(3))
    except CollectiveAborted as error:
        assert_type(error.lost_peers, tuple[PeerId, ...])
        assert_type(error.result, Result)
    except TooFewPeers:
        pass
    except PCCLError as error:
        assert_type(error.result, Result)
    PCCLError.check(Result.SUCCESS, "all_reduce")


def quantised(comm: Communicator, tensor: bytearray) -> None:
    feedback = ErrorFeedback(Codec("int4", block=512, stochastic=True, seed=7))
    assert_type(comm.all_reduce(tensor, quantize="int8"), ReduceInfo)
    assert_type(comm.all_reduce(tensor, quantize=Codec("e3m0"), async_op=True), Work)
    assert_type(comm.all_reduce_many([tensor], quantize=feedback, op="avg"), ReduceInfo)
    assert_type(feedback.codec, Codec)
    feedback.load_state_dict(feedback.state_dict())
    feedback.reset(3)


def as_in_pccl(send: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    master = MasterNode(listen_address="0.0.0.0:48148")
    master.run()
    comm = Communicator("127.0.0.1:48148", 0, p2p_connection_pool_size=16)
    comm.connect(n_attempts=15)
    assert_type(comm.get_attribute(Attribute.LOCAL_WORLD_SIZE), int)
    operand = ReduceOperandDescriptor(datatype=DataType.FLOAT, distribution_hint=DistributionHint.NORMAL)
    options = QuantizationOptions(quantized_datatype=DataType.UINT8, algorithm=QuantizationAlgorithm.MIN_MAX)
    handle = comm.all_reduce_async(
        send, send, op=ReduceOp.SUM, tag=1, operand_descriptor=operand, quantization_options=options
    )
    assert_type(handle, AsyncReduceHandle)
    ok, status, info = handle.wait()
    assert_type(ok, bool)
    assert_type(status, int)
    assert_type(info, ReduceInfo)
    descriptor = ReduceDescriptor(
        count=3, op=ReduceOp.AVG, tag=0, operand_descriptor=operand, quantization_options=options
    )
    described = [ReduceOpDescriptor.from_numpy(send=send, recv=send, reduce_descriptor=descriptor)]
    assert_type(comm.all_reduce_multiple_with_retry(described, max_in_flight=8), ReduceInfo)
    assert_type(DataType.from_numpy_dtype(send.dtype), DataType)
    assert_type(DeviceType.from_torch_device_type("cuda"), DeviceType | None)
    assert_type(pccl.cuda.is_available(), bool)
    master.interrupt()
