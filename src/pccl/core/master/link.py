"""One link, as the master sees it: its stages, which end dials, and its record of failures.

A **link** is all lanes between two neighbours, made together and numbered as one thing (docs/protocol.md, "Links").
Does not know the other links, nor why it is wanted: see `links.py`.
"""

from math import inf

from pccl.core.rules.ring import Pair
from pccl.core.staged import Stage, Staged
from pccl.types import PeerId, short

UNDECIDED = "Which of the two is at fault cannot be told: put one out with `pccl kick`"
"""What the operator reads of such a link."""


class LinkStage(Stage):
    """Where a link is in its life."""

    DIALLING = (
        "one end dials, at most one end has reported up, until `link_timeout_s`",
        ("STANDING", "DIALLING", "RESTING"),
    )
    STANDING = "both ends reported up", ("DIALLING", "RESTING")
    RESTING = "failed from both ends; without a number, dialled again after `redial_s`", ("DIALLING",)


class Link(Staged[LinkStage]):
    """One link: who dials it, who says that it is up, and its record of failures since it last stood."""

    def __init__(self, group: int, ends: Pair, now: float, stage: LinkStage = LinkStage.DIALLING) -> None:
        super().__init__(stage)
        self.number = 0
        """Given when it is dialled, told to both ends at once, never reused; 0 while it rests."""
        self.key = b""
        """Of this number. A link that stands since the time of an earlier master has none: nothing is dialled on it."""
        self.lanes = 0
        """Of this number: what its group had when it was dialled."""
        self.group = group
        self.ends = ends
        self.dialler: PeerId = ends[0]
        self.up: list[PeerId] = []
        self.round_trip_s = 0.0
        """As the end that dialled measured it; 0 when neither end has."""
        self.failures = 0
        self.causes: dict[PeerId, str] = {}
        """Why it failed the last time each end dialled."""
        self.wanted_at = now
        self.changed_at = now
        self.deadline = inf
        """End of dialling or of resting."""
        self.tried_since = now
        """When the first of its last two tries began."""
        self.failed_since, self.failed_at = now, 0.0
        """From when until when it was last tried without success, from both ends."""
        self.undecided = False
        """It was tried for long, no ring goes around it, and nothing tells which end is at fault."""

    def become(self, stage: LinkStage, now: float, deadline: float = inf) -> None:
        """Enter a stage, until a deadline if it has one."""
        self.enter(stage)
        self.changed_at, self.deadline = now, deadline

    @property
    def target(self) -> PeerId:
        """The end that is dialled."""
        return self.other(self.dialler)

    @property
    def absent(self) -> str:
        """The ends that have not reported it up, in words."""
        return " and ".join(short(peer) for peer in self.ends if peer not in self.up)

    def other(self, peer: PeerId) -> PeerId:
        """The end that is not this one."""
        return self.ends[1] if peer == self.ends[0] else self.ends[0]

    def explain(self) -> str:
        """What is known about it, for a sentence."""
        causes = "; ".join(f"{short(peer)} dialled: {cause}" for peer, cause in self.causes.items())
        told = f"the link {short(self.ends[0])}–{short(self.ends[1])}: {causes or f'no word yet from {self.absent}'}"
        return f"{told}. {UNDECIDED}" if self.undecided else told
