"""Every call is answered once, in bounded time, with an answer that fits what was done."""

from typing import TYPE_CHECKING

from pccl.core.effects import (
    Answer,
    ArePeersPending,
    Collective,
    Committed,
    Failure,
    FailureKind,
    InSync,
    Request,
    SyncShared,
)
from pccl.core.messages import Kick, ToPeer
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.theatre import Theatre

_USER_FAULTS = (
    FailureKind.MISMATCH,
    FailureKind.USAGE,
    FailureKind.TAG_IN_USE,
    FailureKind.UNFINISHED_COLLECTIVES,
    FailureKind.PROTOCOL,
)


class AnsweredOnce(Checker):
    """Each call is answered exactly once, with an answer of its kind."""

    name = "answered once"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._open: dict[tuple[str, int], Request] = {}

    def call_made(self, host: "PeerHost", call: int, request: Request) -> None:
        self._open[host.name, call] = request

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        request = self._open.pop((host.name, call), None)
        if request is None:
            raise self.fail(f"call {call} of {host.name} is answered twice, or was never made")
        if isinstance(answer, Failure):
            return
        expected = {ArePeersPending: bool, Collective: Committed, SyncShared: InSync}.get(type(request), type(None))
        if not isinstance(answer, expected):
            raise self.fail(f"{request} of {host.name} is answered with {answer}")

    def finished(self) -> None:
        for (name, call), request in self._open.items():
            if not self.theatre.hosts_by_name[name].crashed:
                raise self.fail(f"call {call} of {name} was never answered: {request}")


class NoFalseBlame(Checker):
    """Peers that keep in step are never told that they do not; those that are told read who waits for what."""

    name = "no false blame"

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        if not isinstance(answer, Failure) or answer.kind not in _USER_FAULTS:
            return
        alone = "nobody offers" in answer.reason  # the last of a group that only wants to receive, or can do no other
        if alone and host.torn:
            return
        forced = self.theatre.plan.hostile or self.ledger.missed_a_life
        mismatched_by_force = forced and answer.kind is FailureKind.MISMATCH
        if not self.theatre.plan.strays and not mismatched_by_force:
            raise self.fail(f"{host.name} is blamed although everybody keeps in step: {answer.reason}")
        if answer.kind is FailureKind.MISMATCH and not alone and len(self.theatre.named_in(answer.reason)) < 2:
            raise self.fail(f"the mismatch told to {host.name} does not name both sides: {answer.reason}")


class BoundedWaits(Checker):
    """No call waits longer than the limits allow, not counting the time in which somebody computes.

    Each fault that happens meanwhile may start the wait anew: its detection takes as long as a limit. So may each peer
    that is put out. A hostile peer that was let in may take its time like one that computes; a candidate may not.
    """

    name = "bounded waits"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._open: dict[tuple[str, int], tuple[float, int, Request]] = {}
        """When the call was made, not counting excused time, and after how many faults."""
        self._kicks = 0
        self._hostile_s = 0.0
        """Time in which a hostile peer was accepted."""
        self._sampled_at = 0.0

    def _now(self) -> float:
        return self.theatre.scheduler.now - self.theatre.computing_s - self._hostile_s

    def _faults(self) -> int:
        return self.theatre.faults_done + self._kicks

    def master_sends(self, known: Known, message: ToPeer) -> None:
        self._kicks += isinstance(message, Kick)

    def call_made(self, host: "PeerHost", call: int, request: Request) -> None:
        self._open[host.name, call] = (self._now(), self._faults(), request)

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        self._open.pop((host.name, call), None)

    def sampled(self) -> None:
        theatre = self.theatre
        hosts = (theatre.host_of(known) for known in self.ledger.accepted())
        if any(host is not None and host.hostile for host in hosts):
            self._hostile_s += theatre.scheduler.now - self._sampled_at
        self._sampled_at = theatre.scheduler.now
        for (name, call), (since, faults, request) in list(self._open.items()):
            host = theatre.hosts_by_name[name]
            if host.crashed:
                del self._open[name, call]
                continue
            waited = self._now() - since
            bound = theatre.wait_bound_s() * (1 + self._faults() - faults + theatre.standing_faults())
            if waited > bound and not host.frozen:
                raise self.fail(
                    f"call {call} of {name} has waited {waited:.0f} s, allowed are {bound:.0f}: {request}; "
                    f"the master says {theatre.explain()}"
                )
