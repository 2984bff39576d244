"""How many lanes links have: what users asked for, no more than both ends can open, and no more often changed than it
helps."""

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from pccl.core.effects.both import Note
from pccl.core.effects.master import MasterEffect, MasterEvent, Send
from pccl.core.effects.peer_effects import StartAttempt
from pccl.core.fields import LinkSpec
from pccl.core.messages.to_peer import Abort, Outcome, ToPeer, Wire
from pccl.core.rules.lanes import FACTOR, QUIET
from pccl.core.rules.ring import Pair, pair
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known
from tests.simulation.pipes import Way
from tests.simulation.plane import lanes_of

if TYPE_CHECKING:
    from tests.simulation.plane import Part
    from tests.simulation.theatre import Theatre

FREE_CHANGES, CHANGE_S = 6, 40.0
"""Changes of one pair's lanes for nothing, and one more in so much time: a wrong one holds the next up for a minute."""

WASTED_RUNS_MAX = 6
"""Runs over far more lanes than fill the way: two to see that they bring nothing, and some that overlap."""

QUIET_RUNS_MAX, QUIET_MAX_S = 3 * QUIET, 90.0
"""Runs without a loss over more lanes than a group began with, and how long they may last: a number that brought
nothing is rested from for a minute."""

_CHANGE = re.compile(r"lanes of group (\d+): (\d+) → (\d+): (.*)")

STEADY_S = 0.03
"""Where messages take longer, by luck a rate may have grown by as much as counts."""


def _neighbours(known: Known, other: str) -> bool:
    """They are side by side in the ring: what runs there does not use the link of two others."""
    ring = known.topology.ring if known.topology is not None else ()
    apart = abs(ring.index(known.peer) - ring.index(other)) if {known.peer, other} <= {*ring} else 0
    return apart in (1, len(ring) - 1)


class Seen(Struct):
    """Of one pair."""

    number: int
    lanes: int
    changes: int = 0


class Lately(Struct):
    """What the runs of a group have met since its number is what it is."""

    lanes: int = 0
    queues: bool = True
    """In all of them one stood."""
    quiet: int = 0
    """Runs in a row in which nothing was lost, ..."""
    quiet_since: float = 0.0
    """... and as of when."""


class Widths(Checker):
    """Links have as many lanes as they may, and change only between runs and seldom."""

    name = "lanes as allowed"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._seen: dict[Pair, Seen] = {}
        self._over: set[int] = set()
        """Attempts that are aborted, or have their outcome."""
        self._wasted: dict[int, int] = {}
        """By group, runs in a row over far too many lanes."""
        self._lately: dict[int, Lately] = {}

    def master_decides(self, event: MasterEvent, effects: list[MasterEffect]) -> None:
        """No link of a collective that runs on is made again with another number, and none has more for nothing."""
        for effect in effects:
            if isinstance(effect, Note) and (change := _CHANGE.fullmatch(effect.reason)) is not None:
                group, before, after = (int(each) for each in change.groups()[:3])
                self._check_growth(self._lately.pop(group, Lately()), before, after, change[4])
        sent = [effect for effect in effects if isinstance(effect, Send) and not effect.again]
        self._over.update(each.message.attempt for each in sent if isinstance(each.message, Abort | Outcome))
        for each in sent:
            for connection in each.connections if isinstance(each.message, Wire) else ():
                known = self.ledger.known.get(connection)
                if known is not None and isinstance(each.message, Wire):
                    self._check_runs(known, each.message)

    def _check_runs(self, known: Known, wire: Wire) -> None:
        before = {link.peer: link for link in known.links.values()}
        for link in wire.links:
            old = before.get(link.peer)
            if old is None or old.lanes == link.lanes:
                continue
            for number, attempt in self.ledger.running.items():
                runs = known.peer in attempt.participants and link.peer in attempt.participants
                if runs and not attempt.cut_short and number not in self._over and _neighbours(known, link.peer):
                    raise self.fail(f"{known.peer[:8]} has attempt {number} on {old.lanes} lanes and gets {link.lanes}")

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Wire):
            return
        for link in message.links:
            self._check(known, link)
            ends = pair(known.peer, link.peer)
            seen = self._seen.setdefault(ends, Seen(link.number, link.lanes))
            if link.number > seen.number:
                changed = link.lanes != seen.lanes
                self._seen[ends] = Seen(link.number, link.lanes, seen.changes + changed)
                self._check_pace(ends, self._seen[ends])

    def _check(self, known: Known, link: LinkSpec) -> None:
        peers, plan = self.theatre.peers, self.theatre.plan
        ends = [peers.get(known.peer), peers.get(link.peer)]
        if any(end is None or end.hostile for end in ends):
            return
        asked = ends[0].identity.lanes if ends[0] is not None else 0
        if asked and link.lanes != asked and not plan.enemies:
            raise self.fail(f"link {link.number} has {link.lanes} lanes, and {asked} were asked for")
        most = min(end.identity.lanes_max for end in ends if end is not None)
        if not asked and link.lanes > max(plan.master_limits.default_lanes, 3, most):
            raise self.fail(f"link {link.number} has {link.lanes} lanes, and an end of it can open {most}")

    def _check_pace(self, ends: Pair, seen: Seen) -> None:
        allowed = FREE_CHANGES + self.theatre.scheduler.now / CHANGE_S + 2 * len(self.theatre.hosts_by_name)
        if seen.changes > allowed:
            raise self.fail(f"the lanes of {ends[0][:8]} and {ends[1][:8]} have changed {seen.changes} times")

    def _check_growth(self, lately: Lately, before: int, after: int, why: str) -> None:
        pipe = self.theatre.plan.pipe
        if pipe is None or after < before or not lately.lanes or self.theatre.plan.enemies:
            return
        if pipe.way is Way.FULL and lately.queues:
            raise self.fail(f"{before} lanes fill the way, and a queue stands, but they become {after}: {why}")
        if pipe.way is Way.FAST:
            raise self.fail(f"{before} lanes are as fast as if nothing were lost, but they become {after}: {why}")

    def run_ended(self, part: "Part") -> None:
        """What brought nothing is taken back soon."""
        plan, group = self.theatre.plan, part.host.identity.group
        if plan.pipe is None or plan.enemies or not isinstance(part.effect, StartAttempt):
            return
        lanes = lanes_of(part)
        lately = self._lately.setdefault(group, Lately())
        lately.queues &= plan.pipe.queue(lanes)
        changed, lately.lanes = lately.lanes != lanes, lanes
        if self.theatre.masters_made > 1 or not part.succeeded or part.effect.rank or part.effect.size < 2:
            return
        if plan.distance_s + plan.jitter_s > STEADY_S:
            return
        self._check_quiet(part, lately, changed)
        if plan.pipe.way not in (Way.SHALLOW, Way.DEAF):
            return
        wasted = lanes >= FACTOR * max(plan.pipe.full, plan.master_limits.default_lanes)
        self._wasted[group] = self._wasted.get(group, 0) + 1 if wasted else 0
        if self._wasted[group] > WASTED_RUNS_MAX:
            raise self.fail(f"group {group} goes on with {lanes} lanes, and {plan.pipe.full} fill the way")

    def _check_quiet(self, part: "Part", lately: Lately, changed: bool) -> None:
        """Where little else happens, too many become fewer."""
        plan, now = self.theatre.plan, self.theatre.scheduler.now
        lossless = plan.pipe is not None and not plan.pipe.flow(lately.lanes, part.run.nth).resent
        asked = plan.faults or plan.lanes != (0,) or lately.lanes <= plan.master_limits.default_lanes
        if changed or asked or not lossless or plan.pipe.way is not Way.MENDED:
            lately.quiet, lately.quiet_since = 0, now
            return
        lately.quiet += 1
        if lately.quiet > QUIET_RUNS_MAX and now - lately.quiet_since > QUIET_MAX_S:
            raise self.fail(f"{lately.lanes} lanes have lost nothing in {lately.quiet} runs, and become no fewer")
