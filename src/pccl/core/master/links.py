"""The links that shall stand, and whether they do: the master's picture of all lanes between neighbours.

A **link** is all lanes between two neighbours, made together and numbered as one thing. The master states which links
each peer shall have (`Wire`), the peers report each one up or down, and a link stands when both ends say so. Nothing
is ever repaired in place: a link that fails gets a new number and is dialled from the other end, so that a late report
about the old one is recognised by its number and ignored.

Does not know why a link is wanted, nor what becomes of peers that cannot reach each other: see `admission.py`.

Rules: docs/protocol.md, "Links".
"""

from collections.abc import Callable, Iterable, Iterator
from math import inf

from pccl.core.fields import LinkSpec
from pccl.core.master.link import Link, LinkStage
from pccl.core.master.part import Common, Departure, Part
from pccl.core.master.recovery.restored import Restored, RestoredLink
from pccl.core.master.roster import Member
from pccl.core.master.widths import Widths
from pccl.core.messages.to_peer import Wire
from pccl.core.rules.ring import Pair, pair
from pccl.core.text import clip
from pccl.types import PeerId


class Links(Part):
    """All links of all groups."""

    def __init__(self, common: Common, link_keys: Callable[[int], bytes]) -> None:
        super().__init__(common)
        self._link_keys = link_keys
        self.avoided: dict[Pair, float] = {}
        """Pairs that could not reach each other, and until when rings are built around them."""
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
        self.last_number = 0
        """Of the latest one."""
        self._behind_nat: dict[PeerId, None] = {}
        """Peers whose links stood only when they were the end that dialled."""
        self._settled: dict[int, None] = {}
        """Groups whose links may all stand now, though they did not before."""
        self._used_at: dict[int, float] = {}
        """Per group, when something last began to run over its links."""
        self.widths = Widths(common.roster)

    # ── what shall stand ─────────────────────────────────────────────────────────────────────────────────────────────

    def want(self, group: int, need: tuple[Pair, ...], spare: tuple[Pair, ...], now: float) -> None:
        """From now on the group needs these pairs linked. The others are linked too, but no peer waits for that, nor is
        judged by it."""
        wanted = frozenset(need + spare)
        for link in [link for link in self._links.values() if link.group == group and link.ends not in wanted]:
            self._discard(link)
        if not wanted:
            for known in (self._needed, self._missing, self._used_at, self.widths.wide, self.widths.failed):
                known.pop(group, None)
            return
        self._settled[group] = None
        before, self._needed[group] = self._needed.get(group, ()), frozenset(need)
        self._missing.setdefault(group, {})
        for ends in need + spare:
            if ends not in self._links:
                self._create(group, ends, now)
        for ends in [ends for ends in need if ends not in before]:
            self._hurry(self._links[ends], now)
        self._missing[group] = dict.fromkeys(ends for ends in need if self._links[ends].stage is not LinkStage.STANDING)

    def restore(self, restored: Restored, now: float) -> None:
        """These links stand since the time of an earlier master. The peers that have reported may have others, whatever
        is wanted of them now: each gets a `Wire`. Numbers go on beyond those of the earlier master."""
        for each in restored.links:
            self._adopt(each, now)
        for peer in restored.returned:
            self._sent[peer] = None
            self._stale[peer] = None
        self.last_number = max(self.last_number, restored.last_link)

    def _adopt(self, restored: RestoredLink, now: float) -> None:
        link = Link(restored.group, restored.ends, now, LinkStage.STANDING)
        link.number, link.dialler, link.up = restored.number, restored.dialler, list(link.ends)
        link.round_trip_s, link.lanes = restored.round_trip_s, restored.lanes
        self._links[link.ends] = self._numbered[link.number] = link
        for peer in link.ends:
            self._ends.setdefault(peer, {})[link.ends] = link
        self.widths.restore(link)

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
        hidden = [peer for peer in ends if peer in self._behind_nat]
        if len(hidden) == 1:
            return hidden[0]
        return self._roster.younger(ends).peer

    def _discard(self, link: Link) -> None:
        del self._links[link.ends]
        self._numbered.pop(link.number, None)
        self._timed.pop(link.ends, None)
        self._failing.pop(link.ends, None)
        for peer in link.ends:
            del self._ends[peer][link.ends]
        self._stale.update(dict.fromkeys(link.ends))

    def lose(self, gone: Departure) -> None:
        """Its links are gone, too, and what was held against its pairs."""
        peer = gone.peer
        for link in list(self._ends.get(peer, {}).values()):
            self._discard(link)
            self._missing.get(link.group, {}).pop(link.ends, None)
        self._ends.pop(peer, None)
        self.avoided = {ends: until for ends, until in self.avoided.items() if peer not in ends}
        self._sent.pop(peer, None)
        self._stale.pop(peer, None)
        self._behind_nat.pop(peer, None)

    # ── what the peers report ────────────────────────────────────────────────────────────────────────────────────────

    def report_up(self, peer: PeerId, number: int, round_trip_us: int, now: float) -> None:
        """One end says that its lanes stand; a report about an old number is late, not wrong."""
        link = self._numbered.get(number)
        if link is None or peer not in link.ends or peer in link.up or link.stage is not LinkStage.DIALLING:
            return
        link.up.append(peer)
        link.round_trip_s = max(link.round_trip_s, round_trip_us / 1e6)
        if len(link.up) == 2:
            link.become(LinkStage.STANDING, now)
            link.undecided = False
            del self._timed[link.ends]
            self._failing.pop(link.ends, None)
            self._missing.get(link.group, {}).pop(link.ends, None)
            self._settled[link.group] = None
            if link.target in link.causes:
                self._behind_nat[link.dialler] = None
            self.forgive()

    def report_down(self, peer: PeerId, number: int, cause: str, now: float) -> Link | None:
        """One end says that the link failed: it is renumbered and dialled again. None if the report is late."""
        link = self._numbered.get(number)
        if link is None or peer not in link.ends:
            return None  # An old number, or one that this peer was never told of.
        self._roster.known(link.other(peer)).pulse.suspect(now)
        self._fail(link, cause, now)
        return link

    def _fail(self, link: Link, cause: str, now: float) -> None:
        members = all(peer in self._roster.accepted for peer in link.ends)
        if link.stage is LinkStage.STANDING and members and self._has_served(link, now):
            # The two can reach each other: whatever broke the link is no mark against them.
            link.failures, link.causes, link.wanted_at = 0, {}, now
            self._dial(link, now)
            return
        if members and self.widths.fail(link):
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

    def use(self, group: int, now: float) -> None:
        """Something begins to run over the links of a group: when it is aborted, links may break with it."""
        self._used_at[group] = now

    def _has_served(self, link: Link, now: float) -> bool:
        """It has stood for a while, or something ran over it. One that breaks as soon as it stands has failed: an end
        that denies it again and again would hold up all others for ever."""
        return now - link.changed_at >= self._limits.redial_s or self._used_at.get(link.group, -inf) >= link.changed_at

    def _dial(self, link: Link, now: float) -> None:
        """Let it be dialled, under a number that is told in the very next `Wire`: peers rely on numbers they do not
        know yet being the highest. Both ends are asked for a sign of life, for a frozen one fails all its links."""
        self._retire_number(link)
        self.last_number += 1
        link.number, link.up, link.round_trip_s = self.last_number, [], 0.0
        link.lanes = self.widths.wanted(link, self.needs(link))
        link.key = self._link_keys(link.number)
        self._numbered[link.number] = link
        if link.failures % 2 == 0:
            link.tried_since = now
        self._become(link, LinkStage.DIALLING, now, self._limits.link_timeout_s)

    def _rest(self, link: Link, now: float) -> None:
        """It failed from both ends: try again in a while. Before an end is blamed, both must show they are there."""
        self._retire_number(link)
        link.number, link.up = 0, []
        link.failed_since, link.failed_at = link.tried_since, now
        self._failing[link.ends] = link
        self._become(
            link, LinkStage.RESTING, now, self._limits.redial_s if self.needs(link) else self._limits.spare_redial_s
        )

    def _retire_number(self, link: Link) -> None:
        self._numbered.pop(link.number, None)
        if self.needs(link):
            self._missing[link.group][link.ends] = None

    def _become(self, link: Link, stage: LinkStage, now: float, for_s: float) -> None:
        link.become(stage, now, now + for_s)
        self._timed[link.ends] = link
        self._stale.update(dict.fromkeys(link.ends))
        self._outbox.ping(link.ends, now)

    # ── how many lanes they have ─────────────────────────────────────────────────────────────────────────────────────

    def lanes(self, pairs: Iterable[Pair]) -> int:
        """How many each of the links between these pairs has, at least; 0 without a link."""
        return min((self._links[ends].lanes for ends in pairs if ends in self._links), default=0)

    def ring_lanes(self, group: int) -> int:
        """How many a collective of the group can have."""
        return self.lanes(self._needed.get(group, ()))

    def widen(self, group: int, now: float) -> list[Link]:
        """Make the links between members again that have another number of lanes than they shall have; returns them.
        Nothing may run over them. The ends are blamed for nothing that comes of it before they stand again."""
        members = self._roster.accepted.keys()
        settled = [link for link in self._links.values() if link.group == group and members >= set(link.ends)]
        standing = [link for link in settled if link.stage is LinkStage.STANDING]
        odd = [link for link in standing if link.lanes != self.widths.wanted(link, self.needs(link))]
        for link in odd:
            link.failures, link.causes, link.wanted_at = 0, {}, now
            self._dial(link, now)
        return odd

    # ── what stands, what fails ──────────────────────────────────────────────────────────────────────────────────────

    def all(self) -> Iterable[Link]:
        """Every link that shall stand."""
        return self._links.values()

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
        make a near peer seem far; where they do not, it is the upper bound by way of the master."""
        return self.longest_s(self._needed.get(group, ())) or self._roster.round_trip_s(self._roster.ring(group))

    def longest_s(self, pairs: Iterable[Pair]) -> float:
        """The longest round trip between the two of any of these pairs; 0 if one was not measured."""
        measured = [self._links[ends].round_trip_s for ends in pairs if ends in self._links]
        return max(measured) if measured and all(measured) else 0.0

    def needs(self, link: Link) -> bool:
        """Its group cannot do without it."""
        return link.ends in self._needed.get(link.group, ())

    def failing(self) -> list[Link]:
        """The needed links that failed from both ends."""
        return [link for link in self._failing.values() if link.ends in self._missing.get(link.group, ())]

    def waited_for(self) -> Iterator[PeerId]:
        """The ends that have not reported a link up that its group needs."""
        for group in self._missing:
            for link in self.missing(group):
                yield from (peer for peer in link.ends if peer not in link.up)

    def take_settled(self) -> dict[int, None]:
        """The groups whose links may all stand now, since this was last asked."""
        settled, self._settled = self._settled, {}
        return settled

    def linked(self, peer: PeerId) -> list[PeerId]:
        """The peers at the other ends of the links of this peer that stand."""
        links = self._ends.get(peer, {}).values()
        return [link.other(peer) for link in links if link.stage is LinkStage.STANDING]

    def suspect(self, ends: Pair) -> PeerId | None:
        """Of two that cannot reach each other, the one that has such links with more peers; None if they have as many.
        A peer that denies its links has trouble with all others, each of which has with it alone."""
        bad = dict.fromkeys((*self._failing, *self.avoided, ends))
        one, other = (sum(peer in pair for pair in bad) for peer in ends)
        return None if one == other else ends[0] if one > other else ends[1]

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
        for link in [link for link in self._timed.values() if link.deadline <= now]:
            if link.stage is LinkStage.RESTING:
                self._dial(link, now)
            else:
                self._fail(link, f"no word from {link.absent} within {self._limits.link_timeout_s:g} s", now)
                late.append(link)
        return late

    def shift_deadlines(self, missed_s: float, now: float) -> None:
        """Reports of links may be waiting."""
        for link in self._timed.values():
            link.deadline += missed_s

    def next_deadline(self) -> float | None:
        """When `pass_time` has something to do."""
        return min((link.deadline for link in self._timed.values()), default=None)

    # ── what is sent to peers ────────────────────────────────────────────────────────────────────────────────────────

    def flush(self) -> None:
        """Send each peer whose links have changed the list of all its links."""
        stale, self._stale = self._stale, {}
        for peer in stale:
            member = self._roster.member(peer)
            if member is not None:
                self._send_wire(member)

    def _send_wire(self, member: Member) -> None:
        links = tuple(
            self._spec(link, member)
            for link in self._ends.get(member.peer, {}).values()
            if link.stage is not LinkStage.RESTING
        )
        if links != self._sent.get(member.peer, ()):
            self._sent[member.peer] = links
            self._outbox.send((member.peer,), Wire(links))

    def _spec(self, link: Link, member: Member) -> LinkSpec:
        other = self._roster.known(link.other(member.peer))
        dials = link.dialler == member.peer
        return LinkSpec(link.number, other.peer, dials, other.host, other.port, link.lanes, other.pin, link.key)
