"""One outcome per attempt, with everybody's consent, and the sum that belongs to it."""

from typing import TYPE_CHECKING

from pccl.core.effects.peer_effects import Answer, Committed, Failure, FailureKind
from pccl.core.messages.to_peer import Outcome, ToPeer
from pccl.types import PeerId
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Attempt, Known

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.plane import Part
    from tests.simulation.theatre import Theatre


class OneOutcome(Checker):
    """Each attempt ends the same way for everybody, and only commits when all that live are done with it."""

    name = "one outcome"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._answers: dict[int, dict[str, list[PeerHost]]] = {}
        """How callers were answered, by attempt, and who."""
        self._attempt_of: dict[tuple[str, int], int] = {}
        self._pending: dict[int, bool] = {}
        """Whether candidates wait, as the callers of a committed attempt were told."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Outcome):
            return
        attempt = self.ledger.attempts[message.attempt]
        if attempt.outcome is not None and attempt.outcome.committed != message.committed:
            raise self.fail(f"attempt {message.attempt} is both committed and aborted")
        if known.peer not in attempt.participants and known.peer not in attempt.unheard:
            raise self.fail(f"{known.peer[:8]} gets the outcome of attempt {message.attempt}, in which it had no part")
        staying = {each.peer for each in self.ledger.known.values() if each.connection not in self.ledger.leaving}
        for peer in attempt.participants:
            if not message.committed and (peer in attempt.unheard or self._conceals(peer, attempt)):
                continue
            if peer in staying and peer not in attempt.reports:
                raise self.fail(f"outcome of attempt {message.attempt} before {peer[:8]} has reported")
            if peer in staying and message.committed and not attempt.reports[peer]:
                raise self.fail(f"attempt {message.attempt} is committed although it failed at {peer[:8]}")

    def _conceals(self, peer: PeerId, attempt: Attempt) -> bool:
        """It is hostile, and another master since has only its word that it had no part in this."""
        hosts = [host for host in self.theatre.hosts_by_name.values() if host.identity.peer == peer]
        return attempt.cut_short and any(host.hostile for host in hosts)

    def run_started(self, part: "Part") -> None:
        self._attempt_of[part.host.name, part.effect.call] = part.effect.attempt

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        attempt = self._attempt_of.get((host.name, call))
        if isinstance(answer, Committed):
            if attempt != answer.attempt:
                raise self.fail(f"{host.name} commits attempt {answer.attempt} but ran {attempt}")
            if self._pending.setdefault(answer.attempt, answer.pending) != answer.pending:
                raise self.fail(f"{host.name} is told otherwise than others of attempt {attempt} whether a peer waits")
            self._answered(attempt, "committed", host)
        elif isinstance(answer, Failure) and answer.kind is FailureKind.ABORTED and attempt is not None:
            self._answered(attempt, "aborted", host)

    def _answered(self, attempt: int, how: str, host: "PeerHost") -> None:
        answers = self._answers.setdefault(attempt, {})
        answers.setdefault(how, []).append(host)
        for other, hosts in answers.items():
            # Whoever is lost together with the master takes with it what only the two of them knew.
            if other != how and any(self._takes_part(each) for each in hosts):
                raise self.fail(f"attempt {attempt} was answered both ways")

    def _takes_part(self, host: "PeerHost") -> bool:
        return not host.gone and host.core.accepted and self.ledger.find(host.identity.peer) is not None


class RightSum(Checker):
    """What a committed collective gives is the sum over exactly the ring of its attempt, the same for everybody."""

    name = "right sum"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._results: dict[int, int | None] = {}
        """What the first caller got, by attempt."""

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        if not isinstance(answer, Committed):
            return
        part = self.theatre.plane.part(host, answer.attempt)
        if part is None or not part.succeeded:
            raise self.fail(f"{host.name} commits attempt {answer.attempt} without having finished its run")
        expected = self.theatre.plane.expected_sum(answer.attempt, answer.ring)
        if self._results.setdefault(answer.attempt, part.result) != part.result:
            raise self.fail(f"{host.name} got {part.result} from attempt {answer.attempt}, others got something else")
        # One alone that has a wrong result, because all others were lost, cannot know.
        if part.result != expected and not part.spoilt:
            raise self.fail(
                f"{host.name} got {part.result} from attempt {answer.attempt}, the ring's sum is {expected}"
            )
