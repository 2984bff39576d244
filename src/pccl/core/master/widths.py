"""How many lanes a link is given when it is dialled.

Knows what was chosen for each group, not why: see `lanes.py`. Rules: docs/protocol.md, "Lanes".
"""

from pccl.core.master.link import Link
from pccl.core.master.roster import Roster
from pccl.core.rules.lanes import LANES_MAX

WIDE_MESH_MAX = 4
"""In groups of up to this many the links beside the ring have as many lanes as those of the ring: a newcomer pulls the
state from three holders at once."""


class Widths:
    """Of the links of all groups."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self.wide: dict[int, int] = {}
        """Groups whose links shall have more lanes than they began with, and how many."""
        self.failed: dict[int, None] = {}
        """Groups with a link that failed and had more lanes."""

    def wanted(self, link: Link, needed: bool) -> int:
        """Only links that are needed have more than their group began with, and all of a group of few: a mesh of many
        would take too many descriptors. A candidate begins with the least: it is judged by whether its links stand."""
        least = self._roster.lanes[link.group]
        few = len(self._roster.ring(link.group)) <= WIDE_MESH_MAX
        if not (needed or few) or any(peer in self._roster.candidates for peer in link.ends):
            return least
        most = min(self._roster.known(peer).lanes_max for peer in link.ends)
        return max(least, min(self.wide.get(link.group, least), most))

    def fail(self, link: Link) -> bool:
        """A link between members could not be made, or broke at once. Perhaps it has too many lanes for what its ends
        can open: that is ours to mend, and no mark against them. True if so: dial it with fewer."""
        if link.lanes <= self._roster.lanes[link.group]:
            return False
        self.failed[link.group] = None
        self.wide.pop(link.group, None)
        return True

    def restore(self, link: Link) -> None:
        """It stands since the time of an earlier master: its group goes on with its number."""
        if link.lanes > self._roster.lanes[link.group]:
            self.wide[link.group] = min(LANES_MAX, max(link.lanes, self.wide.get(link.group, 0)))
