"""What a peer remembers for a master that knows nothing: the answers it got, and what it still waits for.

The master that gave an answer may have died before everybody had it. Whoever got it tells the next one, which gives it
to those who still wait. So answers are kept as long as somebody could be waiting for them: the last one of each
question that all peers are asked, since the next one needs everybody's vote; of collectives as many as one peer may
have in flight, since whoever lacks an outcome can have cast no more votes than that.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

from pccl.core.fields import RECALL_LINKS, RECALL_OUTCOMES, RECALL_RING, RECALL_RUNS
from pccl.core.lanes import Lanes
from pccl.core.messages import (
    Outcome,
    PendingAnswer,
    Recall,
    Resume,
    Start,
    StartSync,
    Synced,
    ToMaster,
    ToPeer,
    Topology,
    TopologyUpdated,
)
from pccl.core.runs import Runs
from pccl.core.session import Session
from pccl.core.standing import PeerIdentity, Sizes
from pccl.core.syncing import Syncing
from pccl.types import PeerId

Entry = TypeVar("Entry")


class Memory:
    """The answers that one peer got."""

    def __init__(self) -> None:
        self.accepted_at = 0
        self.topology = 0
        self.updated = 0
        self.asked = 0
        self.pending = False
        self.last_number = 0
        self.outcomes: dict[int, bool] = {}
        """Of attempts, in the order in which we heard of them: whether they were committed."""

    def note(self, message: ToPeer, outcomes_max: int) -> None:
        """The master said this."""
        match message:
            case Topology(number=number):
                self.accepted_at = self.accepted_at or number
                self.topology = max(self.topology, number)
                self._note_number(number)
            case TopologyUpdated(number=number):
                self.updated = self.topology = number
                self._note_number(number)
            case PendingAnswer(pending=pending, number=number):
                self.asked, self.pending = number, pending
                self._note_number(number)
            case Start(attempt=attempt) | StartSync(attempt=attempt) | Synced(attempt=attempt):
                self._note_number(attempt)
            case Outcome(attempt=attempt, committed=committed):
                self._note_number(attempt)
                self.outcomes[attempt] = committed
                while len(self.outcomes) > outcomes_max:
                    del self.outcomes[next(iter(self.outcomes))]

    def _note_number(self, number: int) -> None:
        self.last_number = max(self.last_number, number)

    def resume(
        self,
        me: PeerIdentity,
        latest: tuple[int, Sizes, Session[ToMaster], int],
        parts: tuple[Lanes, Syncing],
        calls: Collection[str],
    ) -> Resume:
        """Who we are, as of the latest epoch, its sizes, what its master said and how often we told it, and
        what we wait for."""
        lanes, sync = parts
        claim, transfer = sync.recall()
        epoch, sizes, session, story = latest
        return Resume(
            peer=me.peer,
            group=me.group,
            host=me.host,
            port=me.port,
            lanes=me.lanes,
            serves=me.serves,
            run=lanes.run,
            masters=me.masters,
            epoch=epoch,
            global_size=sizes.global_size,
            groups=sizes.groups,
            last_link=lanes.newest,
            last_number=self.last_number,
            accepted_at=self.accepted_at,
            topology=self.topology,
            updated=self.updated,
            asked=self.asked,
            pending=self.pending,
            agreed=sync.agreed,
            updating="update_topology" in calls,
            asking="are_peers_pending" in calls,
            claim=claim,
            transfer=transfer,
            secret=me.secret,
            master=session.master,
            heard=session.heard,
            story=story,
        )

    def recall(self, ring: tuple[PeerId, ...], lanes: Lanes, runs: Runs) -> Iterator[Recall]:
        """All that does not fit into a `Resume`."""
        yield from (Recall(ring=portion) for portion in _portions(ring, RECALL_RING))
        yield from (Recall(links=portion) for portion in _portions(lanes.recall(), RECALL_LINKS))
        yield from (Recall(runs=portion) for portion in _portions(runs.recall(ring), RECALL_RUNS))
        committed = [attempt for attempt, how in self.outcomes.items() if how]
        yield from (Recall(committed=portion) for portion in _portions(committed, RECALL_OUTCOMES))
        aborted = [attempt for attempt, how in self.outcomes.items() if not how]
        yield from (Recall(aborted=portion) for portion in _portions(aborted, RECALL_OUTCOMES))
        yield Recall(last=True)


def _portions(entries: Sequence[Entry], size: int) -> Iterator[tuple[Entry, ...]]:
    return (tuple(entries[start : start + size]) for start in range(0, len(entries), size))
