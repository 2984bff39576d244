"""Which peers are here: candidates, accepted peers, their groups and rings, and the epoch that numbers all of it; and
visitors, which belong to none of these.

Owns membership and nothing else: it does not know how peers come to be accepted or why they go.

Rules: docs/protocol.md, "Membership".
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from math import inf

from pccl.core.fields import Identity, Party, same_secret
from pccl.core.master.pulse import Pulse
from pccl.core.master.recovery.restored import Restored
from pccl.core.messages.to_master import First
from pccl.core.messages.to_peer import Named, ToPeer, Topology
from pccl.core.names import Names
from pccl.core.rights import Rights, origin_of
from pccl.core.rules.ring import Pair
from pccl.core.session import Session
from pccl.core.staged import Stage, Staged
from pccl.types import PeerId


class MemberStage(Stage):
    """Where a peer is in its membership, as the master sees it."""

    NEW = "its first message has arrived", ("CANDIDATE", "VISITOR", "RETURNING")
    CANDIDATE = (
        "joined; waits for all accepted peers to vote for a new topology, for none if none is accepted",
        ("TRIED", "ACCEPTED", "GONE"),
    )
    TRIED = "part of the trial: links to its future neighbours are being made", ("CANDIDATE", "ACCEPTED", "GONE")
    VISITOR = "joined to fetch the shared state; never admitted", ("GONE",)
    RETURNING = "sent `Resume` to a master that did not lead its run; reports what it knows", ("ACCEPTED", "GONE")
    ACCEPTED = "on the roster, in its group's ring, votes in every ballot", ("AWAY", "GONE")
    AWAY = "on the roster, without a connection; its place is kept for a while", ("ACCEPTED", "GONE")
    GONE = "left, crashed, refused or kicked; its identity never returns", ()


class Member(Staged[MemberStage]):
    """One peer, from its `Join` until it is gone for good."""

    def __init__(self, first: First, connection: int, seen_host: str, now: float) -> None:
        super().__init__(MemberStage.NEW)
        me = first.me
        self.rights = Rights.NONE
        """Of its present connection."""
        self.peer = me.peer
        self.group = me.group
        self.connection = connection
        self.host, self.port = me.host or seen_host, me.port
        self.lanes, self.lanes_max, self.threads = me.lanes, me.lanes_max, me.threads
        self.pin, self.lane_tls = me.pin, me.lane_tls
        self.secret = me.secret
        self.serves = me.serves
        """Lets visitors have its shared state."""
        self.dial = first.dial
        """Which of its connections this is."""
        self.session = Session[ToPeer]()
        self.came_from: tuple[str, int] | None = None
        """If we have taken it over by its report: the master named in it, and how many messages of that it had."""
        self.repeats_report = False
        """It came back to this master, and its `ReportPart`s, which are still arriving, are skipped."""
        self.label = me.label
        self.party = me.party if me.party.name else Party()
        self.party_called = ""
        """What others know its party by, once it is accepted."""
        self.announced, self.seen_host = me.host, seen_host
        """Where it says that it can be dialled, and where its connection comes from."""
        self.origin = origin_of(seen_host)
        self.introduced = False
        """It was sent the names of the peers in its ring."""
        self.seniority = 0
        """Order of arrival: the younger of two gives way."""
        self.joined_at = now
        self.rests_until = 0.0
        """As a candidate it is not tried before."""
        self.tried_at = now
        """When its trial began."""
        self.pulse = Pulse()

    def knows(self, me: Identity) -> bool:
        """Another connection comes from the same peer: it has the secret, and there is one."""
        return bool(self.secret) and same_secret(self.secret, me.secret)


class Roster:
    """Candidates and accepted peers. Invariant: each accepted peer is in exactly one ring, its group's."""

    def __init__(self) -> None:
        self.epoch = 0
        self.names = Names()
        self.accepted: dict[PeerId, Member] = {}
        self.candidates: dict[PeerId, Member] = {}
        self.returning: dict[PeerId, Member] = {}
        """Peers that were accepted by an earlier master, until it is known which of them are here."""
        self.visitors: dict[PeerId, Member] = {}
        """They come for the shared state of a group: no peer waits for one, admits one or is judged by one."""
        self.rings: dict[int, tuple[PeerId, ...]] = {}
        self.lanes: dict[int, int] = {}
        """Lanes per link with which a group began, fixed by the trial of its first members: what its users asked for,
        or the least that it has (`master/lanes.py`)."""
        self._connections: dict[int, Member] = {}
        self._arrivals = 0
        self.number = 0
        """Of the latest attempt or answer."""
        self.updated = 0
        """Of the latest ballot on a topology that is over."""

    def find(self, connection: int) -> Member | None:
        """The member on a connection."""
        return self._connections.get(connection)

    def member(self, peer: PeerId) -> Member | None:
        """The member with this id."""
        return (
            self.accepted.get(peer) or self.candidates.get(peer) or self.visitors.get(peer) or self.returning.get(peer)
        )

    def everybody(self) -> list[Member]:
        """All that are here, as whatever."""
        kinds = (self.accepted, self.candidates, self.visitors, self.returning)
        return [member for kind in kinds for member in kind.values()]

    def kind(self, peer: PeerId) -> str:
        """What to call a peer that is not accepted."""
        return "visitor" if peer in self.visitors else "returned" if peer in self.returning else "candidate"

    def younger(self, pair: Pair) -> Member:
        """Of two members, the one that came later."""
        return max((self.known(peer) for peer in pair), key=lambda member: member.seniority)

    def known(self, peer: PeerId) -> Member:
        """The member with this id, which is here."""
        member = self.member(peer)
        assert member is not None, f"{peer} is on no roster"
        return member

    def ring(self, group: int) -> tuple[PeerId, ...]:
        """The ring of a group, empty if it has no accepted peer."""
        return self.rings.get(group, ())

    def round_trip_s(self, ring: Iterable[PeerId]) -> float:
        """An upper bound on the round trip between any two of these peers: by way of the master."""
        return 2 * max((self.accepted[peer].pulse.round_trip_s for peer in ring), default=inf)

    def draw_number(self) -> int:
        """A number for what is tried next with lanes of members, or for an answer; never given twice."""
        self.number += 1
        return self.number

    def named(self, peers: Iterable[PeerId]) -> tuple[Named, ...]:
        """What those of these accepted peers are called that are called anything."""
        named = (Named(peer, self.names.name(peer), self.accepted[peer].party_called) for peer in peers)
        return tuple(each for each in named if each.name or each.party)

    def __len__(self) -> int:
        """Members and candidates; visitors take no place of theirs."""
        return len(self.accepted) + len(self.candidates)

    def ready(self, now: float = inf) -> dict[PeerId, Member]:
        """The candidates that can be tried by then: those that do not rest, each with its whole party, which has no
        namesake of the same machine on the roster."""
        awake = {peer: each for peer, each in self.candidates.items() if each.rests_until <= now}
        counted = Counter(each.party for each in awake.values() if each.party.name)
        here = {each.party.which for each in self.accepted.values()} if counted else set()
        whole = {party for party, count in counted.items() if count == party.size and party.which not in here}
        return {peer: each for peer, each in awake.items() if not each.party.name or each.party in whole}

    def mates(self, member: Member) -> list[Member]:
        """The other members of the party of a member; none if it is not accepted."""
        if member.party.size == 1 or member.peer not in self.accepted:
            return []
        return [each for each in self.accepted.values() if each is not member and each.party == member.party]

    def add_candidate(self, member: Member) -> None:
        """A peer joined."""
        self._add(member, MemberStage.CANDIDATE, self.candidates)

    def add_visitor(self, member: Member) -> None:
        """A peer came to fetch the shared state."""
        self._add(member, MemberStage.VISITOR, self.visitors)

    def add_returning(self, member: Member) -> None:
        """A peer of an earlier master came back."""
        self._add(member, MemberStage.RETURNING, self.returning)

    def _add(self, member: Member, stage: MemberStage, kind: dict[PeerId, Member]) -> None:
        self._rank(member)
        member.enter(stage)
        kind[member.peer] = member
        self.names.learn(member.peer, member.label.name)
        self._connections[member.connection] = member

    def _rank(self, member: Member) -> None:
        self._arrivals += 1
        member.seniority = self._arrivals

    def rebind(self, member: Member, connection: int) -> None:
        """A member came back on another connection."""
        del self._connections[member.connection]
        member.connection = connection
        self._connections[connection] = member

    def restore(self, restored: Restored) -> None:
        """The members of these rings are the roster; all of them are here."""
        self.updated, self.number = restored.updated, restored.number
        self.lanes.update(restored.lanes)
        for peer in (peer for ring in restored.rings.values() for peer in ring):
            member = self.returning.pop(peer, None) or self.candidates.pop(peer)
            self._rank(member)
            member.enter(MemberStage.ACCEPTED)
            self.accepted[peer] = member
        self._call_parties(self.accepted.values())
        self.rings, self.epoch = dict(restored.rings), restored.epoch

    def accept(self, peers: Iterable[PeerId], rings: dict[int, tuple[PeerId, ...]]) -> None:
        """These candidates are in, as members of these rings."""
        members = [self.candidates.pop(peer) for peer in peers]
        self.accepted.update((member.peer, member) for member in members)
        for member in members:
            member.enter(MemberStage.ACCEPTED)
        self._call_parties(members)
        self.rings.update(rings)
        self.epoch += 1

    def _call_parties(self, members: Iterable[Member]) -> None:
        """Each party of these by its name, or by another if one that is here is called so, or a peer has that id."""
        taken: set[str] = {*self.accepted, *(each.party_called for each in self.accepted.values())}
        called, tries = dict[Party, str](), dict[str, Iterator[str]]()
        for member in members:
            if (name := member.party.name) and member.party not in called:
                names = tries.setdefault(name, _numbered(name))  # Goes on where it was: all that came before are taken.
                called[member.party] = next(each for each in names if each not in taken)
                taken.add(called[member.party])
            member.party_called = called.get(member.party, "")

    def reorder(self, group: int, ring: tuple[PeerId, ...]) -> None:
        """The same members in another order."""
        self.rings[group] = ring
        self.epoch += 1

    def remove(self, member: Member) -> None:
        """A member is gone. An accepted one leaves its ring, which is a new epoch."""
        del self._connections[member.connection]
        member.enter(MemberStage.GONE)
        self.names.retire(member.peer)
        if self.visitors.pop(member.peer, None) is not None or self.returning.pop(member.peer, None) is not None:
            return
        if self.candidates.pop(member.peer, None) is None:
            del self.accepted[member.peer]
            self._shrink(member)
        if not (self.ring(member.group) or any(other.group == member.group for other in self.candidates.values())):
            self.lanes.pop(member.group, None)

    def _shrink(self, member: Member) -> None:
        ring = tuple(peer for peer in self.rings[member.group] if peer != member.peer)
        self.rings[member.group] = ring
        if not ring:
            del self.rings[member.group]
        self.epoch += 1

    def topology(self, group: int, largest_group: int, parcel_bytes: int, news: tuple[str, bool]) -> Topology:
        """What the members of a group receive about this epoch."""
        return Topology(
            epoch=self.epoch,
            ring=self.ring(group),
            global_size=len(self.accepted),
            groups=len(self.rings),
            largest_group=largest_group,
            parcel_bytes=parcel_bytes,
            number=self.updated,
            news=news[0],
            lost=news[1],
        )


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name} #{number}" for number in count(2))
