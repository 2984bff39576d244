"""How the rings come about: votes for a new topology, the trial of a ring before it is committed, and the verdict on
peers that cannot reach each other.

Owns the topology ballot and the trial. A trial changes nothing that is committed: candidates get their place only when
every link of the new rings stands at both ends, and a peer that dies or cannot be reached is simply not part of
the next try. Accepted peers have done nothing wrong by being unable to reach one another: a ring is built around such
a pair where the group is large enough, and only of a pair that cannot be separated may one lose its place.

Rules: docs/protocol.md, "Admission".
"""

from collections.abc import Iterable, Sequence
from math import inf

from pccl.core.effects.both import Note
from pccl.core.fields import KickKind
from pccl.core.limits import LATE_S
from pccl.core.master.candidates import Candidates
from pccl.core.master.link import UNDECIDED, Link
from pccl.core.master.links import Links
from pccl.core.master.part import Common, Departure, Part, Wait
from pccl.core.master.roster import Member, MemberStage
from pccl.core.messages.to_peer import INTRODUCED_MAX, Introduce, Kick, TopologyUpdated
from pccl.core.names import shown
from pccl.core.rules.ballot import Ballot
from pccl.core.rules.ring import Pair, arrange, mesh, pairs
from pccl.core.rules.schedule import parcel_bytes
from pccl.core.text import names
from pccl.types import PeerId, count_peers, short


class Admission(Part):
    """Votes for a topology, and the trial that follows."""

    def __init__(self, common: Common, links: Links, candidates: Candidates) -> None:
        super().__init__(common)
        self.candidates = candidates
        self.ballot = Ballot[None]("update_topology", lambda: self._roster.accepted)
        self.trial: dict[PeerId, Member] | None = None
        """The candidates being tried; None when no trial is on."""
        self.begin_at = 0.0
        """No run begins before this (recovery.md, Who is waited for 6): `newborn_s` after the start of a master, `inf`
        while it gathers, `reunion_s` after the last member was lost (`Departure.back_until`)."""
        self.began_at = -inf
        """When the run began with candidates alone; long ago if it did not begin here."""
        self._also: dict[int, tuple[int, tuple[Pair, ...]]] = {}
        """Groups, and pairs that are linked there beyond ring and mesh, by the attempt that needs them."""
        self._rings: dict[int, tuple[PeerId, ...]] = {}
        """The rings of the trial, for the groups that have candidates in it."""
        self._no_way: dict[Pair, tuple[object, ...]] = {}
        """For pairs that no ring goes around: of which peers the ring would be, and without which pairs. The search
        takes long, and links that failed are looked at after every event."""
        self.links = links

    # ── rings ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def rewire(self, group: int, now: float) -> None:
        """State again which links the group needs, after its members or its trial have changed."""
        ring = self._roster.ring(group)
        tried = self._tried(group)
        self._rings.pop(group, None)
        if tried:
            order = ring + tried
            self._rings[group] = arrange(order, self.links.avoided) or order
        spare = mesh(ring) if self._meshed(group) else pairs(ring)
        spare += tuple(ends for where, also in self._also.values() if where == group for ends in also)
        self.links.want(group, need=pairs(self._rings.get(group, ring)), spare=spare, now=now)

    def link_also(self, attempt: int, group: int, ends: tuple[Pair, ...], now: float) -> None:
        """Link these pairs too, of accepted peers or with a visitor, as long as the attempt needs them."""
        self._also[attempt] = (group, ends)
        self.rewire(group, now)

    def unlink(self, attempt: int, now: float) -> None:
        """It needs them no more. Lanes that are lent outlive their link: transfers go on over them."""
        if attempt in self._also:
            group, _ = self._also.pop(attempt)
            self.rewire(group, now)

    def _meshed(self, group: int) -> bool:
        """Whether every two peers of the group shall be linked."""
        ring, limits = self._roster.ring(group), self._limits
        return len(ring) <= limits.mesh_peers_max and self._roster.lanes.get(group, 0) <= limits.mesh_lanes_max

    def _tried(self, group: int) -> tuple[PeerId, ...]:
        return tuple(peer for peer, member in (self.trial or {}).items() if member.group == group)

    def _close_ring(self, group: int) -> None:
        """A member has just gone: keep pairs that cannot reach each other apart in what is left of the ring."""
        ring = self._roster.ring(group)
        if ring:
            self._roster.rings[group] = arrange(ring, self.links.avoided) or ring

    def push(self) -> None:
        """Send every accepted peer the new epoch, and what has changed."""
        largest = max(map(len, self._roster.rings.values()), default=0)
        news = self._outbox.take_news()
        for group, ring in self._roster.rings.items():
            self._introduce(ring)
            longest = parcel_bytes(self._roster.round_trip_s(ring)) if self._meshed(group) else 0
            topology = self._roster.topology(group, largest, longest, news)
            last_numbers = self._roster.number, self.links.last_number
            signed = self._lead.tickets.issue(self._lead.run, group, topology, last_numbers, self._outbox.now)
            self._outbox.send(ring, signed)

    def _introduce(self, ring: tuple[PeerId, ...]) -> None:
        """Send the names of those that are new in a ring to the others, and to them all of them."""
        members = self._roster.accepted
        new = [peer for peer in ring if not members[peer].introduced]
        known = [peer for peer in ring if members[peer].introduced]
        for peers, others in ((known, new), (new, ring if new else ())):
            named = self._roster.named(others)
            for start in range(0, len(named), INTRODUCED_MAX):
                self._outbox.send(peers, Introduce(named[start : start + INTRODUCED_MAX]))
        for peer in new:
            members[peer].introduced = True

    def forget(self, gone: Sequence[Departure]) -> None:
        """They neither vote nor are tried nor linked any more; their rings close without them."""
        super().forget(gone)
        accepted = [each.member for each in gone if each.accepted]
        for group in _groups(accepted):
            self._close_ring(group)
        if accepted:
            self.push()
        self._withdraw([each for each in gone if each.tried])

    def _withdraw(self, gone: Sequence[Departure]) -> None:
        """These were tried, and are gone: the rest of their parties are candidates again, without a place here."""
        lost = [each.member.party for each in gone if each.member.party.size > 1]
        trial = self.trial or {}
        back = [member for member in trial.values() if member.party in lost]
        for member in back:
            del trial[member.peer]
            member.enter(MemberStage.CANDIDATE)
        for group in _groups(back):
            self.rewire(group, gone[0].now)

    def lose(self, gone: Departure) -> None:
        """One of them."""
        self.ballot.forget(gone.peer)
        self._no_way = {ends: question for ends, question in self._no_way.items() if gone.peer not in ends}
        left = {
            attempt: (group, tuple(ends for ends in also if gone.peer not in ends))
            for attempt, (group, also) in self._also.items()
        }
        self._also = {attempt: also for attempt, also in left.items() if also[1]}
        if self.trial is not None:
            self.trial.pop(gone.peer, None)

    # ── vote, trial, commit ──────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> bool:
        """Deal with one link that failed, or begin or commit a trial."""
        if self._judge(now):
            return True
        if self.trial is None:
            return self._begin(now)
        if not all(self.links.stands(group) for group in self._rings):
            return False
        self._commit(now)
        return True

    def _begin(self, now: float) -> bool:
        """Every accepted peer has voted; with none accepted there is none to ask, and the candidates go ahead."""
        carried = self.ballot.complete or (not self._roster.accepted and now >= self.begin_at)
        tried = self._roster.ready(now if self._roster.accepted else inf) if carried else {}
        if not carried or not (self.ballot.votes or tried):
            return False
        self.trial = tried
        odd = self.candidates.settle_lanes(self.trial.values())
        for member in self.trial.values():
            member.enter(MemberStage.TRIED)
            member.tried_at = now
        groups = _groups(self.trial.values())
        for member, kick in odd:
            self._door.expel(member, kick, now)
        for group in groups:
            self.rewire(group, now)
        return True

    def suspend(self, now: float, until: float = inf) -> None:
        """No peer is accepted, and peers of an earlier run have come back, or may: no other run begins."""
        self.begin_at = until
        tried, self.trial = self.trial or {}, None
        for member in tried.values():
            member.enter(MemberStage.CANDIDATE)
        for group in _groups(tried.values()):
            self.rewire(group, now)

    def shift_deadlines(self, missed_s: float, now: float) -> None:
        """Peers of an earlier run, which were to come first, may be unread: they are read before a run begins."""
        self.begin_at += missed_s + LATE_S

    def next_deadline(self) -> float | None:
        """When a run can begin with the candidates that wait."""
        soon = not self._roster.accepted and self.trial is None and 0.0 < self.begin_at < inf
        return self.begin_at if soon and self._roster.ready() else None

    def _commit(self, now: float) -> None:
        assert self.trial is not None, "commit follows a trial"
        self._roster.updated = self._roster.draw_number()
        admitted, rings = self.trial, self._rings
        self.trial, self._rings = None, {}
        if admitted:
            self.began_at = self.began_at if self._roster.accepted else now
            self._roster.accept(admitted, rings)
            self.candidates.admitted(admitted.values())
            self.links.forgive()
            here = count_peers(len(self._roster.accepted))
            parties = dict.fromkeys(shown(each.party_called) for each in admitted.values() if each.party_called)
            whole = f" (party {', '.join(parties)})" if parties else ""
            sentence = f"epoch {self._roster.epoch}: {names(admitted)}{whole} joined; {here}"
            self._outbox.announce(Note(sentence, "joined", peer=next(iter(admitted)) if len(admitted) == 1 else ""))
            self.push()
        self._outbox.send(self.ballot.votes, TopologyUpdated(self._roster.updated))
        self.ballot.clear()
        for group in rings:
            self.rewire(group, now)

    # ── peers that cannot reach each other ───────────────────────────────────────────────────────────────────────────

    def _judge(self, now: float) -> bool:
        """Deal with one link that failed from both ends. True if a ring was built around it or a member expelled."""
        for link in self.links.failing():
            if not self._both_there(link, now):
                continue
            tried = [self.trial[peer] for peer in link.ends if peer in self.trial] if self.trial else []
            if self._judge_trial(link, tried, now) if tried else self._judge_pair(link, now):
                return True
        return False

    def _judge_trial(self, link: Link, tried: list[Member], now: float) -> bool:
        """A candidate that one member cannot reach may do well elsewhere in the ring; one that fails again is refused.
        Of two candidates, the one that fewer others could reach gives way, which is known only when the other links of
        their group have stood or failed."""
        if len(tried) == 2 and any(other.failures < 2 for other in self.links.missing(link.group)):
            return False
        loser = min(tried, key=lambda member: (len(self.links.linked(member.peer)), -member.seniority))
        if not any(loser.peer in ends for ends in self.links.avoided) and self._go_around(link, now):
            return True
        # What others found at an address that a stranger named is for the operator, not for the stranger.
        self._outbox.note(Note(f"not admitted: {_unreachable(link)}", "unreachable", warns=True, peer=loser.peer))
        self._door.expel(loser, Kick(KickKind.UNREACHABLE, f"not admitted: {_unreachable(link, loser.peer)}"), now)
        return True

    def _both_there(self, link: Link, now: float) -> bool:
        """Both ends have answered since the link failed, not long ago, and were there while it was tried. A silent end
        may be the one that cannot be reached: its silence is judged first, and no other is blamed in its place. But a
        candidate that is slow all the time is not excused all the time: all others wait for it."""
        patient = now - link.wanted_at <= self._limits.silence_s
        ends = [end for peer in link.ends if (end := self._roster.member(peer)) is not None]
        answered = all(end.pulse.answered_at >= link.failed_at for end in ends)
        excused = [end for end in ends if patient or end.peer in self._roster.accepted]
        recent = now - link.failed_at <= self._limits.link_timeout_s
        return recent and answered and all(end.pulse.slow_at < link.failed_since for end in excused)

    def _judge_pair(self, link: Link, now: float) -> bool:
        """Build a ring around the pair; where there is none, be patient for as long as with a silent peer. Then the end
        goes that has such trouble with more peers than the other has. If both have with as many, either may lie: both
        stay, and the pair is named."""
        if self._go_around(link, now):
            return True
        tried_s, limits = now - link.wanted_at, self._limits
        if tried_s <= limits.silence_s:
            return False
        suspect = self.links.suspect(link.ends)
        if suspect is None and 0 < limits.undecided_s < tried_s:
            suspect = self._roster.younger(link.ends).peer
        if suspect is not None:
            self._door.expel(self._roster.known(suspect), Kick(KickKind.UNREACHABLE, _unreachable(link)), now)
        elif not link.undecided:
            link.undecided = True
            self._outbox.note(Note(f"{_unreachable(link)}. {UNDECIDED}", "undecided", warns=True))
        return suspect is not None

    def _go_around(self, link: Link, now: float) -> bool:
        """Rearrange ring and trial so that this pair are no neighbours. False if that cannot be done."""
        ring = self._roster.ring(link.group)
        avoided = {**self.links.avoided, link.ends: now}
        tried = self._tried(link.group)
        question = (ring, tried, frozenset(avoided))
        if self._no_way.get(link.ends) == question:
            return False
        around = arrange(ring, avoided)
        if tried:
            # A ring that cannot do without a pair stays as it is: with the candidates in between it perhaps can.
            around = around or ring
        if around is None or (tried and arrange(around + tried, avoided) is None):
            self._no_way[link.ends] = question
            return False
        self.links.avoid(link.ends, now)
        if around != ring:
            self._roster.reorder(link.group, around)
            sentence = f"epoch {self._roster.epoch}: the ring goes around a pair; {_unreachable(link)}"
            self._outbox.announce(Note(sentence, "detour", warns=True))
            self.push()
        self.rewire(link.group, now)
        return True

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def waits(self) -> list[Wait]:
        """Voters and candidates."""
        sentence, candidates = self._explain(), self._roster.ready()
        if not sentence:
            return []
        since = self.ballot.since if self.ballot.votes else min(each.joined_at for each in candidates.values())
        waiting, missing = (*self.ballot.votes, *candidates), tuple(self.waited_for())
        until = None if self._roster.accepted or self.begin_at == inf else self.begin_at
        outside = f"admission of {names(self.trial)} waits for links between them and the members" if self.trial else ""
        sentence += self._twins(missing)
        return [Wait(waiting, sentence, since, self.ballot.question, missing, outside, until=until)]

    def _twins(self, missing: Iterable[PeerId]) -> str:
        """Candidates that wait for a Communicator of their own process, such as a notebook's that was run twice."""
        members = self._roster.accepted
        older = {members[peer].label.process: peer for peer in missing}
        for peer, label in ((peer, each.label) for peer, each in self._roster.ready().items()):
            if label.process and label.process in older:
                pair, where = f"{short(older[label.process])} and {short(peer)}", f"pid {label.pid} on {label.machine}"
                return f"; {pair} are two Communicators of one process ({where}): close() the older one"
        return ""

    def waited_for(self) -> Iterable[PeerId]:
        """The peers that have not voted: candidates wait for them even before the first vote is cast."""
        if self.trial is None and (self.ballot.votes or self._roster.ready()):
            return [peer for peer in self._roster.accepted if peer not in self.ballot.votes]
        return ()

    def _explain(self) -> str:
        """What voters and candidates wait for; empty if no peer waits."""
        if self.trial is not None:
            links = "; ".join(link.explain() for group in self._rings for link in self.links.missing(group)[:3])
            return f"admission of {names(self.trial)} waits for {links}"
        if self.ballot.votes:
            return self.ballot.explain()
        candidates = self._roster.ready()
        if candidates and not self._roster.accepted:
            wait_s = self.begin_at - min(each.joined_at for each in candidates.values())
            held = f"candidates {names(candidates)} wait{f' up to {wait_s:.0f} s' if wait_s > 0 else ''}"
            return f"{held}: peers of an earlier run may come back first" if wait_s < inf else ""
        if candidates:
            return f"candidates {names(candidates)} wait for {names(self._roster.accepted)} to call update_topology"
        return ""


def _groups(members: Iterable[Member]) -> list[int]:
    return list(dict.fromkeys(member.group for member in members))


def _unreachable(link: Link, reader: PeerId | None = None) -> str:
    """For a reader outside the run without what others found when they dialled."""
    told = {peer: f": {cause}" if reader in (None, peer) else "" for peer, cause in link.causes.items()}
    causes = "; ".join(f"{short(peer)} could not dial{cause}" for peer, cause in told.items())
    a, b = link.ends
    return (
        f"{short(a)} and {short(b)} cannot reach each other ({causes}). Open the listening port of one of them, "
        "or set its announce address to one that the other can dial"
    )
