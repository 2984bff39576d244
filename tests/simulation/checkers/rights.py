"""Who may put a peer out, and for what."""

from typing import TYPE_CHECKING

from pccl.core.effects.master import Close, MasterEffect, MasterEvent, Received, Send
from pccl.core.fields import KickKind
from pccl.core.messages.observers import KickPeer, PeerKicked
from pccl.core.messages.to_peer import Kick, ToPeer
from pccl.core.rights import Rights
from pccl.types import PeerId
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.theatre import Theatre


class OnlyOperatorsKick(Checker):
    """A peer is put out by hand only by who may, and then it is the one that was meant, and reads why."""

    name = "only operators kick"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._meant = PeerId("")
        """The peer that the present event puts out, ..."""
        self._why = ""
        """... and what the operator gave as its reason."""

    def master_decides(self, event: MasterEvent, effects: list[MasterEffect]) -> None:
        self._meant = PeerId("")
        if not isinstance(event, Received) or not isinstance(event.message, KickPeer):
            return
        kicked = [each.message.peer for each in effects if isinstance(each, Send) and _is(each.message, PeerKicked)]
        if Rights.OPERATE in event.rights and kicked:
            self._meant, self._why = PeerId(kicked[0]), event.message.reason
            return
        if kicked:
            raise self.fail(f"{kicked[0][:8]} is put out by somebody who may not kick")
        self._nobody_goes(event.connection, effects)

    def _nobody_goes(self, asker: int, effects: list[MasterEffect]) -> None:
        """But for reasons of the master's own, which were due just now."""
        sent = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Kick)]
        reasons = {connection for effect in sent for connection in effect.connections}
        gone = {effect.connection for effect in effects if isinstance(effect, Close)} - reasons - {asker}
        if any(not self.ledger.known[connection].away for connection in gone if connection in self.ledger.known):
            raise self.fail(f"somebody who may not kick, or meant nobody, makes the master close {sorted(gone)}")

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, Kick) and message.kind is KickKind.OPERATOR:
            if known.peer != self._meant:
                raise self.fail(f"{known.peer[:8]} is put out by hand, but {self._meant[:8] or 'nobody'} was meant")
            if self._why not in message.reason:
                raise self.fail(f"{known.peer[:8]} does not read why it was put out: {message.reason}")


def _is(message: object, kind: type) -> bool:
    return isinstance(message, kind)


def _parties(peers: list[Known]) -> int:
    """How many parties they are of; one without is a party of its own."""
    return len({each.party if each.party.name else each.peer for each in peers})


SLACK_S = 8.0
"""Votes are looked at every few seconds."""


class VotesAreLimited(Checker):
    """Where there is a limit on it, nobody waits longer for a vote of somebody who has nothing to wait for; and nobody
    is put out for it earlier, nor by fewer than are missing."""

    name = "votes are limited"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._since: dict[tuple[str, PeerId], float] = {}
        """Since when more parties wait in a ballot of all than this one and others do not, and it waits for nothing."""
        self._limit_s = theatre.plan.master_limits.vote_timeout_s

    def master_handled(self, event: MasterEvent) -> None:
        if self._limit_s:
            now, accepted = self.theatre.scheduler.now, [each for each in self.ledger.accepted() if not each.away]
            missing: dict[tuple[str, PeerId], float] = {}
            for call in ("updating", "asking"):
                absent = [each.peer for each in accepted if not getattr(each, call)]
                parties = [each.party for each in accepted if each.peer in absent and each.party.name]
                going = [each for each in accepted if each.peer in absent or each.party in parties]
                if 2 * _parties(going) < _parties(accepted):
                    # One that waits itself, for links or a collective, is looked at when it has nothing to wait for.
                    idle = [each.peer for each in accepted if each.peer in absent and not each.waits]
                    missing |= {(call, peer): self._since.get((call, peer), now) for peer in idle}
            self._since = missing

    def sampled(self) -> None:
        master, now = self.theatre.master, self.theatre.scheduler.now
        for (call, peer), since in self._since.items() if not (master.gone or self.theatre.master_paused) else ():
            known = self.ledger.find(peer)
            idle = known is not None and not known.waits and not known.away
            if idle and now - since > self._limit_s + SLACK_S:
                raise self.fail(f"others have waited {now - since:.0f} s for the vote of {peer[:8]}, {call}")

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, Kick) and message.kind is KickKind.VOTELESS:
            others = [each for each in self.ledger.electorate() if each.waits and each is not known]
            leaving = [each for each in self.ledger.known.values() if each.connection in self.ledger.leaving]
            kicked = [each for each in leaving if each.was_accepted and not each.away]
            if not self._limit_s or _parties(kicked) > _parties([each for each in others if not each.away]):
                raise self.fail(f"{known.peer[:8]} is put out for its vote by fewer than are: {message.reason}")
