"""Who can dial whom: peers behind NAT, and pairs that are blocked in one or both directions."""

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

    def note_trouble(self, one: PeerId, other: PeerId) -> None:
        """If these two cannot reach each other from either side, a refusal of one of them is just."""
        if not self.can_dial(one, other) and not self.can_dial(other, one):
            self.trouble(one, other)

    def trouble(self, *peers: PeerId) -> None:
        """Links of these peers were broken on purpose: they may be found unreachable."""
        self._troubled.update(peers)

    def troubles(self, host: "PeerHost") -> bool:
        """Whether this peer may be refused as unreachable."""
        return host.identity.peer in self._troubled

    def heal(self) -> None:
        """Everybody can dial everybody."""
        self.behind_nat.clear()
        self.blocked.clear()
