"""What a peer remembers for a master that knows nothing: the answers it got, and what it still waits for.

The master that gave an answer may have died before all peers had it. Peers that received it report it to the next one,
which sends it to those that still wait. So answers are kept as long as a peer could be waiting for them: the last one
of each question that all peers are asked, since the next one needs the votes of all; of collectives as many as one peer
may have in flight, since a peer that lacks an outcome can have cast no more votes than that.
(recovery.md, What is restored)
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec import structs

from pccl.core.messages.report import REPORT_ATTEMPTS, REPORT_LINKS, REPORT_OUTCOMES, REPORT_RING, Answered, ReportPart
from pccl.core.messages.to_peer import (
    Outcome,
    PendingAnswer,
    Start,
    StartSync,
    Synced,
    ToPeer,
    Topology,
    TopologyUpdated,
)
from pccl.core.peer.collectives import Collectives
from pccl.core.peer.links import Links
from pccl.types import PeerId

Entry = TypeVar("Entry")


class Answers:
    """The answers that one peer got."""

    def __init__(self) -> None:
        self.last = Answered()
        self.outcomes: dict[int, bool] = {}
        """Of attempts, in the order in which they arrived: whether they were committed."""

    def note(self, message: ToPeer, outcomes_max: int) -> None:
        """The master sent this."""
        match message:
            case Topology(number=number):
                accepted_at, topology = self.last.accepted_at or number, max(self.last.topology, number)
                self._note(number, accepted_at=accepted_at, topology=topology)
            case TopologyUpdated(number=number):
                self._note(number, updated=number, topology=number)
            case PendingAnswer(pending=pending, number=number):
                self._note(number, asked=number, pending=pending)
            case Start(attempt=attempt) | StartSync(attempt=attempt) | Synced(attempt=attempt):
                self._note(attempt)
            case Outcome(attempt=attempt, committed=committed):
                self._note(attempt)
                self.outcomes[attempt] = committed
                while len(self.outcomes) > outcomes_max:
                    del self.outcomes[next(iter(self.outcomes))]

    def _note(self, number: int, **answers: int) -> None:
        self.last = structs.replace(self.last, last_number=max(self.last.last_number, number), **answers)

    def report(self, ring: tuple[PeerId, ...], links: Links, collectives: Collectives) -> Iterator[ReportPart]:
        """All that does not fit into a `Resume`."""
        yield from (ReportPart(ring=portion) for portion in _portions(ring, REPORT_RING))
        yield from (ReportPart(links=portion) for portion in _portions(links.report(), REPORT_LINKS))
        yield from (ReportPart(attempts=portion) for portion in _portions(collectives.report(ring), REPORT_ATTEMPTS))
        committed = [attempt for attempt, kept in self.outcomes.items() if kept]
        yield from (ReportPart(committed=portion) for portion in _portions(committed, REPORT_OUTCOMES))
        aborted = [attempt for attempt, kept in self.outcomes.items() if not kept]
        yield from (ReportPart(aborted=portion) for portion in _portions(aborted, REPORT_OUTCOMES))
        yield ReportPart(last=True)


def _portions(entries: Sequence[Entry], size: int) -> Iterator[tuple[Entry, ...]]:
    return (tuple(entries[start : start + size]) for start in range(0, len(entries), size))
