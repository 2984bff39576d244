"""One call of a user as one or several collectives that commit together, tried again if that was asked for.

Owns the life of a call between its launch and its end: the offer of its buffers, its attempts, the joint decision, the
delivery of the result. Must not know how anything is decided or sent.

Why several collectives need no vote of their own: the outcome of each is the same on every peer that lives, so whatever
all peers compute from the outcomes alone is the same everywhere, too. A transaction commits when each of its parts is
committed among the same peers. Until then all results lie in memory of our own, and no tensor has been touched.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pccl.core.effects import Answer, Collective, Committed, Failure, FailureKind
from pccl.core.messages import CollectiveSpec
from pccl.dataplane.buffers import Buffers, Feedback, Tensor
from pccl.dataplane.offers import Offers
from pccl.errors import UsageError, to_exception
from pccl.types import ReduceInfo

log = logging.getLogger("pccl")

FRUITLESS_MAX = 16
"""Attempts in a row that were aborted although no peer was lost, before even a patient call gives up: a link that fails
so often carries nothing. Losses of peers are not counted, there are only so many of them."""


@dataclass
class Part:
    """One collective of a transaction."""

    tag: int
    spec: CollectiveSpec
    buffers: Buffers
    lend: Callable[[], Feedback] | None = None
    """What coding has lost before, and room for what it loses now. Asked for once the tag is ours: until then another
    call may have it in use."""
    answer: Answer = None
    """Of its latest attempt."""
    output: Tensor | None = None
    """Where its latest result is."""


@dataclass(frozen=True)
class Order:
    """What a call wants."""

    call: str
    """Its name, for log lines and errors."""
    tag: int
    parts: Sequence[Part]
    retry: bool = False
    deliver: Callable[[], object] | None = None
    """Copies the result to where it belongs; None when it is there already."""
    deliver_at_once: bool = False
    """It takes less time than to wake another thread for it."""
    release: Callable[[], object] | None = None
    """Frees what was needed for it; called once, at the end."""


class Peerage(Protocol):
    """What a transaction needs of a membership."""

    @property
    def offers(self) -> Offers:
        """Where the data plane finds buffers."""

    def submit(self, request: Collective, answered: Callable[[Answer], None]) -> None:
        """Make a call; `answered` is called exactly once, in the control thread or, after its end, in this one."""

    def forget(self, transaction: "Transaction") -> None:
        """It is over."""

    @property
    def waiting(self) -> str:
        """What the master says our calls wait for."""

    @property
    def group_size(self) -> int:
        """Peers of our group at present."""


class Transaction:
    """Once begun it goes on to its end by itself, whether or not anybody waits for `outcome`."""

    def __init__(self, order: Order, membership: Peerage) -> None:
        self.order = order
        self.outcome: Future[ReduceInfo] = Future()
        self._membership = membership
        self._began_at = time.monotonic()
        self._sent_bytes = self._received_bytes = 0
        self._attempts = 0
        self._fruitless = 0
        self._unanswered: list[Part] = []
        self._hearing = threading.Lock()
        """Answers come in the control thread, and at its end also in the one that submits."""

    def begin(self) -> None:
        """Offer the buffers and vote. Raises `UsageError` if they cannot be offered; then nothing has happened."""
        offers, offered = self._membership.offers, []
        try:
            for part in self.order.parts:
                offers.offer(part.tag, part.buffers)
                offered.append(part.tag)
                if part.lend is not None:
                    offers.lend(part.tag, part.lend())
        except UsageError as error:
            for tag in offered:
                offers.withdraw(tag)
            raise UsageError(f"{self.order.call}: {error}", error.result) from None
        self._try(list(self.order.parts))

    def info(self, peers: Committed | None = None) -> ReduceInfo:
        """What is known so far."""
        ring = peers.ring if peers is not None else ()
        size = len(ring) or self._membership.group_size
        seconds = time.monotonic() - self._began_at
        return ReduceInfo(size, self._sent_bytes, self._received_bytes, ring, seconds, self._attempts)

    @property
    def waiting(self) -> str:
        """What it waits for, in the master's words, which are none about short waits."""
        return self._membership.waiting

    # ── an attempt ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _try(self, parts: list[Part]) -> None:
        self._attempts += 1
        # Complete before the first is submitted: its answer may be here at once.
        self._unanswered = list(parts)
        for part in parts:
            self._membership.submit(Collective(part.tag, part.spec), partial(self._heard, part))

    def _heard(self, part: Part, answer: Answer) -> None:
        with self._hearing:
            part.answer = answer
            self._unanswered.remove(part)
            last = not self._unanswered
        if last:
            self._hand_over()

    def _hand_over(self) -> None:
        """What comes now may copy much memory or wait for a device, and the control thread has other things to do."""
        committed = all(isinstance(part.answer, Committed) for part in self.order.parts)
        at_once = self.order.deliver is None or self.order.deliver_at_once
        offers = self._membership.offers
        if committed and at_once and all(offers.commits_at_once(part.tag) for part in self.order.parts):
            self._conclude()
            return
        try:
            threading.Thread(target=self._conclude, name="pccl-settle", daemon=True).start()
        except RuntimeError:  # the interpreter is about to end and starts no more threads
            self._conclude()

    def _conclude(self) -> None:
        try:
            self._settle()
            self._decide()
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            self._end(error)

    def _settle(self) -> None:
        """Keep results, put inputs back."""
        for part in self.order.parts:
            moved = self._membership.offers.settle(part.tag, isinstance(part.answer, Committed))
            part.output = moved.output or part.output
            self._sent_bytes += moved.sent_bytes
            self._received_bytes += moved.received_bytes

    # ── the decision: from outcomes alone, so that it is the same on all peers ───────────────────────────────────────

    def _decide(self) -> None:
        failed = [part for part in self.order.parts if not isinstance(part.answer, Committed)]
        if failed:
            self._fail_or_retry(failed)
            return
        answers = [part.answer for part in self.order.parts if isinstance(part.answer, Committed)]
        latest = max(answers, key=lambda answer: answer.attempt)
        peers = set(latest.ring)
        stale = [part for part, each in zip(self.order.parts, answers, strict=True) if set(each.ring) != peers]
        if stale:
            self._redo(stale, latest)
            return
        if self.order.deliver is not None:
            self.order.deliver()
        self._end(self.info(latest))

    def _redo(self, stale: list[Part], latest: Committed) -> None:
        """Some were committed before a peer was lost, and some after: those before must be made anew without it."""
        if self.order.retry:
            self._retry(stale, f"a peer was lost between its parts, {len(latest.ring)} are left")
            return
        lost = {peer for part in stale if isinstance(part.answer, Committed) for peer in part.answer.ring}
        reason = (
            f"{self.order.call} tag {self.order.tag} was aborted: a peer was lost between its parts. Its tensors are "
            f"as they were and the group is rewired with {len(latest.ring)} peers: call it again"
        )
        gone = tuple(sorted(lost - set(latest.ring)))
        self._end(to_exception(Failure(FailureKind.ABORTED, reason, self.order.tag, gone)))

    def _fail_or_retry(self, failed: list[Part]) -> None:
        failures = [part.answer for part in failed if isinstance(part.answer, Failure)]
        final = [failure for failure in failures if failure.kind is not FailureKind.ABORTED]
        if final:
            self._end(to_exception(self._told(final[0])))
            return
        lost = any(failure.lost for failure in failures)
        self._fruitless = 0 if lost else self._fruitless + 1
        if self.order.retry and self._fruitless < FRUITLESS_MAX:
            self._retry(failed, failures[0].reason)
        else:
            self._end(to_exception(self._told(failures[0])))

    def _told(self, failure: Failure) -> Failure:
        """The same in terms of the call that the user made."""
        reason = f"{self.order.call} tag {self.order.tag}: {failure.reason}"
        return Failure(failure.kind, reason, self.order.tag, failure.lost)

    def _retry(self, parts: list[Part], reason: str) -> None:
        log.warning(
            "%s tag %d, attempt %d: %s. Trying again", self.order.call, self.order.tag, self._attempts + 1, reason
        )
        self._try(parts)

    def _end(self, outcome: ReduceInfo | BaseException) -> None:
        for part in self.order.parts:
            self._membership.offers.withdraw(part.tag)
        if self.order.release is not None:
            self.order.release()
        self._membership.forget(self)
        if isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)
