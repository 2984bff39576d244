"""Visitors: peers that fetch the shared state of a group while it trains on, before they join it.

Owns what becomes of a `Fetch`: a few holders of what the group last agreed on are linked with the visitor, then both
sides are told to begin, and that is all. Nobody waits for a visitor, reports about it or is judged by it; who dies or
does not answer costs the visitor its time and nobody else anything. A visitor that asks for nothing has to go, and one
that asks again waits a while: places, and what holders do for a visit, are for all. Knows nothing of digests or bytes.

The links are kept for a while after the start: a holder that closed its end of what is no link any more could do so
before the visitor, farther from us, has heard that its lanes are lent. Lanes that are lent outlive their link.
"""

from math import inf

from pccl.core.admission import Admission
from pccl.core.ballot import names
from pccl.core.limits import MasterLimits
from pccl.core.messages import RefusedSync, Serve, StartSync
from pccl.core.outbox import Outbox, clip
from pccl.core.ring import pair
from pccl.core.roster import Member, Roster
from pccl.core.schedule import transfer_lanes
from pccl.core.syncs import Syncs
from pccl.core.violation import Violation
from pccl.types import PeerId, short

HOLDERS_MAX = 3
"""Holders that serve one visitor: several bring more than one allows, and one that dies is missed little."""

LINKED_MAX = 4
"""Visitors of a group that have links at a time; the others wait for at most a few times `link_timeout_s`. Each
costs its holders descriptors, and a crowd of newcomers must not cost them all they have."""


VISITORS_MAX = 64
"""Visitors of all groups, beside `peers_max`: those behind the first few wait anyway."""


class Visit:
    """One visitor's wish."""

    def __init__(self, member: Member, now: float) -> None:
        self.peer = member.peer
        self.group = member.group
        self.since = now
        self.attempt = 0
        """Given when its links are wanted."""
        self.holders: tuple[PeerId, ...] = ()
        self.answered = False
        """It was told to begin, or that there is nothing for it."""
        self.again = False
        """It has asked once more since."""
        self.link_until = 0.0
        """Then it begins with what stands; or, once answered, its links go and it may have others."""

    def explain(self) -> str:
        """What it waits for, in words."""
        if self.again:
            return f"the visitor {short(self.peer)} waits for a while: it has just been here"
        if not self.attempt:
            return f"the visitor {short(self.peer)} waits for others to be linked with holders first"
        return f"the visitor {short(self.peer)} waits for links to {names(self.holders)}"


class Visits:
    """All visits that wait or have links, at most one of each visitor."""

    def __init__(
        self, roster: Roster, admission: Admission, syncs: Syncs, outbox: Outbox, limits: MasterLimits
    ) -> None:
        self._roster = roster
        self._admission = admission
        self._syncs = syncs
        self._outbox = outbox
        self._limits = limits
        self._visits: dict[PeerId, Visit] = {}
        self._idle_until: dict[PeerId, float] = {}
        """Visitors that have asked for nothing, or were refused since."""

    def arrive(self, member: Member, now: float) -> None:
        """A visitor is here, and is expected to say what it came for."""
        self._idle_until[member.peer] = now + self._limits.link_timeout_s

    def fetch(self, member: Member, now: float) -> None:
        """A visitor says what it came for."""
        if member.peer not in self._roster.visitors:
            raise Violation("sent Fetch, but is no visitor")
        before = self._visits.get(member.peer)
        if before is not None and (before.again or not before.answered):
            raise Violation("sent Fetch again before its answer")
        self._idle_until.pop(member.peer, None)
        if before is None:
            self._visits[member.peer] = Visit(member, now)
        else:
            before.again, before.since = True, now

    def forget(self, member: Member, now: float) -> None:
        """A member is gone. If it was a visitor, so is its wish."""
        self._idle_until.pop(member.peer, None)
        visit = self._visits.pop(member.peer, None)
        if visit is not None:
            self._admission.unlink(visit.attempt, now)

    def advance(self, now: float) -> None:
        """Link whose turn it is, and let begin whose links stand or have had their time."""
        for visit in [each for each in self._visits.values() if each.answered and each.link_until <= now]:
            self._end(visit, now)
        for visit in list(self._visits.values()):
            if not visit.attempt and self._linked(visit.group) < LINKED_MAX:
                self._link(visit, now)
            dials = self._admission.wiring.dials(visit.peer, visit.holders)
            if visit.attempt and not visit.answered and (visit.link_until <= now or not dials):
                self._begin(visit, now)

    def _linked(self, group: int) -> int:
        return sum(visit.group == group for visit in self._visits.values() if visit.holders)

    def _link(self, visit: Visit, now: float) -> None:
        holders = self._holders(visit.group)
        visit.attempt = self._roster.draw_number()
        turn = visit.attempt % max(1, len(holders))  # Not the same few for everybody.
        visit.holders = (holders[turn:] + holders[:turn])[:HOLDERS_MAX]
        visit.link_until = now + 2 * self._limits.link_timeout_s
        if visit.holders:
            ends = tuple(pair(visit.peer, holder) for holder in visit.holders)
            self._admission.link_also(visit.attempt, visit.group, ends, now)

    def _holders(self, group: int) -> tuple[PeerId, ...]:
        agreed, accepted = self._syncs.agreed.get(group), self._roster.accepted
        holders = () if agreed is None else agreed.holders
        return tuple(peer for peer in holders if peer in accepted and accepted[peer].serves)

    def _begin(self, visit: Visit, now: float) -> None:
        """Whoever is reached serves. There may have been another sync since the links were wanted."""
        agreed, wiring = self._syncs.agreed.get(visit.group), self._admission.wiring
        willing = self._holders(visit.group)
        reached = [peer for peer in visit.holders if peer in willing and wiring.reaches_all(visit.peer, (peer,))]
        if agreed is None or not reached:
            reason = f"no link to {names(visit.holders)}" if visit.holders else "nobody holds one that was synced"
            self._outbox.send((visit.peer,), RefusedSync(False, clip(f"no shared state to fetch: {reason}")))
            self._idle_until[visit.peer] = now + self._limits.link_timeout_s
            self._admission.unlink(visit.attempt, now)
            visit.answered, visit.holders, visit.link_until = True, (), now + self._limits.link_timeout_s
            return
        claim = agreed.claim
        distance_s = wiring.longest_s(pair(visit.peer, holder) for holder in reached) or inf
        lanes = transfer_lanes(self._roster.lanes[visit.group], distance_s)
        start = StartSync(visit.attempt, True, tuple(reached), lanes, claim.revision, claim.layout, claim.content)
        self._outbox.note(f"the visitor {short(visit.peer)} fetches the shared state from {names(reached)}")
        self._outbox.send((visit.peer,), start)
        self._outbox.send(reached, Serve(visit.attempt, visit.peer, lanes, claim.layout, claim.content))
        visit.answered, visit.link_until = True, now + self._limits.link_timeout_s

    def _end(self, visit: Visit, now: float) -> None:
        self._admission.unlink(visit.attempt, now)
        del self._visits[visit.peer]
        if visit.again:  # behind those who have waited meanwhile
            self._visits[visit.peer] = Visit(self._roster.visitors[visit.peer], now)

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def all(self) -> list[Visit]:
        """Those that wait."""
        return [visit for visit in self._visits.values() if visit.again or not visit.answered]

    def overdue(self, now: float) -> list[Member]:
        """Visitors that hold a place and want nothing."""
        return [self._roster.visitors[peer] for peer, until in self._idle_until.items() if until <= now]

    def excuse(self, missed_s: float) -> None:
        """We did not listen for this long ourselves: what they want may still be unread."""
        self._idle_until = {peer: until + missed_s for peer, until in self._idle_until.items()}

    def next_deadline(self) -> float | None:
        """When `advance` has something to do though nothing happened."""
        links = (visit.link_until for visit in self._visits.values() if visit.attempt)
        return min((*links, *self._idle_until.values()), default=None)
