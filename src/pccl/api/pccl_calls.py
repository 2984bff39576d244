"""Calls of a Communicator that exist so that scripts written for PCCL run unchanged.

Owns their form, which is PCCL's; what they do is done as in `collectives`. Here and not in `compat`, which knows no
communicators.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pccl.api.calls import Op, Options, of_descriptor, of_tensor, operation, total
from pccl.api.connected import Connected
from pccl.api.work import Work
from pccl.arguments import choice
from pccl.compat.descriptors import QuantizationOptions, ReduceOpDescriptor, ReduceOperandDescriptor, described
from pccl.dataplane.tensors.device import operands
from pccl.errors import PCCLError, UsageError
from pccl.types import Attribute, ReduceInfo, ReduceOp, Result


class AsyncReduceHandle:
    """What `all_reduce_async` returns, as in PCCL. It keeps its tensors alive."""

    def __init__(self, work: Work, on_failure: Callable[[], None] = lambda: None) -> None:
        self._work = work
        self._on_failure = on_failure
        self.error: Exception | None = None
        """Why it failed, after `wait` has said that it did."""

    def wait(self) -> tuple[bool, int, ReduceInfo]:
        """Wait for the end: success, result code, and what it was. Raises nothing, and may be called again. After a
        failure the input is as it was and the group is rewired, so that the same call can be made again."""
        try:
            return True, Result.SUCCESS, self._work.wait()
        except Exception as error:
            self.error = error
            self._on_failure()
            result = error.result if isinstance(error, PCCLError) else Result.INTERNAL_ERROR
            return False, result, self._work._transaction.info()


class PcclCalls(Connected):
    """What PCCL has and we would have otherwise."""

    def all_reduce_async(
        self,
        send: Any,
        recv: Any = None,
        *,
        op: Op = ReduceOp.SUM,
        tag: int = 0,
        operand_descriptor: ReduceOperandDescriptor | None = None,
        quantization_options: QuantizationOptions | None = None,
    ) -> AsyncReduceHandle:
        """PCCL's form of `all_reduce` with `async_op`: its handle does not raise, but returns a result code.

        In PCCL the size of a group changes only in `connect`, `update_topology` and a collective that fails: after a
        size above one a launch does not raise. Here peers are lost at any time, also between the size that a script
        reads and its launch: that gives a handle that has failed. Only where this peer was alone after the last such
        call it raises `TooFewPeers` at once, as in PCCL."""
        call, membership = "all_reduce_async", self._connected("all_reduce_async")
        tensors = operands(send, send if recv is None else recv, call, self._staging)
        codec = described(operand_descriptor, quantization_options, tensors.buffers.send.dtype, call)
        order = of_tensor(call, tag, operation(op, call), tensors, Options(codec=codec))
        work = Work(membership.launch(order, may_be_alone=self._known_size > 1), self)
        return AsyncReduceHandle(work, self._learn_size)

    def all_reduce_multiple_with_retry(
        self, descriptors: Sequence[ReduceOpDescriptor], *, max_in_flight: int = 4
    ) -> ReduceInfo:
        """Reduce all of these, each by itself, at most `max_in_flight` at a time, and again those that were aborted.

        As in PCCL each commits on its own, so that two of them may be reduced among different peers when one is lost
        in between; `all_reduce_many` has them all or none. Raises `TooFewPeers` when no other peer is left."""
        call = "all_reduce_multiple_with_retry"
        membership = self._connected(call)
        if max_in_flight < 1:
            raise UsageError(f"{call}: max_in_flight must be at least 1, got {max_in_flight}", Result.INVALID_ARGUMENT)
        orders = [of_descriptor(call, each, self._staging) for each in descriptors]
        works: list[Work] = []
        try:
            for number, order in enumerate(orders):
                if number >= max_in_flight:
                    works[number - max_in_flight].wait()
                works.append(Work(membership.launch(order), self))
            infos = [work.wait() for work in works]
        finally:
            # Whatever happened, all tensors are the caller's again when this returns.
            for work in works:
                work.settled()
        return total(infos, membership.group_size)

    def get_attribute(self, attribute: Attribute) -> int:
        """A size of the run, as of the latest epoch; 1 once this peer is kicked or has lost its master for good. Never
        waits."""
        sizes = self._connected("get_attribute").core.sizes
        match choice(Attribute, attribute, "get_attribute: attribute"):
            case Attribute.GLOBAL_WORLD_SIZE:
                return sizes.global_size
            case Attribute.LOCAL_WORLD_SIZE:
                return sizes.group_size
            case Attribute.NUM_DISTINCT_PEER_GROUPS:
                return sizes.groups
            case Attribute.LARGEST_PEER_GROUP_WORLD_SIZE:
                return sizes.largest_group
