"""Visitors: peers that fetch the shared state of a group while it trains on, before they join it.

Owns what becomes of a `Fetch`: a few holders of what the group last agreed on are linked with the visitor, then both
sides are told to begin, and that is all. No peer waits for a visitor, reports about it or is judged by it; one that
dies or does not answer costs the visitor its time, and no other peer anything. A visitor that asks for nothing has to
go, and one that asks again waits a while: places, and what holders do for a visit, are for all. Knows nothing of
digests or bytes.

The links are kept for a while after the start: a holder that closed its end of what is no link any more could do so
before the visitor, farther from us, has received that its lanes are lent. Lanes that are lent outlive their link.

Rules: docs/protocol.md, "Visitors".
"""

from collections.abc import Iterable
from math import inf

from pccl.core.effects.both import Note
from pccl.core.master.admission import Admission
from pccl.core.master.part import Common, Departure, Part, Wait
from pccl.core.master.roster import Member
from pccl.core.master.sync import Syncs
from pccl.core.messages.to_peer import RefusedSync, Serve, StartSync
from pccl.core.rules.ring import pair
from pccl.core.rules.schedule import transfer_lanes
from pccl.core.staged import Stage, Staged
from pccl.core.text import Violation, clip, names
from pccl.types import PeerId, short

HOLDERS_MAX = 3
"""Holders that serve one visitor: several bring more than one allows, and one that dies is missed little."""

LINKED_MAX = 4
"""Visitors of a group that have links at a time; the others wait for at most a few times `link_timeout_s`. Each
costs its holders descriptors, and a crowd of newcomers must not cost them all they have."""


VISITORS_MAX = 64
"""Visitors of all groups, beside `peers_max`: those behind the first few wait anyway."""


class VisitStage(Stage):
    """Where the wish of a visitor is."""

    QUEUED = "`Fetch` has come; others are linked with holders first", ("LINKING", "ENDED")
    LINKING = "links between the visitor and holders are being made", ("ANSWERED", "ENDED")
    ANSWERED = (
        "both sides were told to begin, or the visitor that there is nothing; its links are kept for a while",
        ("ASKED_AGAIN", "ENDED"),
    )
    ASKED_AGAIN = "`Fetch` has come again; it is queued when that while is over", ("ENDED",)
    ENDED = "its links are gone", ()


class Visit(Staged[VisitStage]):
    """One visitor's wish."""

    def __init__(self, member: Member, now: float) -> None:
        super().__init__(VisitStage.QUEUED)
        self.peer = member.peer
        self.group = member.group
        self.since = now
        self.attempt = 0
        """Given when its links are wanted."""
        self.holders: tuple[PeerId, ...] = ()
        self.until = inf
        """When this stage is over: it begins with what stands; or, once answered, its links go."""

    def explain(self) -> str:
        """What it waits for, in words."""
        if self.stage is VisitStage.ASKED_AGAIN:
            return f"the visitor {short(self.peer)} waits for a while: it has just been here"
        if self.stage is VisitStage.QUEUED:
            return f"the visitor {short(self.peer)} waits for others to be linked with holders first"
        return f"the visitor {short(self.peer)} waits for links to {names(self.holders)}"


ANSWERED = (VisitStage.ANSWERED, VisitStage.ASKED_AGAIN)


class Visits(Part):
    """All visits that wait or have links, at most one of each visitor."""

    def __init__(self, common: Common, admission: Admission, syncs: Syncs) -> None:
        super().__init__(common)
        self._admission = admission
        self._syncs = syncs
        self._visits: dict[PeerId, Visit] = {}
        self._idle_until: dict[PeerId, float] = {}
        """Visitors that have asked for nothing, or were refused since."""

    def arrive(self, member: Member, now: float) -> None:
        """A visitor is here, and is expected to send `Fetch`."""
        self._idle_until[member.peer] = now + self._limits.link_timeout_s

    def fetch(self, member: Member, now: float) -> None:
        """A visitor sends `Fetch`."""
        if member.peer not in self._roster.visitors:
            raise Violation("sent Fetch, but is no visitor")
        before = self._visits.get(member.peer)
        if before is not None and before.stage is not VisitStage.ANSWERED:
            raise Violation("sent Fetch again before its answer")
        self._idle_until.pop(member.peer, None)
        if before is None:
            self._visits[member.peer] = Visit(member, now)
        else:
            before.enter(VisitStage.ASKED_AGAIN)
            before.since = now

    def lose(self, gone: Departure) -> None:
        """The wish of a visitor is gone with it."""
        self._idle_until.pop(gone.peer, None)
        visit = self._visits.pop(gone.peer, None)
        if visit is not None:
            self._admission.unlink(visit.attempt, gone.now)

    def advance(self, now: float) -> bool:
        """Link whose turn it is, and let begin whose links stand or have had their time."""
        for visit in [each for each in self._visits.values() if each.stage in ANSWERED and each.until <= now]:
            self._end(visit, now)
        for visit in list(self._visits.values()):
            if visit.stage is VisitStage.QUEUED and self._linked(visit.group) < LINKED_MAX:
                self._link(visit, now)
            dials = self._admission.links.dials(visit.peer, visit.holders)
            if visit.stage is VisitStage.LINKING and (visit.until <= now or not dials):
                self._begin(visit, now)
        return False

    def _linked(self, group: int) -> int:
        return sum(visit.group == group for visit in self._visits.values() if visit.holders)

    def _link(self, visit: Visit, now: float) -> None:
        visitor = self._roster.visitors[visit.peer]
        kick = self._admission.candidates.other_lanes(visitor)
        if kick is not None:  # The run that is here now began after it came.
            self._door.expel(visitor, kick, now)
            return
        holders = self._holders(visit.group)
        visit.enter(VisitStage.LINKING)
        visit.attempt = self._roster.draw_number()
        turn = visit.attempt % max(1, len(holders))  # Not the same few for all visitors.
        visit.holders = (holders[turn:] + holders[:turn])[:HOLDERS_MAX]
        visit.until = now + 2 * self._limits.link_timeout_s
        if visit.holders:
            ends = tuple(pair(visit.peer, holder) for holder in visit.holders)
            self._admission.link_also(visit.attempt, visit.group, ends, now)

    def _holders(self, group: int) -> tuple[PeerId, ...]:
        agreed, accepted = self._syncs.agreed.get(group), self._roster.accepted
        holders = () if agreed is None else agreed.holders
        return tuple(peer for peer in holders if peer in accepted and accepted[peer].serves)

    def _begin(self, visit: Visit, now: float) -> None:
        """Every holder that is reached serves. There may have been another sync since the links were wanted."""
        visit.enter(VisitStage.ANSWERED)
        visit.until = now + self._limits.link_timeout_s
        agreed, links = self._syncs.agreed.get(visit.group), self._admission.links
        willing = self._holders(visit.group)
        reached = [peer for peer in visit.holders if peer in willing and links.reaches_all(visit.peer, (peer,))]
        if agreed is None or not reached:
            reason = f"no link to {names(visit.holders)}" if visit.holders else "no peer holds one that was synced"
            self._outbox.send((visit.peer,), RefusedSync(False, clip(f"no shared state to fetch: {reason}")))
            self._idle_until[visit.peer] = now + self._limits.link_timeout_s
            self._admission.unlink(visit.attempt, now)
            visit.holders = ()
            return
        claim = agreed.claim
        ends = [pair(visit.peer, holder) for holder in reached]
        lanes = transfer_lanes(links.lanes(ends), links.longest_s(ends) or inf)
        start = StartSync(visit.attempt, True, tuple(reached), lanes, claim.revision, claim.layout, claim.content)
        sentence = f"the visitor {short(visit.peer)} fetches the shared state from {names(reached)}"
        self._outbox.note_outsider(Note(sentence, "visit", peer=visit.peer), self._roster.known(visit.peer).seen_host)
        self._outbox.send((visit.peer,), start)
        self._outbox.send(reached, Serve(visit.attempt, visit.peer, lanes, claim.layout, claim.content))

    def _end(self, visit: Visit, now: float) -> None:
        self._admission.unlink(visit.attempt, now)
        del self._visits[visit.peer]
        again = visit.stage is VisitStage.ASKED_AGAIN
        visit.enter(VisitStage.ENDED)
        if again:  # behind those who have waited meanwhile
            self._visits[visit.peer] = Visit(self._roster.visitors[visit.peer], now)

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def waits(self) -> list[Wait]:
        """Those that have asked and not begun."""
        visits = [visit for visit in self._visits.values() if visit.stage is not VisitStage.ANSWERED]
        return [Wait((visit.peer,), visit.explain(), visit.since, "prefetch_shared_state") for visit in visits]

    def waited_for(self) -> Iterable[PeerId]:
        """All visitors: no peer needs them, but others may want their places."""
        return self._roster.visitors

    def overdue(self, now: float) -> list[Member]:
        """Visitors that hold a place and want nothing."""
        return [self._roster.visitors[peer] for peer, until in self._idle_until.items() if until <= now]

    def shift_deadlines(self, missed_s: float, now: float) -> None:
        """What visitors want, and the reports of their links, may still be unread."""
        for visit in self._visits.values():
            visit.until += missed_s
        self._idle_until = {peer: until + missed_s for peer, until in self._idle_until.items()}

    def next_deadline(self) -> float | None:
        """When `advance` has something to do though nothing happened."""
        over = (visit.until for visit in self._visits.values() if visit.stage is not VisitStage.QUEUED)
        return min((*over, *self._idle_until.values()), default=None)
