"""The calls that a step of a stress drill is made of, each checked to the last bit.

Owns what is called. All peers make the same calls in a step, drawn from the seed and the step's number; in which order
a peer launches what runs side by side is its own affair. A new call is a function here and a line in `CALLS`.
"""

import time
from collections.abc import Callable, Sequence

from pccl import (
    Attribute,
    CallMismatch,
    CollectiveAborted,
    Communicator,
    DataType,
    PeerId,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceInfo,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    TooFewPeers,
    Work,
)
from tests.stress.caller import LARGE_BYTES, SMALL_BYTES_MAX, TRIES_MAX, Caller, Report
from tests.stress.values import Array, Tensor, Wrong, whole_numbers

AGREE, SMALL, LARGE, MANY, PCCL, GATHER, SCATTER, BROADCAST, FLIGHT, MULTIPLE = 0, 1, 2, 3, 4, 5, 6, 7, 10, 30
"""Tags, the first of a few where several are in flight. The same in every step: tags are there to be used again."""

DATA_TYPES = {"float32": DataType.FLOAT, "int64": DataType.INT64, "float64": DataType.DOUBLE}


def do_step(it: Caller) -> None:
    """One small call and two of the others."""
    for kind in ("small", *it.draw.sample([kind for kind in CALLS if kind != "small"], 2)):
        it.report("at", phase=kind, step=it.step)
        CALLS[kind](it)


def agree(communicator: Communicator, step: int, founder: int, report: Report) -> int:
    """The step that is next, which a newcomer (`step` 0) learns from the others; `founder` if all are newcomers."""
    numbers = whole_numbers(step, founder)
    try:
        communicator.all_reduce(numbers, op=ReduceOp.MAX, tag=AGREE, retry=True)
    except TooFewPeers:
        report("alone")
    known, otherwise = numbers.tolist()
    return int(known or otherwise)


# ── one tensor ───────────────────────────────────────────────────────────────────────────────────────────────────────


def small(it: Caller) -> None:
    """Travels with its vote."""
    _reduce(it, "small", it.tensor(SMALL, 0, SMALL_BYTES_MAX))


def large(it: Caller) -> None:
    """Goes around the ring."""
    _reduce(it, "large", it.tensor(LARGE, *LARGE_BYTES))


def _reduce(it: Caller, kind: str, tensor: Tensor) -> None:
    """In place or not is a peer's own affair; who tries again, the library or a loop here, is not."""
    retry, in_place = it.draw.random() < 0.5, it.own.random() < 0.5
    send = tensor.of(it.me)
    recv = send if in_place else send * 0

    def call() -> ReduceInfo:
        return it.communicator.all_reduce(send, recv, tag=tensor.tag, retry=retry)

    done = it.insist(kind, call, lambda: tensor.check_intact(send, it.me))
    if done is None:
        return
    info, aborted = done
    it.hidden(kind, info)
    if not in_place:
        tensor.check_intact(send, it.me)
    tensor.check_sum(recv, info.peers)
    it.committed(kind, tensor.tag, [recv], info._replace(attempts=info.attempts + aborted))


def as_in_pccl(it: Caller) -> None:
    """A retry loop as scripts written for PCCL have it: result codes instead of exceptions."""
    kind, tensor = "as in PCCL", it.any_tensor(PCCL)
    send = tensor.of(it.me)
    recv = send * 0
    attempt = 0
    # That this ends when no other peer is left, or when this peer is kicked, is part of what is checked.
    while it.communicator.get_attribute(Attribute.LOCAL_WORLD_SIZE) > 1:
        attempt, began = attempt + 1, time.monotonic()
        # Nor does a launch raise when the others were lost after that look.
        ok, status, info = it.communicator.all_reduce_async(send, recv, tag=PCCL).wait()
        tensor.check_intact(send, it.me)
        if ok:
            tensor.check_sum(recv, info.peers)
            it.committed(kind, PCCL, [recv], info._replace(attempts=attempt))
            return
        if status not in (Result.RANK_CONNECTION_LOST, Result.TOO_FEW_PEERS):
            raise Wrong(f"{tensor}: the result code is {Result(status).name}")
        if attempt == TRIES_MAX:
            raise Wrong(f"{tensor}: aborted {TRIES_MAX} times")
        it.report("aborted", kind=kind, seconds=time.monotonic() - began)
    it.report("alone")


# ── many tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────


def many(it: Caller) -> None:
    """One transaction over tensors of several types."""
    retry, at_once = it.draw.random() < 0.7, it.own.random() < 0.5
    tensors = [it.any_tensor(MANY, part) for part in range(it.draw.randint(2, 5))]
    arrays = [tensor.of(it.me) for tensor in tensors]

    def call() -> ReduceInfo:
        if at_once:
            return it.communicator.all_reduce_many(arrays, tag=MANY, retry=retry)
        return it.communicator.all_reduce_many(arrays, tag=MANY, retry=retry, async_op=True).wait()

    def check() -> None:
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.check_intact(array, it.me)

    done = it.insist("many", call, check)
    if done is None:
        return
    info, aborted = done
    it.hidden("many", info)
    for tensor, array in zip(tensors, arrays, strict=True):
        tensor.check_sum(array, info.peers)
    it.committed("many", MANY, arrays, info._replace(attempts=info.attempts + aborted))


def flight(it: Caller) -> None:
    """Several at once, launched in one order and waited for in another; those that were aborted, again."""
    tensors = [it.tensor(FLIGHT, 0, LARGE_BYTES[0])]
    tensors += [it.tensor(FLIGHT + place, 0, SMALL_BYTES_MAX) for place in range(1, it.draw.randint(2, 8))]
    arrays = {tensor.tag: tensor.of(it.me) for tensor in tensors}
    for attempt in range(1, TRIES_MAX + 1):
        tensors = _fly(it, tensors, arrays, attempt)
        if not tensors:
            return
    raise Wrong(f"step {it.step}: {len(tensors)} of a flight were aborted {TRIES_MAX} times")


def _fly(it: Caller, tensors: list[Tensor], arrays: dict[int, Array], attempt: int) -> list[Tensor]:
    """Launch all of them; those that must be launched again."""
    launched: list[tuple[Tensor, Work | None]] = []
    for tensor in it.shuffled(tensors):
        try:
            launched.append((tensor, it.communicator.all_reduce(arrays[tensor.tag], tag=tensor.tag, async_op=True)))
        except TooFewPeers:
            launched.append((tensor, None))
    aborted = []
    for tensor, work in it.shuffled(launched):
        array = arrays[tensor.tag]
        try:
            info = work.wait() if work is not None else None
        except CollectiveAborted as error:
            it.report("aborted", kind="flight", reason=str(error))
            aborted.append(tensor)
            info = None
        except TooFewPeers:
            info = None
        if info is None:
            tensor.check_intact(array, it.me)
        else:
            tensor.check_sum(array, info.peers)
            it.committed("flight", tensor.tag, [array], info._replace(attempts=attempt))
    return sorted(aborted, key=lambda tensor: tensor.tag)


def multiple(it: Caller) -> None:
    """PCCL's call for several, each of which commits on its own: who contributed to which shows in the sums."""
    places = range(it.draw.randint(2, 6))
    # Two elements or more: one alone does not tell whose it is the sum of.
    tensors = [it.tensor(MULTIPLE + place, 16, 4 * SMALL_BYTES_MAX) for place in places]
    arrays = [tensor.of(it.me) for tensor in tensors]
    before = it.communicator.ring
    orders = [_described(tensor, array) for tensor, array in zip(tensors, arrays, strict=True)]
    try:
        info = it.communicator.all_reduce_multiple_with_retry(orders, max_in_flight=3)
    except TooFewPeers:
        # Some may have been reduced before the others were lost: PCCL's call does not say which.
        it.report("alone")
        return
    for tensor, array in zip(tensors, arrays, strict=True):
        peers = _contributors(tensor, array, before, set(it.communicator.ring))
        tensor.check_sum(array, peers)
        it.committed("multiple", tensor.tag, [array], info._replace(peers=peers, attempts=0))


def _described(tensor: Tensor, array: Array) -> ReduceOpDescriptor:
    dtype = DATA_TYPES[tensor.dtype]
    plain = QuantizationOptions(dtype, QuantizationAlgorithm.NONE)
    descriptor = ReduceDescriptor(tensor.count, ReduceOp.SUM, tensor.tag, ReduceOperandDescriptor(dtype), plain)
    return ReduceOpDescriptor.from_numpy(array, array, descriptor)


def _contributors(tensor: Tensor, array: Array, peers: Sequence[PeerId], certain: set[PeerId]) -> tuple[PeerId, ...]:
    """Those of these peers whose contributions add up to this, among them those that are still here, and so must have
    contributed. The first elements tell: the rest is checked later."""
    first = Tensor(tensor.step, tensor.tag, tensor.part, min(tensor.count, 4), tensor.dtype)
    for chosen in range(2 ** len(peers) - 1, 0, -1):
        some = tuple(peer for place, peer in enumerate(peers) if chosen >> place & 1)
        if len(some) > 1 and certain <= {*some} and (first.sum_of(some) == array[: first.count]).all():
            return some
    raise Wrong(f"{tensor}: {array[: first.count]} is the sum of no two or more of {len(peers)} peers")


# ── other kinds ──────────────────────────────────────────────────────────────────────────────────────────────────────


def gather(it: Caller) -> None:
    """Every peer gets the tensors of all peers."""
    tensor, retry = it.any_tensor(GATHER), it.draw.random() < 0.5
    array = tensor.of(it.me)
    done = it.insist(
        "gather",
        lambda: it.communicator.all_gather(array, tag=GATHER, retry=retry),
        lambda: tensor.check_intact(array, it.me),
    )
    if done is None:
        return
    shares, aborted = done
    it.hidden("gather", shares.info)
    tensor.check_intact(array, it.me)
    for peer, theirs in zip(shares.info.peers, shares.output, strict=True):
        tensor.check_sum(theirs, [peer])
    it.committed("gather", GATHER, [shares.output], shares.info._replace(attempts=shares.info.attempts + aborted))


def scatter(it: Caller) -> None:
    """Every peer gets a part of the sum: there is nothing to compare but the contributors."""
    tensor, retry = it.any_tensor(SCATTER), it.draw.random() < 0.5
    array = tensor.of(it.me)
    done = it.insist(
        "scatter",
        lambda: it.communicator.reduce_scatter(array, tag=SCATTER, retry=retry),
        lambda: tensor.check_intact(array, it.me),
    )
    if done is None:
        return
    shares, aborted = done
    it.hidden("scatter", shares.info)
    tensor.check_intact(array, it.me)
    tensor.check_sum(shares.output, shares.info.peers, shares.span)
    it.committed("scatter", SCATTER, [], shares.info._replace(attempts=shares.info.attempts + aborted))


def broadcast(it: Caller) -> None:
    """Every peer gets the root's tensor. When the root is lost another is named: all peers know the same ring by the
    time that a call fails, though perhaps not yet when they first make it."""
    tensor = it.any_tensor(BROADCAST)
    array, root = tensor.of(it.me), it.me

    def call() -> ReduceInfo:
        nonlocal root
        root = min(it.communicator.ring, key=lambda peer: tensor.share(peer))
        return it.communicator.broadcast(array, root, tag=BROADCAST)

    again = CollectiveAborted, CallMismatch
    done = it.insist("broadcast", call, lambda: tensor.check_intact(array, it.me), again)
    if done is not None:
        tensor.check_sum(array, [root])
        it.committed("broadcast", BROADCAST, [array], done[0])


CALLS: dict[str, Callable[[Caller], None]] = {
    "small": small,
    "large": large,
    "as in PCCL": as_in_pccl,
    "many": many,
    "flight": flight,
    "multiple": multiple,
    "gather": gather,
    "scatter": scatter,
    "broadcast": broadcast,
}
"""By the names that the report uses."""
