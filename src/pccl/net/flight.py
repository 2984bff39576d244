"""The flight record: the last collectives of a peer, each with its times, for whom it waited and how it ended.

Owns the record, and its clock. Must not know what a collective is for, nor why it ends as it does.
"""

import threading
import time
from collections import deque

from msgspec import Struct, structs

from pccl.core.effects.peer_effects import Answer, Committed, Failure
from pccl.core.effects.peer_events import CallCollective, Request
from pccl.core.fields import CollectiveSpec
from pccl.core.names import Names
from pccl.types import PeerId, tag_name

KEPT = 256
"""As NCCL's flight recorder: a few steps of a model with many tensors, and some hundred bytes each."""


class Flight(Struct, frozen=True):
    """One collective of this peer, from its vote to its end."""

    tag: int
    spec: CollectiveSpec
    """Its parameters."""
    began_unix_s: float
    """The clock of this machine when it was called."""
    stage: str = "waits for votes"
    """Then `runs`, and at last `committed`, or the kind of its failure."""
    waited_s: float | None = None
    """From the call to the start; None while there is none."""
    waited_for: str = ""
    """The peer whose vote was the last; empty if it was our own, or is not known."""
    waited_for_name: str = ""
    seconds: float | None = None
    """From the call to the end; None while there is none."""
    peers: int = 0
    epoch: int = 0
    attempt: int = 0
    reason: str = ""
    """Why it failed."""

    @property
    def what(self) -> str:
        """Its parameters in words, such as `ALL_REDUCE 1000 x FLOAT SUM codec=none`."""
        return str(self.spec)

    def __str__(self) -> str:
        waited = "" if self.waited_s is None else f", waited {self.waited_s:.3f} s"
        whom = f" for {self.waited_for_name or self.waited_for[:8]}" if self.waited_for and waited else ""
        took = "" if self.seconds is None else f", {self.seconds:.3f} s in all"
        reason = f": {self.reason}" if self.reason else ""
        return f"{tag_name(self.tag)} {self.what}: {self.stage}{waited}{whom}{took}{reason}"


class _Open(Struct):
    """One that is not over: what is known of it so far. A `Flight` is made of it once, since a thousand of them may end
    in a second."""

    request: CallCollective
    began_unix_s: float
    since: float
    waited_s: float | None = None
    attempt: int = 0

    def flight(self) -> Flight:
        """As it stands."""
        stage = "waits for votes" if self.waited_s is None else "runs"
        request = self.request
        return Flight(request.tag, request.spec, self.began_unix_s, stage, self.waited_s, attempt=self.attempt)


class FlightRecorder:
    """The record of one peer. Written by its control thread, read by any."""

    def __init__(self, me: PeerId, names: Names) -> None:
        self._me = me
        self._names = names
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}
        """By call."""
        self._over: deque[Flight] = deque(maxlen=KEPT)

    def called(self, call: int, request: Request, now: float) -> None:
        """A call was made."""
        if isinstance(request, CallCollective):
            with self._lock:
                self._open[call] = _Open(request, time.time(), now)

    def started(self, call: int, attempt: int, now: float) -> None:
        """Every vote is in."""
        with self._lock:
            if (flight := self._open.get(call)) is not None:
                flight.waited_s, flight.attempt = now - flight.since, attempt

    def ended(self, call: int, answer: Answer, now: float) -> None:
        """A call was answered."""
        with self._lock:
            if (flight := self._open.pop(call, None)) is not None:
                self._over.append(self._described(flight, answer, now - flight.since))

    def _described(self, flight: _Open, answer: Answer, seconds: float) -> Flight:
        match answer:
            case Committed(ring=ring, epoch=epoch, last=last):
                whom = "" if last == self._me else last
                return Flight(
                    flight.request.tag,
                    flight.request.spec,
                    flight.began_unix_s,
                    "committed",
                    flight.waited_s,
                    whom,
                    self._names.name(PeerId(whom)),
                    seconds,
                    len(ring),
                    epoch,
                    flight.attempt,
                )
            case Failure(kind=kind, reason=reason):
                return structs.replace(flight.flight(), stage=kind.value, seconds=seconds, reason=reason)
        return structs.replace(flight.flight(), seconds=seconds)

    def record(self) -> tuple[Flight, ...]:
        """The latest last: those that are over, then those that are open."""
        with self._lock:
            return (*self._over, *(each.flight() for each in self._open.values()))[-KEPT:]

    def last(self, tag: int) -> Flight | None:
        """The latest with this tag that is over."""
        with self._lock:
            return next((flight for flight in reversed(self._over) if flight.tag == tag), None)
