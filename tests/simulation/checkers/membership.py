"""Who is let in, and who is put out."""

from typing import TYPE_CHECKING

from pccl.core.effects import Answer, Failure, FailureKind
from pccl.core.messages import Kick, Outcome, Start, ToPeer, Topology
from pccl.types import PeerId
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
        if not self.theatre.reach.troubles(host):
            how = "accepted" if known.topology is not None else "a candidate"
            raise self.fail(f"{host.name} is {how} and harmless, and is kicked: {message.reason}")
        if len(self.theatre.named_in(message.reason)) < 2:
            raise self.fail(f"the refusal of {host.name} does not name the pair: {message.reason}")

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        if not isinstance(answer, Failure) or host.harms or self.theatre.master.gone:
            return
        if answer.kind in (FailureKind.MASTER_LOST, FailureKind.PROTOCOL):
            raise self.fail(f"{host.name} gives up although nothing was done to it: {answer.reason}")


class RingsStand(Checker):
    """Links stand before anybody relies on them: when a candidate is accepted, when a collective starts, and when
    callers are told that theirs was aborted."""

    name = "rings stand"
    _last: ToPeer | None = None

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if message is self._last:
            return
        self._last = message
        match message:
            case Topology(epoch, ring) if known.topology is None:
                self._stands(ring, f"epoch {epoch} admits {known.peer[:8]}")
            case Start(tag, attempt) if known.topology is not None:
                self._stands(known.topology.ring, f"attempt {attempt} of tag {tag} starts")
            case Outcome(tag, attempt, committed) if known.topology is not None and not committed:
                self._stands(known.topology.ring, f"attempt {attempt} of tag {tag} is told to be aborted")

    def _stands(self, ring: tuple[str, ...], what: str) -> None:
        known = {each.peer: each for each in self.ledger.known.values()}
        for rank, here in enumerate(ring if len(ring) > 1 else ()):
            for there in (ring[rank - 1], ring[(rank + 1) % len(ring)]):
                end = known.get(PeerId(here))
                links = [] if end is None else [link.number for link in end.links.values() if link.peer == there]
                if end is None or not links or not end.up.issuperset(links):
                    raise self.fail(f"{what} while {here[:8]} has no link to {there[:8]}")
