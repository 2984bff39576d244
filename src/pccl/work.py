"""What a launched collective is to its user: something to wait for.

Owns the two handles: `Work`, and `AsyncReduceHandle` for scripts written for PCCL. Must not know how a collective
comes to its end.
"""

import os

from pccl.errors import PCCLError, UsageError
from pccl.transaction import Transaction
from pccl.types import ReduceInfo, Result


class Work:
    """A collective that was launched. It goes on whether or not anybody waits, and keeps its tensors alive; they are
    yours again when it is done. Any thread may wait, and several may."""

    def __init__(self, transaction: Transaction, communicator: object) -> None:
        self._transaction = transaction
        self._communicator = communicator
        """Kept: a Communicator that nobody holds leaves the run, and this would fail."""
        self._process = os.getpid()

    def wait(self, timeout: float | None = None) -> ReduceInfo:
        """Wait for the end, and tell what it was or raise why there is no result.

        When `timeout` seconds were not enough it raises `TimeoutError`, and the collective goes on: wait again."""
        if self._process != os.getpid():
            raise UsageError("wait: this Work belongs to the process that launched it, not to its forked children")
        outcome = self._transaction.outcome
        try:
            return outcome.result(timeout)
        except TimeoutError:
            if outcome.done():
                raise
            raise TimeoutError(self._unfinished(f"is not finished after {timeout:g} s")) from None

    def done(self) -> bool:
        """It has ended, with a result or without. Never waits."""
        return self._transaction.outcome.done()

    def result(self) -> ReduceInfo:
        """Like `wait`, but never waits: raises `UsageError` while it is not done."""
        if not self.done():
            raise UsageError(f"result: {self._unfinished('is not finished')}")
        return self.wait()

    def settled(self) -> None:
        """Wait until the tensors are free again, whatever came of it."""
        self._transaction.outcome.exception()

    def _unfinished(self, state: str) -> str:
        order, waiting = self._transaction.order, self._transaction.waiting
        reason = f" The master says: {waiting}." if waiting else ""
        return f"{order.call} tag {order.tag} {state}.{reason} It goes on, so wait again, or close the Communicator"


class AsyncReduceHandle:
    """What `all_reduce_async` returns, as in PCCL. It keeps its tensors alive."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def wait(self) -> tuple[bool, int, ReduceInfo]:
        """Wait for the end: success, result code, and what it was. Raises nothing, and may be called again. After a
        failure the input is as it was and the group is rewired, so that the same call can be made again."""
        try:
            return True, Result.SUCCESS, self._work.wait()
        except PCCLError as error:
            return False, error.result, self._work._transaction.info()
