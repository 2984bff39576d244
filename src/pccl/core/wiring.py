"""The links that shall stand, and whether they do: the master's picture of all lanes between neighbours.

A **link** is all lanes between two neighbours, made together and numbered as one thing. The master states which links
each peer shall have (`Wire`), the peers report each one up or down, and a link stands when both ends say so. Nothing
is ever repaired in place: a link that fails gets a new number and is dialled from the other end, so that a late report
about the old one is recognised by its number and ignored.

Does not know why a link is wanted, nor what becomes of peers that cannot reach each other: see `admission.py`.
"""

from collections.abc import Iterable, Iterator
from enum import Enum

from pccl.core.limits import MasterLimits
from pccl.core.messages import LinkSpec, Wire
from pccl.core.outbox import Outbox, clip
from pccl.core.ring import Pair, pair
from pccl.core.roster import Member, Roster
from pccl.types import PeerId, short


class LinkStage(Enum):
    """Where a link is in its life."""

    DIALLING = "dialling"
    STANDING = "standing"
    RESTING = "resting"


LINK_STAGES: dict[LinkStage, tuple[str, tuple[LinkStage, ...]]] = {
    LinkStage.DIALLING: (
        "one end dials, at most one end has reported up, until `link_timeout_s`",
        (LinkStage.STANDING, LinkStage.DIALLING, LinkStage.RESTING),
    ),
    LinkStage.STANDING: ("both ends reported up", (LinkStage.DIALLING, LinkStage.RESTING)),
    LinkStage.RESTING: (
        "failed from both ends; without a number, dialled again after `redial_s`",
        (LinkStage.DIALLING,),
    ),
}
"""Meaning and successors of each stage; `docs/protocol.md` is checked against this table."""


class Link:
    """One link: who dials it, who says that it is up, and its record of failures since it last stood."""

    def __init__(self, group: int, ends: Pair, now: float) -> None:
        self.number = 0
        """Given when it is dialled, told to both ends at once, never reused; 0 while it rests."""
        self.group = group
        self.ends = ends
        self.dialler: PeerId = ends[0]
        self.stage = LinkStage.DIALLING
        self.up: list[PeerId] = []
        self.round_trip_s = 0.0
        """As the end that dialled measured it; 0 when neither end has."""
        self.failures = 0
        self.causes: dict[PeerId, str] = {}
        """Why it failed the last time each end dialled."""
        self.wanted_at = now
        self.changed_at = now
        self.deadline: float | None = None
        """End of dialling or of resting."""
        self.tried_since = now
        """When the first of its last two tries began."""
        self.failed_since, self.failed_at = now, 0.0
        """From when until when it was last tried in vain, from both ends."""

    def become(self, stage: LinkStage, now: float, deadline: float | None) -> None:
        """Enter a stage; only the successors of the present one are possible."""
        assert stage in LINK_STAGES[self.stage][1], f"link {self.number}: {self.stage} cannot become {stage}"
        self.stage, self.changed_at, self.deadline = stage, now, deadline

    @property
    def target(self) -> PeerId:
        """The end that is dialled."""
        return self.ends[1] if self.dialler == self.ends[0] else self.ends[0]

    def explain(self) -> str:
        """What is known about it, for a sentence."""
        causes = "; ".join(f"{short(peer)} dialled: {cause}" for peer, cause in self.causes.items())
        absent = " and ".join(short(peer) for peer in self.ends if peer not in self.up)
        return f"the link {short(self.ends[0])}–{short(self.ends[1])}: {causes or f'no word yet from {absent}'}"


class Wiring:
    """All links of all groups."""

    def __init__(self, roster: Roster, outbox: Outbox, limits: MasterLimits) -> None:
        self.avoided: dict[Pair, float] = {}
        """Pairs that could not reach each other, and until when rings are built around them."""
        self._roster = roster
        self._outbox = outbox
        self._limits = limits
        self._links: dict[Pair, Link] = {}
        self._numbered: dict[int, Link] = {}
        self._ends: dict[PeerId, dict[Pair, Link]] = {}
        """The links of each peer."""
        self._timed: dict[Pair, Link] = {}
        """The links with a deadline, which are those that do not stand."""
        self._failing: dict[Pair, Link] = {}
        """The links that failed from both ends since they last stood."""
        self._missing: dict[int, dict[Pair, None]] = {}
        """Per group, the needed pairs whose link does not stand."""
        self._needed: dict[int, frozenset[Pair]] = {}
        self._sent: dict[PeerId, tuple[LinkSpec, ...] | None] = {}
        self._stale: dict[PeerId, None] = {}
        """Peers whose links have changed since their last `Wire`."""
        self._last_number = 0

    # ── what shall stand ─────────────────────────────────────────────────────────────────────────────────────────────

    def want(self, group: int, need: tuple[Pair, ...], spare: tuple[Pair, ...], now: float) -> None:
        """From now on the group needs these pairs linked. The others are linked too, but nobody waits for that, and
        nobody is judged by it."""
        wanted = frozenset(need + spare)
        for link in [link for link in self._links.values() if link.group == group and link.ends not in wanted]:
            self._discard(link)
        if not wanted:
            self._needed.pop(group, None)
            self._missing.pop(group, None)
            return
        for ends in need + spare:
            if ends not in self._links:
                self._create(group, ends, now)
        for ends in [ends for ends in need if ends not in self._needed.get(group, ())]:
            self._hurry(self._links[ends], now)
        self._needed[group] = frozenset(need)
        self._missing[group] = dict.fromkeys(ends for ends in need if self._links[ends].stage is not LinkStage.STANDING)

    def adopt(self, group: int, number: int, ends: tuple[Pair, PeerId], now: float) -> Link:
        """This link stands since the time of an earlier master; who dialled it comes second in `ends`."""
        link = Link(group, ends[0], now)
        link.number, link.dialler, link.up, link.stage = number, ends[1], list(link.ends), LinkStage.STANDING
        self._links[link.ends] = self._numbered[number] = link
        for peer in link.ends:
            self._ends.setdefault(peer, {})[link.ends] = link
        return link

    def assume(self, peer: PeerId) -> None:
        """This peer has links of an earlier master, whatever is wanted of it: it must be told."""
        self._sent[peer] = None
        self._stale[peer] = None

    def count_from(self, number: int) -> None:
        """Numbers up to this one are those of an earlier master."""
        self._last_number = max(self._last_number, number)

    def _create(self, group: int, ends: Pair, now: float) -> None:
        link = self._links[ends] = Link(group, ends, now)
        link.dialler = self._first_dialler(ends)
        for peer in ends:
            self._ends.setdefault(peer, {})[ends] = link
        self._dial(link, now)

    def _hurry(self, link: Link, now: float) -> None:
        """It is needed from now on: whatever time it took as a spare does not count."""
        link.wanted_at = now
        if link.stage is LinkStage.RESTING:
            self._dial(link, now)

    def _first_dialler(self, ends: Pair) -> PeerId:
        """A peer behind NAT dials; otherwise the younger does, since the older has been reached by others before."""
        a, b = (self._roster.member(peer) for peer in ends)
        if a is not None and b is not None and a.dials != b.dials:
            return a.peer if a.dials else b.peer
        return self._roster.younger(ends).peer

    def _discard(self, link: Link) -> None:
        del self._links[link.ends]
        self._numbered.pop(link.number, None)
        self._timed.pop(link.ends, None)
        self._failing.pop(link.ends, None)
        for peer in link.ends:
            del self._ends[peer][link.ends]
        self._stale.update(dict.fromkeys(link.ends))

    def forget(self, peer: PeerId) -> None:
        """A peer is gone: so are its links, and what was held against its pairs."""
        for link in list(self._ends.get(peer, {}).values()):
            self._discard(link)
            self._missing.get(link.group, {}).pop(link.ends, None)
        self._ends.pop(peer, None)
        self.avoided = {ends: until for ends, until in self.avoided.items() if peer not in ends}
        self._sent.pop(peer, None)
        self._stale.pop(peer, None)

    # ── what the peers report ────────────────────────────────────────────────────────────────────────────────────────

    def report_up(self, peer: PeerId, number: int, round_trip_us: int, now: float) -> None:
        """One end says that its lanes stand; a report about an old number is late, not wrong."""
        link = self._numbered.get(number)
        if link is None or peer not in link.ends or peer in link.up or link.stage is not LinkStage.DIALLING:
            return
        link.up.append(peer)
        link.round_trip_s = max(link.round_trip_s, round_trip_us / 1e6)
        if len(link.up) == 2:
            link.become(LinkStage.STANDING, now, None)
            del self._timed[link.ends]
            self._failing.pop(link.ends, None)
            self._missing.get(link.group, {}).pop(link.ends, None)
            self._remember_direction(link)
            self.forgive()

    def _at_other_end(self, link: Link, peer: PeerId) -> Member:
        return self._roster.known(link.ends[1] if link.ends[0] == peer else link.ends[0])

    def _remember_direction(self, link: Link) -> None:
        dialler = self._roster.member(link.dialler)
        if dialler is not None and link.target in link.causes:
            dialler.dials = True

    def report_down(self, peer: PeerId, number: int, cause: str, now: float) -> Link | None:
        """One end says that the link failed: it is renumbered and dialled anew. None if the report is late."""
        link = self._numbered.get(number)
        if link is None or peer not in link.ends:
            return None  # An old number, or one that this peer was never told of.
        self._at_other_end(link, peer).doubted_at = now
        self._fail(link, cause, now)
        return link

    def _fail(self, link: Link, cause: str, now: float) -> None:
        if link.stage is LinkStage.STANDING and all(peer in self._roster.accepted for peer in link.ends):
            # The two can reach each other: whatever broke the link is no mark against them.
            link.failures, link.causes, link.wanted_at = 0, {}, now
            self._dial(link, now)
            return
        # A candidate's link has nothing else to do than to stand until the trial is over, nor has a visitor's before
        # the transfer: one that breaks has failed.
        link.causes[link.dialler] = clip(cause)
        link.failures += 1
        link.dialler = link.target
        if link.failures % 2 == 1:
            self._dial(link, now)
        else:
            self._rest(link, now)

    def _dial(self, link: Link, now: float) -> None:
        """Let it be dialled, under a number that is told in the very next `Wire`: peers rely on numbers they do not
        know yet being the highest. Both ends are asked for a sign of life, for a frozen one fails all its links."""
        self._retire_number(link)
        self._last_number += 1
        link.number, link.up, link.round_trip_s = self._last_number, [], 0.0
        self._numbered[link.number] = link
        if link.failures % 2 == 0:
            link.tried_since = now
        self._become(link, LinkStage.DIALLING, now, self._limits.link_timeout_s)

    def _rest(self, link: Link, now: float) -> None:
        """It failed from both ends: try again in a while. Before anybody is blamed, both must show they are there."""
        self._retire_number(link)
        link.number, link.up = 0, []
        link.failed_since, link.failed_at = link.tried_since, now
        self._failing[link.ends] = link
        self._become(
            link, LinkStage.RESTING, now, self._limits.redial_s if self.needs(link) else self._limits.spare_redial_s
        )

    def _retire_number(self, link: Link) -> None:
        self._numbered.pop(link.number, None)
        if link.ends in self._needed.get(link.group, ()):
            self._missing[link.group][link.ends] = None

    def _become(self, link: Link, stage: LinkStage, now: float, for_s: float) -> None:
        link.become(stage, now, now + for_s)
        self._timed[link.ends] = link
        self._stale.update(dict.fromkeys(link.ends))
        self._outbox.ping(link.ends, now)

    # ── what stands, what fails ──────────────────────────────────────────────────────────────────────────────────────

    def stands(self, group: int) -> bool:
        """Every link that the group needs stands."""
        return not self._missing.get(group)

    def missing(self, group: int) -> list[Link]:
        """The links that the group waits for."""
        return [self._links[ends] for ends in self._missing.get(group, ())]

    def reaches_all(self, peer: PeerId, others: Iterable[PeerId]) -> bool:
        """The links between this peer and each of the others stand."""
        links = (self._links.get(pair(peer, other)) for other in others if other != peer)
        return all(link is not None and link.stage is LinkStage.STANDING for link in links)

    def dials(self, peer: PeerId, others: Iterable[PeerId]) -> bool:
        """A link between this peer and one of the others is being made."""
        links = (self._links.get(pair(peer, other)) for other in others)
        return any(link is not None and link.stage is LinkStage.DIALLING for link in links)

    def round_trip_s(self, group: int) -> float:
        """The longest round trip between neighbours of the group. Kernels measure it, so that a busy process does not
        make a near peer seem far; where they do not tell, it is the upper bound by way of the master."""
        return self.longest_s(self._needed.get(group, ())) or self._roster.round_trip_s(self._roster.ring(group))

    def longest_s(self, pairs: Iterable[Pair]) -> float:
        """The longest round trip between the two of any of these pairs; 0 if one was not measured."""
        measured = [self._links[ends].round_trip_s for ends in pairs if ends in self._links]
        return max(measured) if measured and all(measured) else 0.0

    def needs(self, link: Link) -> bool:
        """Its group cannot do without it."""
        return link.ends in self._needed.get(link.group, ())

    @property
    def complete(self) -> bool:
        """Every link that any group needs stands."""
        return not any(self._missing.values())

    def failing(self) -> list[Link]:
        """The needed links that failed from both ends."""
        return [link for link in self._failing.values() if link.ends in self._missing.get(link.group, ())]

    def all_missing(self) -> Iterator[Link]:
        """The links that any group waits for."""
        for group in self._missing:
            yield from self.missing(group)

    def linked(self, peer: PeerId) -> list[PeerId]:
        """Those at the other ends of the links of this peer that stand."""
        links = self._ends.get(peer, {}).values()
        return [self._at_other_end(link, peer).peer for link in links if link.stage is LinkStage.STANDING]

    def avoid(self, ends: Pair, now: float) -> None:
        """Build rings around this pair for a while."""
        self.avoided[ends] = now + self._limits.avoid_s

    def forgive(self) -> None:
        """Members that reach each other after all are kept apart no more: theirs may be the only way around another
        pair. Not candidates: one whose links failed and stood by turns would be tried for ever."""
        members = self._roster.accepted.keys()
        forgiven = [ends for ends in self.avoided if members >= set(ends) and self.reaches_all(ends[0], ends[1:])]
        self.avoided = {ends: until for ends, until in self.avoided.items() if ends not in forgiven}

    def pass_time(self, now: float) -> list[Link]:
        """Fail the links whose dialling took too long (they are returned) and dial the rested ones again."""
        self.avoided = {ends: until for ends, until in self.avoided.items() if until > now}
        late = []
        for link in [link for link in self._timed.values() if link.deadline is not None and link.deadline <= now]:
            if link.stage is LinkStage.RESTING:
                self._dial(link, now)
            else:
                absent = " and ".join(short(peer) for peer in link.ends if peer not in link.up)
                self._fail(link, f"no word from {absent} within {self._limits.link_timeout_s:g} s", now)
                late.append(link)
        return late

    def excuse(self, missed_s: float) -> None:
        """We did not listen for this long ourselves: reports may be waiting, so all deadlines move."""
        for link in self._timed.values():
            if link.deadline is not None:
                link.deadline += missed_s

    def next_deadline(self) -> float | None:
        """When `pass_time` has something to do."""
        return min((link.deadline for link in self._timed.values() if link.deadline is not None), default=None)

    # ── telling the peers ────────────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Send each peer whose links have changed the list of all its links."""
        stale, self._stale = self._stale, {}
        for peer in stale:
            member = self._roster.member(peer)
            if member is not None:
                self._tell(member)

    def _tell(self, member: Member) -> None:
        links = tuple(
            self._spec(link, member)
            for link in self._ends.get(member.peer, {}).values()
            if link.stage is not LinkStage.RESTING
        )
        if links != self._sent.get(member.peer, ()):
            self._sent[member.peer] = links
            self._outbox.send((member.peer,), Wire(links))

    def _spec(self, link: Link, member: Member) -> LinkSpec:
        other = self._at_other_end(link, member.peer)
        lanes = self._roster.lanes[link.group]
        return LinkSpec(link.number, other.peer, link.dialler == member.peer, other.host, other.port, lanes)
