"""One call of a user as one or several collectives that commit together, tried again if that was asked for.

Owns the life of a call between its launch and its end: the offer of its buffers, its attempts, the joint decision, the
delivery of the result. Must not know how anything is decided or sent.

Why several collectives need no vote of their own: the outcome of each is the same on every peer that lives, so whatever
all peers compute from the outcomes alone is the same everywhere, too. A transaction commits when each of its parts is
committed among the same peers. Until then all results lie in memory of our own, and no tensor has been touched.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pccl.api.retries import Retry
from pccl.core.effects.peer_effects import Answer, Committed, Failure, FailureKind
from pccl.core.effects.peer_events import CallCollective
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.offers import Offers
from pccl.dataplane.tensors.buffers import Buffers, Feedback, Tensor
from pccl.errors import PCCLError, UsageError, to_exception
from pccl.types import PeerId, ReduceInfo, count_peers

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
    stage: Callable[[], object] | None = None
    """Copies the input to where the parts have it, before the vote; None when it is there already."""
    deliver: Callable[[], object] | None = None
    """Copies the result to where it belongs; None when it is there already."""
    deliver_at_once: bool = False
    """It takes less time than to wake another thread for it."""
    rows: Callable[[tuple[PeerId, ...]], tuple[Any, ...]] | None = None
    """What each of these peers brought to the part that gathers, if there is one."""
    release: Callable[[], object] | None = None
    """Frees what was needed for it; called once, at the end."""


class Peerage(Protocol):
    """What a transaction needs of a membership."""

    @property
    def offers(self) -> Offers:
        """Where the data plane finds buffers."""

    def submit(self, request: CallCollective, answered: Callable[[Answer], None]) -> list[int]:
        """Make a call; `answered` is called exactly once, in the control thread or, after its end, in this one. Gives a
        list that will hold the call's number."""

    def expire(self, calls: Sequence[list[int]]) -> None:
        """Take back the votes of these calls if none of them has started; then they are answered soon."""

    def forget(self, transaction: "Transaction", outcome: ReduceInfo | BaseException | None = None) -> None:
        """It is over, with this outcome if it had begun."""

    def note_retry(self, retry: Retry) -> None:
        """It is about to be tried again; called in any thread."""

    @property
    def waiting(self) -> str:
        """What the master says our calls wait for."""

    @property
    def group_size(self) -> int:
        """Peers of our group at present."""


class Transaction:
    """Once begun it goes on to its end by itself, whether or not a thread waits for `outcome`."""

    def __init__(self, order: Order, membership: Peerage) -> None:
        self.order = order
        self.outcome: Future[ReduceInfo] = Future()
        self._membership = membership
        self._began_at = time.monotonic()
        self._sent_bytes = self._received_bytes = self._repeated_bytes = 0
        self._attempts = 0
        self._fruitless = 0
        self._unanswered: list[Part] = []
        self._calls: list[list[int]] = []
        """Of the present attempt, once all of it is submitted."""
        self._trying: Sequence[Part] = ()
        """Its parts, in the same order."""
        self._timeout_s: float | None = None
        """How much time there was, once it is over."""
        self._unstaged = order.stage
        """What is left to do before a vote."""
        self._flaw: Exception | None = None
        """Why that failed, if it did."""
        self.output: Tensor | None = None
        """Where the result of a call with one part is, once that is committed."""
        self._answering = threading.Lock()
        """Answers come in the control thread, and at its end also in the one that submits."""

    def begin(self) -> None:
        """Offer the buffers, and vote once the input is in them. Raises `UsageError` if they cannot be offered; then
        nothing has happened."""
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
        if self._unstaged is None:
            self._try(list(self.order.parts))
        else:
            _in_thread("pccl-stage", lambda: self._guarded(lambda: self._try(list(self.order.parts))))

    def info(self, peers: Committed | None = None) -> ReduceInfo:
        """What is known so far."""
        ring = peers.ring if peers is not None else ()
        size = len(ring) or self._membership.group_size
        seconds = time.monotonic() - self._began_at
        pending = peers is not None and peers.pending
        moved = (self._sent_bytes, self._received_bytes)
        lanes = 0 if peers is None else peers.lanes
        told = (size, *moved, ring, seconds, self._attempts, pending)
        return ReduceInfo(*told, lanes=lanes, repeated_bytes=self._repeated_bytes)

    def expire(self, timeout_s: float) -> None:
        """The time that its caller gave it to start is over. What has not started ends: `outcome` follows soon."""
        self._timeout_s = timeout_s
        self._withdraw()

    def _withdraw(self) -> None:
        """Not if a part is committed or has started: the other peers count on the rest, which will start like it."""
        with self._answering:
            calls = self._calls if len(self._unanswered) == len(self.order.parts) else []
        if calls:
            self._membership.expire(calls)

    @property
    def waiting(self) -> str:
        """What it waits for, in the master's words, which are none about short waits."""
        return self._membership.waiting

    # ── an attempt ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _stage(self) -> None:
        """Bring the input to where the data plane expects it. If that fails the vote is cast all the same: the other
        peers wait for it, and an attempt that cannot begin here ends the collective for all of them."""
        if self._unstaged is None:
            return
        try:
            self._unstaged()
            self._unstaged = self._flaw = None
        except Exception as error:  # whatever a device raises
            self._flaw = error
        flaw = "" if self._flaw is None else f"its tensors cannot be read: {_first_line(self._flaw)}"
        for part in self.order.parts:
            self._membership.offers.spoil(part.tag, flaw)

    def _try(self, parts: list[Part]) -> None:
        self._stage()
        self._attempts += 1
        # Complete before the first is submitted: its answer may be here at once.
        self._unanswered, self._calls, self._trying = list(parts), [], parts
        submit = self._membership.submit
        self._calls = [submit(CallCollective(part.tag, part.spec), partial(self._answered, part)) for part in parts]
        if self._timeout_s is not None:
            self._withdraw()  # Its time ended while the last attempt did.
        if any(_mismatched(part.answer) for part in parts):
            self._withdraw_rest()

    def _answered(self, part: Part, answer: Answer) -> None:
        with self._answering:
            part.answer = answer
            self._unanswered.remove(part)
            last = not self._unanswered
        if last:
            self._hand_over()
        elif _mismatched(answer):
            self._withdraw_rest()

    def _withdraw_rest(self) -> None:
        """Peers have called different things, and the others may not have called what is left at all."""
        with self._answering:
            calls = [call for part, call in zip(self._trying, self._calls, strict=False) if part in self._unanswered]
        for call in calls:
            self._membership.expire([call])

    def _hand_over(self) -> None:
        """What comes now may copy much memory or wait for a device, and the control thread has other things to do."""
        committed = all(isinstance(part.answer, Committed) for part in self.order.parts)
        at_once = self.order.deliver is None or self.order.deliver_at_once
        offers = self._membership.offers
        if committed and at_once and all(offers.commits_at_once(part.tag) for part in self.order.parts):
            self._conclude()
            return
        _in_thread("pccl-settle", self._conclude)

    def _conclude(self) -> None:
        self._guarded(self._settle, self._decide)

    def _guarded(self, *steps: Callable[[], object]) -> None:
        try:
            for step in steps:
                step()
        except BaseException as error:  # threads that wait must get it, whatever it is
            self._end(error)

    def _settle(self) -> None:
        """Keep results, put inputs back."""
        for part in self.order.parts:
            moved = self._membership.offers.settle(part.tag, isinstance(part.answer, Committed))
            part.output = moved.output or part.output
            self._sent_bytes += moved.sent_bytes
            self._received_bytes += moved.received_bytes
            self._repeated_bytes += moved.repeated_bytes

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
        self._deliver(count_peers(len(latest.ring)))
        info = self.info(latest)
        self._end(info if self.order.rows is None else info._replace(gathered=self.order.rows(latest.ring)))

    def _deliver(self, peers: str) -> None:
        if self.order.deliver is None:
            return
        try:
            self.order.deliver()
        except Exception as error:  # whatever a device raises
            raise PCCLError(
                f"{self.order.call} tag {self.order.tag} was committed by {peers}, but its result could not be written "
                f"to this peer's tensors: {_first_line(error)}. The others have it: call sync_shared_state before you "
                "go on, or build a new Communicator"
            ) from error

    def _redo(self, stale: list[Part], latest: Committed) -> None:
        """Some were committed before a peer was lost, and some after: those before must be made again without it."""
        lost = {peer for part in stale if isinstance(part.answer, Committed) for peer in part.answer.ring}
        gone = tuple(sorted(lost - set(latest.ring)))
        if self.order.retry:
            self._retry(stale, f"a peer was lost between its parts, {count_peers(len(latest.ring))} left", gone)
            return
        reason = (
            f"{self.order.call} tag {self.order.tag} was aborted: a peer was lost between its parts. Its tensors are "
            f"as they were and the group is rewired with {count_peers(len(latest.ring))}: call it again"
        )
        self._end(to_exception(Failure(FailureKind.ABORTED, reason, self.order.tag, gone)))

    def _fail_or_retry(self, failed: list[Part]) -> None:
        failures = [part.answer for part in failed if isinstance(part.answer, Failure)]
        final = [failure for failure in failures if failure.kind is not FailureKind.ABORTED]
        if final:
            told = next(filter(_mismatched, final), final[0])
            self._end(to_exception(self._reworded(told)))
            return
        lost = any(failure.lost for failure in failures)
        self._fruitless = 0 if lost else self._fruitless + 1
        # Once a part is committed the other peers try the rest again until it is, too, and so must this one.
        in_time = self._timeout_s is None or len(failed) < len(self.order.parts)
        if self.order.retry and self._fruitless < FRUITLESS_MAX and in_time:
            self._retry(failed, failures[0].reason, failures[0].lost)
        else:
            self._end(to_exception(self._reworded(failures[0])))

    def _reworded(self, failure: Failure) -> Failure:
        """The same in terms of the call that the user made."""
        reason = f"{self.order.call} tag {self.order.tag}: {failure.reason}"
        if failure.kind is FailureKind.TIMED_OUT:
            reason = (
                f"{self.order.call} tag {self.order.tag} had not started after {self._timeout_s:g} s: "
                f"{failure.reason}. Its vote is taken back and its tensors are as they were: call it again"
            )
        return Failure(failure.kind, reason, self.order.tag, failure.lost)

    def _retry(self, parts: list[Part], reason: str, lost: tuple[PeerId, ...]) -> None:
        self._membership.note_retry(Retry(self.order.call, self.order.tag, self._attempts + 1, reason, lost))
        self._try(parts)

    def _end(self, outcome: ReduceInfo | BaseException) -> None:
        order = self.order
        for part in order.parts:
            self._membership.offers.withdraw(part.tag)
            self.output = part.output
        if order.release is not None:
            order.release()
        self._membership.forget(self, outcome)
        # What waits for this may be kept for long; tensors and copies must not be kept with it.
        self.order, self._unstaged = Order(order.call, order.tag, ()), None
        if isinstance(outcome, BaseException) and self._flaw is not None:
            outcome.__cause__ = self._flaw
        if isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


def _in_thread(name: str, work: Callable[[], object]) -> None:
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:  # the interpreter is about to end and starts no more threads
        work()


def _mismatched(answer: Answer) -> bool:
    return isinstance(answer, Failure) and answer.kind is FailureKind.MISMATCH


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
