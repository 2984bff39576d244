"""Who can dial whom: peers behind NAT, and pairs that are blocked in one or both directions."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pccl.types import PeerId

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost

Address = tuple[str, int]


class Reach:
    """Directed reachability between listening ports. The master can be reached by everybody."""

    def __init__(self) -> None:
        self.behind_nat: set[PeerId] = set()
        self.blocked: set[tuple[PeerId, PeerId]] = set()
        """(from, to)"""
        self._listeners: dict[Address, PeerHost] = {}
        self._cut_off: set[PeerId] = set()
        """Peers of pairs of which neither can dial the other."""
        self._troubled: set[PeerId] = set()

    def listen(self, host: "PeerHost") -> None:
        """This process listens on its address, perhaps where another one did before it."""
        self._listeners[host.address] = host

    def find(self, caller: PeerId, address: Address) -> "PeerHost | None":
        """Who answers when the caller dials this address; None when nobody does."""
        host = self._listeners.get(address)
        if host is None or host.gone or not self.can_dial(caller, host.identity.peer):
            return None
        return host

    def can_dial(self, caller: PeerId, target: PeerId) -> bool:
        """Whether a connection would be let through."""
        return target not in self.behind_nat and (caller, target) not in self.blocked

    def block(self, caller: PeerId, target: PeerId) -> None:
        """From now on the caller cannot dial the target."""
        self.blocked.add((caller, target))
        self.note_trouble(caller, target)

    def part(self, caller: PeerId, target: PeerId, both_ways: bool) -> None:
        """From now on the caller cannot dial the target, nor perhaps the target the caller."""
        self.block(caller, target)
        if both_ways:
            self.block(target, caller)

    def unite(self, one: PeerId, other: PeerId) -> None:
        """These two can dial each other again."""
        self.blocked -= {(one, other), (other, one)}

    def note_trouble(self, one: PeerId, other: PeerId) -> None:
        """If these two cannot reach each other from either side, a refusal of one of them is just."""
        if self.are_strangers(one, other):
            self._cut_off.update((one, other))

    def trouble(self, *peers: PeerId) -> None:
        """Links of these peers were broken on purpose: they may be found unreachable."""
        self._troubled.update(peers)

    def troubled(self, host: "PeerHost") -> bool:
        """Whether links of this peer were broken on purpose."""
        return host.identity.peer in self._troubled

    def troubles(self, host: "PeerHost") -> bool:
        """Whether this peer may be refused as unreachable."""
        return host.identity.peer in self._cut_off or self.troubled(host)

    def hampers(self, peer: PeerId) -> bool:
        """Whether somebody cannot dial this peer, or it somebody."""
        return peer in self.behind_nat or any(peer in pair for pair in self.blocked)

    def ring_is_sure(self, staying: Collection[PeerId], others: Collection[PeerId]) -> bool:
        """Whether those who stay have a ring of pairs that can dial, together with any of the others.

        By Dirac's theorem they have if nobody is cut off from more than half of a ring, itself included. That is more
        than a ring needs, so a search need not be clever to find one.
        """
        everybody = {*staying, *others}
        cut_off = max((self.strangers(peer, everybody) for peer in everybody), default=0)
        return cut_off == 0 or 2 * (1 + cut_off) <= len(staying)

    def strangers(self, peer: PeerId, others: Iterable[PeerId]) -> int:
        """How many others this peer cannot reach."""
        return sum(self.are_strangers(peer, other) for other in others if other != peer)

    def are_strangers(self, one: PeerId, other: PeerId) -> bool:
        """Neither can dial the other."""
        return not self.can_dial(one, other) and not self.can_dial(other, one)

    def lift(self, peers: Collection[PeerId]) -> None:
        """From now on everybody can dial these peers, and they can dial everybody; what failed before may still cost
        them their place."""
        self.trouble(*self._cut_off.intersection(peers))
        self.behind_nat.difference_update(peers)
        self.blocked = {pair for pair in self.blocked if pair[0] not in peers and pair[1] not in peers}
