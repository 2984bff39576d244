"""Every call is answered once, in bounded time, with an answer that fits what was done."""

from typing import TYPE_CHECKING

from pccl.core.effects.peer_effects import Answer, Committed, Failure, FailureKind, InSync
from pccl.core.effects.peer_events import ArePeersPending, CallCollective, Request, SyncShared, WaitAccepted
from pccl.core.messages.to_peer import Kick, Start, ToPeer, Withdrawn
from pccl.core.rules.election import NO_OFFER
from tests.simulation import machines
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.plane import Part
    from tests.simulation.theatre import Theatre

_USER_FAULTS = (
    FailureKind.MISMATCH,
    FailureKind.USAGE,
    FailureKind.TAG_IN_USE,
    FailureKind.UNFINISHED_COLLECTIVES,
    FailureKind.PROTOCOL,
)


ANSWERED_S = 10.0
"""Far more than a message to the master and back takes."""


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
        expected = {ArePeersPending: bool, CallCollective: Committed, SyncShared: InSync}.get(type(request), type(None))
        if not isinstance(answer, expected):
            raise self.fail(f"{request} of {host.name} is answered with {answer}")

    def finished(self) -> None:
        for (name, call), request in self._open.items():
            if not self.theatre.hosts_by_name[name].crashed:
                raise self.fail(f"call {call} of {name} was never answered: {request}")


class Withdrawals(Checker):
    """Votes are taken back before the start or not at all; a peer that is told so has no part in what starts later, and
    reads which peers had not called. A call that has timed out is answered soon, unless something of it has started."""

    name = "withdrawals"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._expired: dict[tuple[PeerHost, int], tuple[tuple[int, ...], float, int]] = {}
        """Open calls whose time is over: those that belong together, since when, and the faults before."""
        self._started: set[tuple[str, int]] = set()
        self._withdrawn: set[tuple[str, int]] = set()
        self._called: dict[tuple[str, int], int] = {}
        """The last call of each peer with each tag."""

    def call_made(self, host: "PeerHost", call: int, request: Request) -> None:
        if isinstance(request, CallCollective):
            self._called[host.name, request.tag] = call

    def peer_receives(self, host: "PeerHost", message: ToPeer) -> None:
        """A start counts even if a link broke before it, so that no run follows: all take part in how it ends."""
        if isinstance(message, Start) and (host.name, message.tag) in self._called:
            self._started.add((host.name, self._called[host.name, message.tag]))

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Withdrawn):
            return
        for tag in message.tags:
            if tag not in known.initiated:
                raise self.fail(f"{known.peer[:8]} has no vote for tag {tag} that could be taken back")
        for attempt in self.ledger.running.values():
            if attempt.tag in message.tags and known.peer in attempt.participants and not attempt.cut_short:
                raise self.fail(f"a vote of {known.peer[:8]} is taken back after attempt {attempt.number} has started")
        group = [each for each in self.ledger.electorate() if each.group == known.group]
        missing = [{each.peer for each in group if tag not in each.initiated} for tag in message.tags]
        if set(message.missing) != max(missing, key=len):
            raise self.fail(f"{known.peer[:8]} reads that {message.missing} did not call, but it was {missing}")

    def call_expired(self, host: "PeerHost", calls: tuple[int, ...]) -> None:
        for call in calls:
            self._expired[host, call] = calls, self.theatre.scheduler.now, self.theatre.faults_done

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        if isinstance(answer, Failure) and answer.kind is FailureKind.TIMED_OUT:
            self._withdrawn.add((host.name, call))
            if (host, call) not in self._expired or (host.name, call) in self._started:
                raise self.fail(f"call {call} of {host.name} times out although it has no limit, or has started")
        self._expired.pop((host, call), None)

    def run_started(self, part: "Part") -> None:
        key = part.host.name, part.effect.call
        if key in self._withdrawn:
            raise self.fail(f"call {key[1]} of {key[0]} was answered, and now its collective starts")
        self._started.add(key)

    def sampled(self) -> None:
        theatre, now = self.theatre, self.theatre.scheduler.now
        for (host, call), (calls, since, faults) in list(self._expired.items()):
            begun = any((host.name, each) in self._started or (host, each) not in self._expired for each in calls)
            idle = theatre.master.gone or theatre.master.frozen or not host.hears_everything()
            if idle or begun or faults != theatre.faults_done:
                self._expired[host, call] = calls, now, theatre.faults_done
            elif now - since > ANSWERED_S:
                raise self.fail(f"call {call} of {host.name} timed out {now - since:.0f} s ago, and waits on")


class NoFalseBlame(Checker):
    """Peers that keep in step are never told that they do not; those that are told read who waits for what."""

    name = "no false blame"

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        if not isinstance(answer, Failure) or answer.kind not in _USER_FAULTS:
            return
        alone = NO_OFFER in answer.reason  # the last of a group that only wants to receive, or can do no other
        if alone and host.torn:
            return
        forced = self.theatre.plan.enemies or self.ledger.missed_a_life
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
        for (name, call), (_, faults, request) in list(self._open.items()):
            host = theatre.hosts_by_name[name]
            if host.crashed:
                del self._open[name, call]
                continue
            if isinstance(request, WaitAccepted) and machines.half(host):
                self._open[name, call] = (self._now(), self._faults(), request)  # Its own machine lets it wait.
            waited = self._now() - self._open[name, call][0]
            bound = theatre.wait_bound_s() * (1 + self._faults() - faults + theatre.standing_faults())
            if waited > bound and not host.frozen:
                raise self.fail(
                    f"call {call} of {name} has waited {waited:.0f} s, allowed are {bound:.0f}: {request}; "
                    f"the master says {theatre.explain()}"
                )
