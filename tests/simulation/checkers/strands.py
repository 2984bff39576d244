"""Into how many strands a collective is divided: the same at all of its peers, each with a lane at both ends of every
link, and no more than any of them has threads."""

from typing import TYPE_CHECKING

from pccl.core.effects.peer_effects import StartAttempt
from pccl.core.messages.to_peer import Start, ToPeer
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.plane import Part
    from tests.simulation.theatre import Theatre


class Strands(Checker):
    """A strand has a thread and a lane wherever it runs."""

    name = "strands alike"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._told: dict[int, int] = {}
        """By attempt."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Start):
            return
        strands = self._told.setdefault(message.attempt, message.strands)
        if message.strands != strands:
            raise self.fail(f"attempt {message.attempt} has {strands} strands, and {message.strands} at another peer")
        if strands > max(1, len(message.lanes)):
            raise self.fail(f"attempt {message.attempt} has {strands} strands on {len(message.lanes)} lanes")
        host = self.theatre.peers.get(known.peer)
        if host is not None and not host.hostile and strands > host.identity.threads:
            raise self.fail(f"{host.name} has {host.identity.threads} threads for attempt {message.attempt}: {strands}")

    def run_started(self, part: "Part") -> None:
        effect = part.effect
        if not isinstance(effect, StartAttempt):
            return
        told = self._told.get(effect.attempt)
        if effect.strands != told:
            raise self.fail(f"{part.host.name} divides attempt {effect.attempt} by {effect.strands}, was told {told}")
        if effect.strands > min(len(effect.to_next), len(effect.from_prev)):
            raise self.fail(f"a strand of attempt {effect.attempt} has no lane at {part.host.name}")
