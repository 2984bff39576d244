"""One ring per epoch and group; everybody is told of every change; what peers know is what the master said last."""

from typing import TYPE_CHECKING

from pccl.core.effects.master import MasterEvent
from pccl.core.messages.to_peer import ToPeer, Topology
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.theatre import Theatre


class OneRing(Checker):
    """The master gives one ring per epoch and group, without duplicates, and epochs only grow."""

    name = "one ring"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._rings: dict[tuple[str, int, int], tuple[str, ...]] = {}
        self._epochs: dict[str, int] = {}

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Topology):
            return
        ring = self._rings.setdefault((known.run, message.epoch, known.group), message.ring)
        if ring != message.ring:
            raise self.fail(f"epoch {message.epoch} of group {known.group} has two rings")
        if len(set(ring)) != len(ring) or known.peer not in ring:
            raise self.fail(f"the ring of epoch {message.epoch} has duplicates or lacks the peer it is sent to")

    def peer_receives(self, host: "PeerHost", message: ToPeer) -> None:
        if host.hostile or not isinstance(message, Topology):
            return  # A hostile one may read what its core, which has closed that connection, never hears.
        if message.epoch <= self._epochs.get(host.name, -1):
            raise self.fail(f"{host.name} is told epoch {message.epoch} after {self._epochs[host.name]}")
        self._epochs[host.name] = message.epoch


class FreshSizes(Checker):
    """After every event all accepted peers have been told the same epoch and the true sizes; and they know it."""

    name = "fresh sizes"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._changed = False
        self._known = 0

    def master_sends(self, known: Known, message: ToPeer) -> None:
        self._changed = self._changed or isinstance(message, Topology)

    def master_handled(self, event: MasterEvent) -> None:
        if not self._changed and len(self.ledger.known) == self._known:
            return
        self._changed, self._known = False, len(self.ledger.known)
        self._compare(list(self.ledger.accepted()))

    def _compare(self, accepted: list[Known]) -> None:
        groups: dict[int, list[str]] = {}
        for known in accepted:
            groups.setdefault(known.group, []).append(known.peer)
        largest = max(map(len, groups.values()), default=0)
        for known in accepted:
            told = known.topology
            assert told is not None
            if (told.global_size, told.groups, told.largest_group) != (len(accepted), len(groups), largest):
                raise self.fail(f"{known.peer[:8]} was told {told}, but the roster is {groups}")
            if sorted(told.ring) != sorted(groups[known.group]):
                raise self.fail(
                    f"{known.peer[:8]} was told the ring {told.ring}, but its group is {groups[known.group]}"
                )

    def sampled(self) -> None:
        for known in self.ledger.accepted():
            host = self.theatre.host_of(known)
            if host is None or not host.hears_everything() or known.topology is None:
                continue
            if host.core.epoch != known.topology.epoch or tuple(host.core.ring) != known.topology.ring:
                raise self.fail(f"{host.name} knows epoch {host.core.epoch}, the master said {known.topology.epoch}")
            if not host.core.accepted:
                raise self.fail(f"{host.name} does not know that it is accepted")
