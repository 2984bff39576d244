"""Rules of how a collective is divided into strands, broken."""

from typing import Any

from msgspec import structs

from pccl.core.master import collectives
from pccl.core.master.collectives import Collectives
from pccl.core.peer.collectives import Collectives as PeerCollectives
from pccl.core.rules.schedule import useful_threads
from tests.simulation.mutants.mutant import Mutant


def _most(self: Any, collective: Any) -> int:
    ring = self._roster.ring(collective.group)
    return useful_threads(collective.spec, len(ring), max(self._roster.accepted[peer].threads for peer in ring))


def _whatever_the_lanes(threads: int, lanes: int, round_trip_s: float) -> int:
    return threads


def _undivided(self: Any, attempt: Any, start: Any) -> None:
    _START(self, attempt, structs.replace(start, strands=1))


_START = PeerCollectives._start

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "more strands than threads": (Mutant("all members have them", Collectives, "_threads", _most),),
    "more strands than lanes": (
        Mutant("each has a lane of its own", collectives, "strand_count", _whatever_the_lanes),
    ),
    "a peer that does not divide": (Mutant("all divide alike", PeerCollectives, "_start", _undivided),),
}
