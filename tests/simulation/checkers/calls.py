"""Every call is answered once, in bounded time, with an answer that fits what was done."""

from typing import TYPE_CHECKING

from pccl.core.effects import Answer, ArePeersPending, Collective, Committed, Failure, FailureKind, Request
from tests.simulation.checkers.base import Checker

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
        expected = {ArePeersPending: bool, Collective: Committed}.get(type(request), type(None))
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
        if not self.theatre.plan.strays:
            raise self.fail(f"{host.name} is blamed although everybody keeps in step: {answer.reason}")
        if answer.kind is FailureKind.MISMATCH and len(self.theatre.named_in(answer.reason)) < 2:
            raise self.fail(f"the mismatch told to {host.name} does not name both sides: {answer.reason}")


class BoundedWaits(Checker):
    """No call waits longer than the limits allow, not counting the time in which somebody computes.

    Each fault that happens meanwhile may start the wait anew: its detection takes as long as a limit.
    """

    name = "bounded waits"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._open: dict[tuple[str, int], tuple[float, float, int, Request]] = {}

    def call_made(self, host: "PeerHost", call: int, request: Request) -> None:
        theatre = self.theatre
        self._open[host.name, call] = (theatre.scheduler.now, theatre.computing_s, theatre.faults_done, request)

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        self._open.pop((host.name, call), None)

    def sampled(self) -> None:
        theatre = self.theatre
        for (name, call), (since, computing_s, faults, request) in list(self._open.items()):
            host = theatre.hosts_by_name[name]
            if host.crashed:
                del self._open[name, call]
                continue
            waited = theatre.scheduler.now - since - (theatre.computing_s - computing_s)
            bound = theatre.plan.wait_bound_s * (1 + theatre.faults_done - faults + theatre.standing_faults())
            if waited > bound and not host.frozen:
                raise self.fail(
                    f"call {call} of {name} has waited {waited:.0f} s, allowed are {bound:.0f}: {request}; "
                    f"the master says {theatre.explain()}"
                )
