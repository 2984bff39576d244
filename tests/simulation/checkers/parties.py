"""The peers of one machine come and go together, and no other peer waits for half of them."""

from collections import Counter
from typing import TYPE_CHECKING

from pccl.core.effects.master import MasterEvent
from pccl.core.fields import KickKind, Party
from pccl.core.master.recovery.away import TOGETHER_S
from pccl.core.messages.to_peer import Kick, PendingAnswer, Start, ToPeer, Topology
from pccl.types import PeerId
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.theatre import Theatre

SOON_S = 0.01
"""Events at the same instant may differ by a rounding."""


class WholeParties(Checker):
    """No epoch has a part of a party; and a member is put out with its party only if one of that is really gone, and
    not for what others claim."""

    name = "whole parties"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._party: dict[PeerId, Party] = {}
        self._epochs: dict[int, set[PeerId]] = {}
        """Of this event."""
        self._expelled: list[tuple[PeerId, set[PeerId], str]] = []
        """Of this event: who is put out with its party, whom the reason names, and the reason."""
        self._left: dict[PeerId, float] = {}
        """When members were first seen to have said goodbye while they kept their place."""

    def master_handles(self, event: MasterEvent) -> None:
        self._epochs, self._expelled = {}, []
        self._party |= {known.peer: known.party for known in self.ledger.known.values() if known.party.name}
        self._left |= {known.peer: known.left_at for known in self.ledger.known.values() if known.left_at is not None}

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, Topology):
            self._epochs.setdefault(message.epoch, set()).update(map(PeerId, message.ring))
        elif isinstance(message, Kick) and message.kind is KickKind.PARTY and known.topology is not None:
            # A candidate is refused for other reasons, and the name of one may say that another peer is gone.
            self._expelled.append((known.peer, self.theatre.named_in(message.reason), message.reason))

    def master_handled(self, event: MasterEvent) -> None:
        for epoch, peers in self._epochs.items():
            counted = Counter(self._party[peer] for peer in sorted(peers) if peer in self._party)
            for party, count in counted.items():
                if count != party.size:
                    raise self.fail(f"epoch {epoch} has {count} of {party.size} peers of {party.name}")
        for peer, named, reason in self._expelled:
            self._look(peer, named, reason)

    def _look(self, peer: PeerId, named: set[PeerId], reason: str) -> None:
        if "is gone" not in reason:
            return  # It was a candidate, or came back without the others: see `NoInnocentLost`.
        lost = [each for each in named if self._party.get(each) == self._party.get(peer) and each != peer]
        here = [known for each in lost if (known := self.ledger.find(each)) is not None]
        # One that joined again may be in once more before the event is over, with another mate.
        back = "joined again on another connection" in reason
        stays = [known.topology for known in here if known.topology is not None]
        if not lost or any(not back or topology.epoch not in self._epochs for topology in stays):
            raise self.fail(f"{peer[:8]} goes with its party, of which none is gone: {reason}")
        early = [each for each in lost if each in self._left and self._is_early(each)]
        if early and "goodbye" in reason:
            raise self.fail(f"{peer[:8]} had no time to say goodbye with its party: {reason}")

    def _is_early(self, peer: PeerId) -> bool:
        return self.theatre.scheduler.now - self._left[peer] < TOGETHER_S - SOON_S


class NobodyWaitsForHalves(Checker):
    """Half a party is in no trial, and no reason to call `update_topology`."""

    name = "nobody waits for halves"

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, PendingAnswer | Start) and message.pending and not self.ledger.reunited:
            outside = [each for each in self.ledger.known.values() if each.topology is None and not each.visits]
            if outside and all(map(self.ledger.half, outside)):
                raise self.fail(f"{known.peer[:8]} is told that somebody waits, but there are halves only")

    def master_handled(self, event: MasterEvent) -> None:
        for known in self.ledger.known.values():
            candidate = known.topology is None and not (known.visits or known.told or known.tells)
            if candidate and known.links and self.ledger.half(known):
                raise self.fail(f"{known.peer[:8]} is linked though it is half of {known.party.name}")
