"""Who is here of a run that comes back, from what each of those who came back tells.

Owns the stories and their sum. The highest epoch that anybody of a group knows has its ring, and the rings are the
roster. Does not know for how long anybody is waited for, nor what happens then.
"""

from collections.abc import Mapping

from msgspec import Struct

from pccl.core.limits import MasterLimits
from pccl.core.messages import LinkReport, Recall, Resume, RunReport
from pccl.core.roster import Member, Roster
from pccl.core.violation import Violation
from pccl.types import PeerId

LENT_MAX = 2 * 1024
"""Lanes that all runs of one peer have together. Each lane is lent to one run at a time, so an honest peer has no more
than a link has (1,024); without a bound thousands of runs with a thousand lanes each would fill our memory."""


class Return:
    """One peer that came back, and what it tells."""

    def __init__(self, member: Member, resume: Resume) -> None:
        self.member = member
        self.resume = resume
        self.ring: tuple[PeerId, ...] = ()
        self.links: dict[int, LinkReport] = {}
        self.runs: dict[int, RunReport] = {}
        """By tag."""
        self.outcomes: dict[int, bool] = {}
        """By attempt, whether it was committed."""
        self.complete = False
        self.cut: str | None = None
        """Why its connection has ended since; None while it stands."""
        self._lent = 0

    def hear(self, recall: Recall, limits: MasterLimits) -> None:
        """One more portion."""
        if self.complete:
            raise Violation("recalled more after the last portion")
        self.ring += tuple(PeerId(peer) for peer in recall.ring)
        self.links.update({link.number: link for link in recall.links})
        self.runs.update({run.tag: run for run in recall.runs})
        self.outcomes.update(dict.fromkeys(recall.committed, True))
        self.outcomes.update(dict.fromkeys(recall.aborted, False))
        self._lent += sum(len(run.lanes) for run in recall.runs)
        if max(len(self.ring), len(self.links)) > limits.peers_max or len(self.runs) > limits.tags_max:
            raise Violation("recalls more than there can be")
        if len(self.outcomes) > 2 * limits.tags_max:
            raise Violation("recalls more outcomes than anybody could lack")
        if self._lent > LENT_MAX:
            raise Violation("recalls more lanes than a link can have")
        if recall.last:
            self._check()
        self.complete = recall.last

    def _check(self) -> None:
        """What it told makes sense as a whole."""
        told = self.resume
        if self.member.peer not in self.ring or len(set(self.ring)) != len(self.ring):
            raise Violation("recalls a ring without itself, or with somebody twice")
        numbers = [told.accepted_at, told.topology, told.updated, told.asked, *self.outcomes]
        numbers += [run.attempt for run in self.runs.values()]
        numbers += [] if told.agreed is None else [told.agreed.attempt]
        if max(numbers) > told.last_number or max(self.links, default=0) > told.last_link:
            raise Violation("recalls numbers beyond the last one that it was told")


class Muster(Struct, frozen=True, kw_only=True):
    """Who is here of the run that most of those who came back belong to."""

    run: str
    epoch: int
    rings: dict[int, tuple[PeerId, ...]]
    """Of the highest epoch that anybody of the group knows."""
    latest: tuple[int, ...]
    """Groups for which that is the highest of all. The ring of another one may name some who were lost since."""
    size: int
    """Peers on the roster of the highest epoch."""
    groups: int
    back: dict[PeerId, Return | None]
    """Those of them who are here; without a story if they never heard that they had been accepted."""
    missing: tuple[PeerId, ...]
    """Those who are not here, as far as they are known by name."""
    reached: bool
    """Somebody has a link that stands to one of those."""

    @property
    def unknown(self) -> int:
        """How many more are not here, of groups of which nobody is."""
        return max(0, self.size - sum(map(len, self.rings.values())))

    @property
    def whole(self) -> bool:
        """Everybody is here."""
        return not self.missing and not self.unknown

    @property
    def sure(self) -> bool:
        """Nobody can have been let in without anybody here having heard of it: that takes the votes of all. Those who
        were let in may be the only ones who were told, and they are the roster as much as those who let them in."""
        return not all(ret is None or ret.resume.updating for ret in self.back.values())

    @property
    def late(self) -> bool:
        """Somebody is not here who may well live: somebody has a link to it that stands, or nobody ever had one."""
        return bool(self.unknown) or self.reached

    @property
    def unmatched(self) -> bool:
        """No other master can have as many of this roster. Only those count who are certainly on it."""
        certain = sum(peer in self.back for group in self.latest for peer in self.rings[group])
        if 2 * certain != self.size:
            return 2 * certain > self.size
        first = min(self.rings)
        return len(self.rings) == self.groups and first in self.latest and self.rings[first][0] in self.back


def count_back(returns: Mapping[PeerId, Return], roster: Roster) -> Muster | None:
    """Who is here; None while nobody has told all it knows."""
    told = [ret for ret in returns.values() if ret.complete]
    if not told:
        return None
    runs = [ret.resume.run for ret in told]
    run = max(dict.fromkeys(runs), key=runs.count)  # The first of equals.
    told = [ret for ret in told if ret.resume.run == run]
    newest = max(told, key=lambda ret: ret.resume.epoch).resume
    rings: dict[int, tuple[PeerId, ...]] = {}
    # Peers know the ring of their own group only. If nobody of a group has heard of the last epoch, the one before
    # is as good: whatever followed from the last one was told after it.
    for ret in sorted(told, key=lambda ret: -ret.resume.epoch):
        if ret.member.group not in rings:
            rings[ret.member.group] = _own(ret, roster)
    stories = {ret.member.peer: ret for ret in told}
    members = [peer for ring in rings.values() for peer in ring]
    # A candidate among them joined again, since it never heard that it had been accepted.
    back = {peer: stories.get(peer) for peer in members if peer in stories or peer in roster.candidates}
    missing = dict.fromkeys(peer for peer in members if peer not in back)
    return Muster(
        run=run,
        epoch=newest.epoch,
        rings=rings,
        latest=tuple(dict.fromkeys(ret.member.group for ret in told if ret.resume.epoch == newest.epoch)),
        size=newest.global_size,
        groups=newest.groups,
        back=back,
        missing=tuple(missing),
        reached=any(link.peer in missing for ret in back.values() if ret for link in ret.links.values()),
    )


def _own(ret: Return, roster: Roster) -> tuple[PeerId, ...]:
    """The ring that a peer tells of, without those who say themselves that they are of another group."""
    group = ret.member.group
    return tuple(peer for peer in ret.ring if (there := roster.member(peer)) is None or there.group == group)
