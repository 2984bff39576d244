"""Who is let in, and who is put out."""

from typing import TYPE_CHECKING

from pccl.core.effects import Answer, Failure, FailureKind
from pccl.core.messages import Kick, Topology, ToPeer
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost


class NoInnocentLost(Checker):
    """Nobody loses its place unless something was done to it; above all not by what happens to a candidate."""

    name = "no innocent lost"

    def master_sends(self, known: Known, message: ToPeer) -> None:
        host = self.theatre.peers.get(known.peer)
        if not isinstance(message, Kick) or host is None or host.harms:
            return
        if known.topology is not None:
            raise self.fail(f"{host.name} is accepted and harmless, and is kicked: {message.reason}")
        if not self.theatre.reach.troubles(host):
            raise self.fail(f"{host.name} could be reached, and is refused: {message.reason}")
        if len(self.theatre.named_in(message.reason)) < 2:
            raise self.fail(f"the refusal of {host.name} does not name the pair: {message.reason}")

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        if not isinstance(answer, Failure) or host.harms or self.theatre.master.gone:
            return
        if answer.kind in (FailureKind.MASTER_LOST, FailureKind.PROTOCOL):
            raise self.fail(f"{host.name} gives up although nothing was done to it: {answer.reason}")


class LanesBeforeAdmission(Checker):
    """A candidate is accepted only when every link of its ring was reported up by both ends."""

    name = "lanes before admission"

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Topology) or known.topology is not None:
            return
        ring = message.ring
        for rank, peer in enumerate(ring if len(ring) > 1 else ()):
            self._stands(peer, ring[(rank + 1) % len(ring)], message.epoch)

    def _stands(self, one: str, other: str, epoch: int) -> None:
        for here, there in ((one, other), (other, one)):
            known = next((each for each in self.ledger.known.values() if each.peer == here), None)
            links = [] if known is None else [link for link in known.links.values() if link.peer == there]
            if known is None or not links or not all(link.number in known.up for link in links):
                raise self.fail(f"epoch {epoch} admits a peer while {here[:8]} has no link to {there[:8]}")
