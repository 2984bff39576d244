"""Who is here: candidates, accepted peers, their groups and rings, and the epoch that numbers all of it; and visitors,
who belong to none of these.

Owns membership and nothing else: it does not know how peers come to be accepted or why they go.
"""

from collections import deque
from collections.abc import Iterable
from math import inf

from pccl.core.messages import ToPeer, Topology
from pccl.core.ring import Pair
from pccl.core.session import Session
from pccl.types import PeerId


class Member:
    """One peer, from its `Join` until it is gone for good."""

    def __init__(self, peer: PeerId, group: int, connection: int, address: tuple[str, int]) -> None:
        self.peer = peer
        self.group = group
        self.connection = connection
        self.host, self.port = address
        self.lanes = 0
        self.secret = ""
        self.session = Session[ToPeer]()
        self.story = 0
        """What it told us first, if we have taken it over from another master: the number that it gave it."""
        self.recalls = False
        """It came back, and is still telling what we know already."""
        self.serves = True
        """Lets visitors have its shared state."""
        self.begins = True
        """A run may begin with it: no other master that it knows has one, or it came back."""
        self.seniority = 0
        """Order of arrival: the younger of two gives way."""
        self.dials = False
        """Links with this peer stood only when it was the one that dialled: it is probably behind NAT."""
        self.joined_at = 0.0
        self.pings: deque[float] = deque()
        """When we sent the pings that it has not answered."""
        self.answered_at = 0.0
        """When we sent the last ping that it has answered: after that it was there, and heard us."""
        self.round_trip_s = inf
        """The shortest time between a ping and its answer."""
        self.slow_at = 0.0
        """When it last turned out not to have been there for a while: an answer came late."""

        self.doubted_at = -inf
        """When the other end of a link to it last said that it broke, or could not be dialled."""
        self.refused_at, self.refusal = 0.0, ""
        """When a collective of it was refused for other calls that contradict it, and why."""

    @property
    def crosses(self) -> bool:
        """What it says now it said before it heard of that refusal."""
        return self.answered_at < self.refused_at

    @property
    def doubted(self) -> bool:
        """Somebody found it gone, and it has not shown since that it is there."""
        return self.doubted_at > self.answered_at

    def answer(self, now: float, prompt_s: float) -> None:
        """It answered a ping; answers come in the order of the pings."""
        if self.pings:
            self.answered_at = self.pings.popleft()
            taken_s = now - self.answered_at
            self.round_trip_s = min(self.round_trip_s, taken_s)
            if taken_s > prompt_s:
                self.slow_at = now


class Roster:
    """Candidates and accepted peers. Invariant: each accepted peer is in exactly one ring, its group's."""

    def __init__(self) -> None:
        self.epoch = 0
        self.accepted: dict[PeerId, Member] = {}
        self.candidates: dict[PeerId, Member] = {}
        self.returning: dict[PeerId, Member] = {}
        """Those who were accepted by an earlier master, until it is known who of them is here."""
        self.visitors: dict[PeerId, Member] = {}
        """They come for the shared state of a group: nobody waits for one, admits one or is judged by one."""
        self.rings: dict[int, tuple[PeerId, ...]] = {}
        self.lanes: dict[int, int] = {}
        """Lanes per link, fixed for a group by the first that joined it: every member must cut stripes alike."""
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
        return self.accepted.get(peer) or self._outside(peer)

    def _outside(self, peer: PeerId) -> Member | None:
        return self.candidates.get(peer) or self.visitors.get(peer) or self.returning.get(peer)

    def kind(self, peer: PeerId) -> str:
        """What to call somebody who is not accepted."""
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
        return 2 * max((self.accepted[peer].round_trip_s for peer in ring), default=inf)

    def draw_number(self) -> int:
        """A number for what is tried next with lanes of members, or for an answer; never given twice."""
        self.number += 1
        return self.number

    def __len__(self) -> int:
        """Those who are in or want to be: visitors take nobody's place."""
        return len(self.accepted) + len(self.candidates)

    def add_candidate(self, member: Member, default_lanes: int) -> None:
        """Somebody joined."""
        self.lanes.setdefault(member.group, member.lanes or default_lanes)
        self._add(member, self.candidates)

    def add_visitor(self, member: Member) -> None:
        """Somebody came to look."""
        self._add(member, self.visitors)

    def _add(self, member: Member, kind: dict[PeerId, Member]) -> None:
        self._arrivals += 1
        member.seniority = self._arrivals
        kind[member.peer] = member
        self._connections[member.connection] = member

    def add_returning(self, member: Member) -> None:
        """Somebody came back."""
        self.returning[member.peer] = member
        self._connections[member.connection] = member

    def rebind(self, member: Member, connection: int) -> None:
        """A member came back on another connection."""
        del self._connections[member.connection]
        member.connection = connection
        self._connections[connection] = member

    def restore(self, rings: dict[int, tuple[PeerId, ...]], epoch: int) -> None:
        """These rings are the roster; all of them are here."""
        for peer in (peer for ring in rings.values() for peer in ring):
            member = self.returning.pop(peer, None) or self.candidates.pop(peer)
            self._arrivals += 1
            member.seniority = self._arrivals
            self.accepted[peer] = member
        self.rings, self.epoch = dict(rings), epoch

    def accept(self, peers: Iterable[PeerId], rings: dict[int, tuple[PeerId, ...]]) -> None:
        """These candidates are in, as members of these rings."""
        for peer in peers:
            self.accepted[peer] = self.candidates.pop(peer)
        self.rings.update(rings)
        self.epoch += 1

    def reorder(self, group: int, ring: tuple[PeerId, ...]) -> None:
        """The same members in another order."""
        self.rings[group] = ring
        self.epoch += 1

    def remove(self, member: Member) -> None:
        """A member is gone. An accepted one leaves its ring, which is a new epoch."""
        del self._connections[member.connection]
        if self.visitors.pop(member.peer, None) is not None or self.returning.pop(member.peer, None) is not None:
            return
        if self.candidates.pop(member.peer, None) is None:
            del self.accepted[member.peer]
            self._shrink(member)
        if not any(other.group == member.group for other in (*self.accepted.values(), *self.candidates.values())):
            self.lanes.pop(member.group, None)

    def _shrink(self, member: Member) -> None:
        ring = tuple(peer for peer in self.rings[member.group] if peer != member.peer)
        self.rings[member.group] = ring
        if not ring:
            del self.rings[member.group]
        self.epoch += 1

    def topology(self, group: int, parcel_bytes: int) -> Topology:
        """What the members of a group are told about this epoch."""
        return Topology(
            epoch=self.epoch,
            ring=self.ring(group),
            global_size=len(self.accepted),
            groups=len(self.rings),
            largest_group=max(len(ring) for ring in self.rings.values()),
            parcel_bytes=parcel_bytes,
            number=self.updated,
        )
