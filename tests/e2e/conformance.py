"""What a conforming peer does: the same collectives as all others, each result compared with what it must be.

Every share is made of small whole numbers, so that all sums and products are exact in every type whatever the order,
and what is left to rounding is the division of AVG. `expected` folds the shares with the reference's arithmetic.
"""

import array
import functools
import hashlib
import itertools
import random
import threading

import numpy as np

from pccl import (
    AsyncReduceHandle,
    DataType,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Work,
)
from pccl.dataplane.ring.arithmetic import STORED, combine, divide, narrow
from pccl.dataplane.tensors.buffers import Tensor
from tests.patience import HANG_S

PATIENCE_S = HANG_S
SHORT = (0, 1, 5, 1009)
"""None, fewer than peers, fewer than some, and one that divides by nothing."""
COUNTS = (*SHORT, 20_011)
"""And one that is too long to travel with votes."""
PLAIN = QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE)


def share(number, count, dtype):
    """The input of one peer: ones and twos, as they are stored."""
    values = 1 + (np.arange(count) * (number + 3) // 7 + number) % 2
    if dtype in (DataType.FLOAT16, DataType.BFLOAT16):
        return narrow(values.astype(np.float32), dtype)
    return values.astype(STORED[dtype])


@functools.cache
def expected(peers, count, dtype, op):
    total = functools.reduce(
        lambda a, b: combine(a, b, dtype, op), [share(each, count, dtype) for each in range(peers)]
    )
    return divide(total, dtype, peers) if op is ReduceOp.AVG else total


def as_tensor(values, dtype):
    """numpy has no bfloat16; its bits do."""
    return Tensor(values.ctypes.data, values.size, dtype, values) if dtype is DataType.BFLOAT16 else values


class Check:
    """Compares, and remembers the bits of all results in order for the comparison among peers."""

    def __init__(self, me, peers):
        self.me, self.peers = me, peers
        self.reduced = 0
        self._digest = hashlib.sha256()

    def result(self, got, dtype, op, info=None):
        wanted = expected(self.peers, got.size, dtype, op)
        assert got.tobytes() == wanted.tobytes(), f"{dtype.name} {op.name} {got.size}: {got[:5]} is not {wanted[:5]}"
        if info is not None:
            assert isinstance(info, ReduceInfo)
            assert info.local_world_size == info.world_size == len(info.peers) == self.peers
            assert info.attempts == 1
            assert info.seconds > 0
        self._digest.update(got.tobytes())
        self.reduced += 1

    def facts(self):
        return {"digest": self._digest.hexdigest(), "reduced": self.reduced}


def one_by_one(it, check):
    """Every type and operation, in and out of place, each call waited for."""
    for dtype, op, apart in itertools.product(DataType, ReduceOp, (False, True)):
        count = COUNTS[(dtype + op) % len(COUNTS)]
        send = share(check.me, count, dtype)
        recv = np.zeros_like(send) if apart else send
        ends = [as_tensor(send, dtype)] + ([as_tensor(recv, dtype)] if apart else [])
        info = it.all_reduce(*ends, op=op.name.lower())
        check.result(recv, dtype, op, info)
        if apart:
            assert send.tobytes() == share(check.me, count, dtype).tobytes(), (
                "an input that is not in place was written"
            )


def launched(it, check):
    """Every type and operation at once, with tags; each peer in an order of its own."""
    cases = list(enumerate(itertools.product(DataType, ReduceOp)))
    buffers = {tag: share(check.me, COUNTS[tag % len(COUNTS)], dtype) for tag, (dtype, _) in cases}
    works = {}
    for tag, (dtype, op) in random.Random(check.me).sample(cases, len(cases)):
        works[tag] = it.all_reduce(as_tensor(buffers[tag], dtype), op=op, tag=tag, async_op=True)
    for tag, (dtype, op) in cases:
        assert isinstance(works[tag], Work)
        info = works[tag].wait(PATIENCE_S)
        assert works[tag].done()
        assert works[tag].result() == info
        check.result(buffers[tag], dtype, op, info)


def launched_as_in_pccl(it, check):
    """The same with PCCL's names, out of place, and its way to wait."""
    cases = list(enumerate(itertools.product((DataType.FLOAT, DataType.DOUBLE, DataType.UINT8), ReduceOp)))
    handles = {}
    for tag, (dtype, op) in random.Random(check.me).sample(cases, len(cases)):
        send = share(check.me, COUNTS[tag % len(COUNTS)], dtype)
        recv = np.zeros_like(send)
        handles[tag] = (
            recv,
            it.all_reduce_async(
                send,
                recv,
                op=op,
                tag=tag,
                operand_descriptor=ReduceOperandDescriptor(datatype=dtype),
                quantization_options=PLAIN,
            ),
        )
    for tag, (dtype, op) in cases:
        recv, handle = handles[tag]
        assert isinstance(handle, AsyncReduceHandle)
        ok, status, info = handle.wait()
        assert (ok, status) == (True, 0)
        assert handle.wait() == (ok, status, info)
        check.result(recv, dtype, op, info)


def sixty_four_from_threads(it, check):
    """64 tags in flight at once, launched by four threads in different orders on every peer, waited for by others."""
    buffers = [share(check.me, 1009, DataType.FLOAT) for _ in range(64)]
    works = [None] * 64
    all_in_flight = threading.Barrier(4)
    failures = []

    def launch(thread):
        try:
            tags = random.Random(100 * check.me + thread).sample(range(thread, 64, 4), 16)
            for tag in tags:
                works[tag] = it.all_reduce(buffers[tag], op="sum", tag=tag, async_op=True)
            all_in_flight.wait(PATIENCE_S)
            for tag in range((thread + 1) % 4, 64, 4):
                works[tag].wait(PATIENCE_S)
        except BaseException as error:
            failures.append(error)
            all_in_flight.abort()

    threads = [threading.Thread(target=launch, args=(each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    pending = it.are_peers_pending()  # allowed while collectives run
    for thread in threads:
        thread.join(PATIENCE_S)
    if failures:
        raise failures[0]
    assert not pending
    for tag in range(64):
        check.result(buffers[tag], DataType.FLOAT, ReduceOp.SUM, works[tag].result())


def many_with_pccls_retry(it, check):
    """A list of descriptors, as scripts written for PCCL pass it."""
    buffers = [share(check.me, 100 + number, DataType.DOUBLE) for number in range(12)]
    descriptors = [
        ReduceOpDescriptor.from_numpy(
            send=values,
            recv=values,
            reduce_descriptor=ReduceDescriptor(
                count=values.size,
                op=ReduceOp.AVG,
                tag=tag,
                operand_descriptor=ReduceOperandDescriptor(DataType.DOUBLE),
                quantization_options=QuantizationOptions(DataType.DOUBLE, QuantizationAlgorithm.NONE),
            ),
        )
        for tag, values in enumerate(buffers)
    ]
    info = it.all_reduce_multiple_with_retry(descriptors, max_in_flight=1 + check.me)
    assert info.local_world_size == check.peers
    for values in buffers:
        check.result(values, DataType.DOUBLE, ReduceOp.AVG)


def one_transaction(it, check):
    """Tensors of all types as one, sync and async, and a single one."""
    for op, async_op in itertools.product(ReduceOp, (False, True)):
        tensors = [(dtype, share(check.me, count, dtype)) for dtype in DataType for count in SHORT]
        arrays = [as_tensor(values, dtype) for dtype, values in tensors]
        told = it.all_reduce_many(arrays, op=op, tag=5, async_op=async_op)
        info = told.wait(PATIENCE_S) if async_op else told
        for dtype, values in tensors:
            check.result(values, dtype, op, info)
    alone = share(check.me, 77, DataType.INT32)
    check.result(alone, DataType.INT32, ReduceOp.MAX, it.all_reduce_many([alone], op="max"))


def plain_buffers(it, check):
    """What needs neither numpy nor torch."""
    numbers = array.array("d", share(check.me, 9, DataType.DOUBLE).tolist())
    it.all_reduce(numbers)
    check.result(np.array(numbers), DataType.DOUBLE, ReduceOp.SUM)
    send, recv = bytes(share(check.me, 9, DataType.UINT8)), bytearray(9)
    it.all_reduce(send, recv, op=ReduceOp.PROD)
    check.result(np.frombuffer(recv, np.uint8), DataType.UINT8, ReduceOp.PROD)


def other_kinds(it, check):
    """Broadcast, all-gather and reduce-scatter, whose results depend on who has which rank."""
    numbers = it.all_gather(np.array([check.me], np.int64))
    by_rank = numbers.output[:, 0].tolist()
    assert sorted(by_rank) == list(range(check.peers))
    assert by_rank[numbers.info.peers.index(it.peer_id)] == check.me
    for dtype, count in itertools.product((DataType.FLOAT, DataType.BFLOAT16, DataType.INT8), (*COUNTS, 300_007)):
        mine = share(check.me, count, dtype)
        gathered = it.all_gather(as_tensor(mine, dtype), async_op=True).shares(PATIENCE_S)
        wanted = b"".join(share(number, count, dtype).tobytes() for number in by_rank)
        assert bytes(memoryview(gathered.output).cast("B") if count else b"") == wanted
        part = it.reduce_scatter(as_tensor(mine, dtype), op="avg")
        whole = expected(check.peers, count, dtype, ReduceOp.AVG)
        assert bytes(memoryview(part.output).cast("B") if len(part.span) else b"") == (
            whole[part.span.start : part.span.stop].tobytes()
        )
        assert mine.tobytes() == share(check.me, count, dtype).tobytes(), "an input was written"
        for root, number in enumerate(by_rank):
            spread = share(check.me, count, dtype)
            it.broadcast(as_tensor(spread, dtype), root if root % 2 else it.ring[root])
            assert spread.tobytes() == share(number, count, dtype).tobytes()
            check.reduced += 1


SCENES = (
    one_by_one,
    launched,
    launched_as_in_pccl,
    sixty_four_from_threads,
    many_with_pccls_retry,
    one_transaction,
    plain_buffers,
    other_kinds,
)


def conform(communicator, me, peers):
    """All of it, as the peer with this number among so many."""
    check = Check(me, peers)
    for scene in SCENES:
        scene(communicator, check)
    return check.facts()
