"""One collective, as the master sees it: its stages from the first vote to the one outcome, and what it waits for.

Knows its own votes, participants and lanes only; see `collectives.py` for all of them. Rules: docs/protocol.md,
"Collectives".
"""

from pccl.core.fields import CollectiveSpec
from pccl.core.master.link import Link
from pccl.core.rules.ballot import Ballot
from pccl.core.rules.ring import pairs
from pccl.core.staged import Stage, Staged
from pccl.core.text import names
from pccl.types import PeerId


class CollectiveStage(Stage):
    """Where a collective is in its life."""

    VOTING = "some members of the group have initiated it", ("READY", "ENDED")
    READY = (
        "all have, with equal parameters; waits for the ring to stand and for free lanes",
        ("RUNNING", "VOTING", "ENDED"),
    )
    RUNNING = "started; participants report done or failed", ("ABORTING", "ENDED")
    ABORTING = "some failed or were lost; the rest are told to stop and report", ("STOPPED", "ENDED")
    STOPPED = "all have reported; the aborted outcome waits for the ring to stand", ("ENDED",)
    ENDED = "every caller has its answer", ()


class Collective(Staged[CollectiveStage]):
    """One collective of one group."""

    def __init__(self, group: int, tag: int, ballot: Ballot[CollectiveSpec], stage: CollectiveStage) -> None:
        super().__init__(stage)
        self.group = group
        self.tag = tag
        self.ballot = ballot
        self.since = 0.0
        """When the present stage began."""
        self.attempt = 0
        self.lanes: tuple[int, ...] = ()
        """The lanes it holds; none if it needs none, because the contributions travelled with the votes."""
        self.parcels: dict[PeerId, int] = {}
        """Voters whose contribution is on its way to all others, and the numbers of their parcels."""
        self.ring: tuple[PeerId, ...] = ()
        """Participants of the attempt."""
        self.unreported: dict[PeerId, None] = {}
        self.digests: dict[PeerId, bytes] = {}
        """Of the results of those that are done."""
        self.lost: list[PeerId] = []
        self.reason = ""

    def become(self, stage: CollectiveStage, now: float) -> None:
        """Enter a stage, and note when."""
        self.enter(stage)
        self.since = now

    @property
    def spec(self) -> CollectiveSpec:
        """What all voted for."""
        return next(iter(self.ballot.votes.values()))

    def uses(self, link: Link) -> bool:
        """It runs over this link."""
        if self.lanes:
            return link.ends in pairs(self.ring)
        return all(end in self.ring for end in link.ends)

    def waits_for(self) -> list[PeerId]:
        """The peers whose vote or report is missing."""
        return self.ballot.missing() if self.stage is CollectiveStage.VOTING else list(self.unreported)

    def explain(self) -> str:
        """What this collective waits for, in words."""
        match self.stage:
            case CollectiveStage.VOTING:
                return self.ballot.explain()
            case CollectiveStage.READY:
                return f"{self.ballot.question} waits for its ring to stand and for free lanes"
            case CollectiveStage.RUNNING:
                return f"{self.ballot.question} runs; not finished at {names(self.unreported)}"
            case CollectiveStage.ABORTING:
                return (
                    f"{self.ballot.question} is being aborted ({self.reason}); not stopped at {names(self.unreported)}"
                )
            case _:
                return f"{self.ballot.question} was aborted ({self.reason}) and waits for its group to be rewired"
