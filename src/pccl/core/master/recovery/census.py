"""Which peers are here of a run that comes back, found from their reports.

Owns the reports and what they add up to: the highest epoch that a report of a group names has its ring, and the rings
are the roster. Does not know how long missing peers are waited for, nor what happens then. Rules: docs/recovery.md,
"Restarted master" and "Who is waited for".
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from pccl.core.limits import MasterLimits
from pccl.core.master.roster import Member, Roster
from pccl.core.messages.report import AttemptReport, LinkReport, ReportPart
from pccl.core.messages.to_master import Resume
from pccl.core.text import Violation
from pccl.types import PeerId

LENT_MAX = 2 * 1024
"""Lanes that all attempts of one peer have together. Each lane is lent to one attempt at a time, so an honest peer has
no more than a link has (1,024); without a bound thousands of attempts with as many lanes each would fill our memory."""


class Returned(Struct, eq=False):
    """One peer that came back, and its report."""

    member: Member
    resume: Resume
    issued_at: int = 0
    """When a master signed it; 0 for all if masters have no secret."""
    ring: tuple[PeerId, ...] = ()
    links: dict[int, LinkReport] = {}
    """By number, those that stand at its end."""
    attempts: dict[int, AttemptReport] = {}
    """By tag, its collectives without an outcome."""
    outcomes: dict[int, bool] = {}
    """By attempt, whether it was committed."""
    complete: bool = False
    """Its last part has arrived."""
    cut: str | None = None
    """Why its connection has ended since; None while it stands."""
    lent: int = 0
    """Lanes of all its attempts."""

    def add(self, part: ReportPart, limits: MasterLimits) -> None:
        """One more part of the report."""
        if self.complete:
            raise Violation("sent another part of its report after the last one")
        self.ring += part.ring
        self.links.update({link.number: link for link in part.links})
        self.attempts.update({attempt.tag: attempt for attempt in part.attempts})
        self.outcomes.update(dict.fromkeys(part.committed, True))
        self.outcomes.update(dict.fromkeys(part.aborted, False))
        self.lent += sum(len(attempt.lanes) for attempt in part.attempts)
        if max(len(self.ring), len(self.links)) > limits.peers_max or len(self.attempts) > limits.tags_max:
            raise Violation("reports more peers, links or collectives than there can be")
        if len(self.outcomes) > 2 * limits.tags_max:
            raise Violation("reports more outcomes than a peer could lack")
        if self.lent > LENT_MAX:
            raise Violation("reports more lanes than a link can have")
        if part.last:
            self._check()
        self.complete = part.last

    def correct(self, link: int) -> None:
        """A link broke after it was reported."""
        self.links.pop(link, None)

    def _check(self) -> None:
        """The report makes sense as a whole."""
        had, agreed = self.resume.answered, self.resume.sync.agreed
        if self.member.peer not in self.ring or len(set(self.ring)) != len(self.ring):
            raise Violation("reports a ring without itself, or with a peer twice")
        numbers = [had.accepted_at, had.topology, had.updated, had.asked, *self.outcomes]
        numbers += [each.attempt for each in self.attempts.values()]
        numbers += [] if agreed is None else [agreed.attempt]
        if max(numbers) > had.last_number or max(self.links, default=0) > self.resume.last_link:
            raise Violation("reports numbers beyond the last one that it received")


class Census(Struct, frozen=True, kw_only=True):
    """Which peers are here of the run whose report was signed last; without a secret, that most complete ones name."""

    run: str
    epoch: int
    issued_at: int
    """When the latest of its reports was signed."""
    rings: dict[int, tuple[PeerId, ...]]
    """Of the highest epoch that a report of the group names."""
    size: int
    """Peers on the roster of the highest epoch."""
    back: dict[PeerId, Returned | None]
    """Peers of the roster that are here; without a report if they never received that they had been accepted."""
    missing: tuple[PeerId, ...]
    """Peers of the roster that are not here, as far as reports name them."""
    reached: bool
    """A peer that is here has a link that stands to one of those."""
    divided: bool
    """A peer of another run is here, which was signed later or was no smaller, or one of a later epoch that reports
    still. More of those may be about to come: the peers that report faster must not end what the others are in."""
    vouched: bool
    """The whole roster is in reports of the highest epoch. A group of which all reports are older may have left it."""

    @property
    def reports(self) -> list[Returned]:
        """Those of the peers that are here."""
        return [returned for returned in self.back.values() if returned is not None]

    @property
    def unknown(self) -> int:
        """How many more are not here, of groups of which no peer is."""
        return max(0, self.size - sum(map(len, self.rings.values())))

    @property
    def whole(self) -> bool:
        """The whole roster is here."""
        return not self.missing and not self.unknown

    @property
    def admission_known(self) -> bool:
        """False if the last admission may have been committed unknown to all that are here, which takes the votes of
        all: if all of them still wait in `update_topology`. Those that were admitted may be the only ones that have
        received it, and they are the roster as much as those that admitted them."""
        return not all(returned is None or returned.resume.updating for returned in self.back.values())

    @property
    def may_still_come(self) -> bool:
        """A missing peer may well live: one that is here has a link to it that stands, or none could have one."""
        return bool(self.unknown) or self.reached

    @property
    def certain(self) -> bool:
        """No peer that is still to come could change which run goes on, or with whom: it goes on at once."""
        vouched = self.vouched or not self.issued_at
        return self.whole and vouched and self.admission_known and not self.divided

    def of_whole_parties(self, roster: Roster) -> "Census":
        """Without the peers of which another one of the same party is not here: a party goes as a whole."""
        parties = {peer: roster.known(peer).party for peer in self.back}
        counted = Counter(parties.values())
        left = [peer for peer, party in parties.items() if party.name and counted[party] != party.size]
        back = {peer: returned for peer, returned in self.back.items() if peer not in left}
        return structs.replace(self, back=back, missing=(*self.missing, *left))

    def excludes(self, peers: Iterable[PeerId]) -> bool:
        """As of the highest epoch none of these was on the roster."""
        named = {peer for ring in self.rings.values() for peer in ring}
        return self.vouched and named.isdisjoint(peers)


def take_census(returned: Mapping[PeerId, Returned], roster: Roster) -> Census | None:
    """Which peers are here; None while no report is complete."""
    complete = [each for each in returned.values() if each.complete]
    if not complete:
        return None
    run = _run(complete)
    reports = {each.member.peer: each for each in complete if each.resume.run == run}
    newest_first = sorted(reports.values(), key=lambda each: -each.resume.epoch)
    newest = newest_first[0].resume
    latest = {each.member.group: each for each in newest_first if each.resume.epoch == newest.epoch}
    vouched = sum(len(each.ring) for each in latest.values()) >= newest.global_size
    # Peers know the ring of their own group only. If no peer of a group has received the last epoch, the one before is
    # as good: whatever followed from the last one was sent after it. Not if the last roster has no place for it: then
    # all of that group had left, or were put out, by then.
    rings: dict[int, tuple[PeerId, ...]] = {}
    for each in latest.values() if vouched else newest_first:
        if each.member.group not in rings:
            rings[each.member.group] = _ring(each, roster)
    members = [peer for ring in rings.values() for peer in ring]
    # A candidate among them joined again, since it never received that it had been accepted.
    back = {peer: reports.get(peer) for peer in members if peer in reports or peer in roster.candidates}
    missing = dict.fromkeys(peer for peer in members if peer not in back)
    links = [link for each in back.values() if each is not None for link in each.links.values()]
    issued_at = max(each.issued_at for each in reports.values())
    return Census(
        run=run,
        epoch=newest.epoch,
        issued_at=issued_at,
        rings=rings,
        size=newest.global_size,
        back=back,
        missing=tuple(missing),
        reached=any(link.peer in missing for link in links),
        divided=any(_may_outdo(each, newest, issued_at) for each in returned.values()),
        vouched=vouched,
    )


def _run(complete: list[Returned]) -> str:
    """The run whose report was signed last: an earlier one had ended by then, or had given way. Without a secret that
    which most reports name, the first of equals."""
    named = [each.resume.run for each in complete]
    latest = {each.resume.run: each.issued_at for each in sorted(complete, key=lambda each: each.issued_at)}
    return max(dict.fromkeys(named), key=lambda run: (latest[run], named.count(run)))


def _may_outdo(returned: Returned, newest: Resume, issued_at: int) -> bool:
    """What this peer reports may be later than the newest of the reports that are looked at."""
    resume = returned.resume
    if resume.run == newest.run:
        return resume.epoch > newest.epoch
    return (returned.issued_at, resume.global_size) >= (issued_at, newest.global_size)


def _ring(returned: Returned, roster: Roster) -> tuple[PeerId, ...]:
    """The ring that a peer reports, without peers that are here as members of another group."""
    group = returned.member.group
    return tuple(peer for peer in returned.ring if (there := roster.member(peer)) is None or there.group == group)
