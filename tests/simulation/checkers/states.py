"""Whoever is told that it is in sync holds what everybody else does, and nothing older than what was to be had."""

from typing import TYPE_CHECKING

from pccl.core.effects.peer_effects import Answer, InSync
from pccl.core.messages.to_master import SyncState
from pccl.core.messages.to_peer import RefusedSync, StartSync, Synced, ToPeer
from pccl.core.rights import Rights
from pccl.types import PeerId, SharedStateSyncStrategy
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.theatre import Theatre


class OneState(Checker):
    """All peers that a sync puts in step hold the same content at the same revision."""

    name = "one state"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._agreed: dict[int, tuple[int, bytes]] = {}
        """By attempt."""

    def call_resolved(self, host: "PeerHost", call: int, answer: Answer) -> None:
        if isinstance(answer, InSync):
            agreed = self._agreed.setdefault(answer.attempt, (answer.revision, host.word))
            if agreed != (answer.revision, host.word):
                raise self.fail(f"{host.name} is in sync with {host.word!r} at {answer.revision}, others with {agreed}")


class SourcesHold(Checker):
    """Whoever others are to pull from is of their group and offers what they pull, and nobody is put in step with what
    nobody offers. What visitors pull was agreed on, which is seen when it is served."""

    name = "sources hold"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._judged: set[int] = set()
        """Attempts; of one whose holders were named they may be gone at its end."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        voters = (each for each in self.ledger.known.values() if each.was_accepted or each.returned)
        group = {each.peer: each.claim for each in voters if each.group == known.group}
        if isinstance(message, Synced) and message.attempt not in self._judged and not self._told_before(message):
            claims = [claim for claim in group.values() if claim is not None and not _receives(claim)]
            if all(claim.revision != message.revision for claim in claims):
                raise self.fail(f"{known.peer[:8]} is in sync with revision {message.revision}, which nobody offers")
        if isinstance(message, StartSync | Synced):
            self._judged.add(message.attempt)
        if isinstance(message, StartSync) and message.pull:
            self._judge(known, message, group)

    def _told_before(self, message: Synced) -> bool:
        """Somebody was told so by an earlier master, which did not live to tell all."""
        told = [each.agreed for each in self.ledger.known.values() if each.agreed is not None]
        return any(agreed.attempt == message.attempt for agreed in told)

    def _judge(self, known: Known, message: StartSync, group: dict[PeerId, SyncState | None]) -> None:
        for peer in map(PeerId, message.peers):
            if peer not in group:
                raise self.fail(f"{known.peer[:8]} shall pull from {peer[:8]}, which is not in its group")
            claim = group[peer]
            if not known.visits and (claim is None or claim.content != message.content or _receives(claim)):
                raise self.fail(f"{known.peer[:8]} shall pull from {peer[:8]}, which does not offer that")


def _receives(claim: SyncState) -> bool:
    return claim.torn or claim.strategy is SharedStateSyncStrategy.RECEIVE_ONLY


class OneStrategy(Checker):
    """No peer is put in step, nor sent to pull, by a sync in which only some enforce what is popular."""

    name = "one strategy"

    def _barred(self, known: Known) -> bool:
        """It only sends, and may not: it is refused alone."""
        sends = known.claim is not None and known.claim.strategy is SharedStateSyncStrategy.SEND_ONLY
        return sends and Rights.BRING_STATE not in self.theatre.rights_of(known.connection)

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, Synced | StartSync) and not known.visits:
            group = [each for each in self.ledger.electorate() if each.group == known.group]
            claims = [each.claim for each in group if each.claim is not None and not self._barred(each)]
            if len({claim.strategy is SharedStateSyncStrategy.ENFORCE_POPULAR for claim in claims}) > 1:
                raise self.fail(f"{known.peer[:8]} is sent {message} although the strategies do not go together")


class NobodyUsurps(Checker):
    """Once a group has agreed, its peers do not pull what one without the right brings, while any of them holds what
    was agreed on or more, however many bring the same: they may be one token."""

    name = "nobody usurps"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._agreed: dict[int, int] = {}
        """By group, what was agreed on before the present event."""
        self._now_agreed: dict[int, int] = {}
        """The same, in the present event."""
        self._elected: dict[int, bytes] = {}
        """By attempt, what is pulled in it."""
        self._contents: dict[int, bytes] = {}
        """By group, what was agreed on last: it may come from any peer that holds it."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, Synced) and known.claim is not None:
            self._contents[known.group] = self._elected.get(message.attempt, known.claim.content)
            self._now_agreed[known.group] = message.revision
        if isinstance(message, StartSync):
            self._elected[message.attempt] = message.content
        if not isinstance(message, StartSync) or not message.pull or known.visits or known.group not in self._agreed:
            return
        voters = [each for each in self.ledger.electorate() if each.group == known.group and each.claim is not None]
        proved = [each for each in voters if Rights.BRING_STATE in self.theatre.rights_of(each.connection)]
        offers = [each.claim for each in proved if each.claim is not None and not _receives(each.claim)]
        recent = [claim for claim in offers if claim.revision >= self._agreed[known.group]]
        allowed = {self._contents.get(known.group), *(claim.content for claim in recent)}
        if recent and message.content not in allowed:
            raise self.fail(f"{known.peer[:8]} shall pull what no peer offers that may bring a state")

    def master_handled(self, event: object) -> None:
        groups = {each.group for each in self.ledger.accepted()}
        agreed = self._agreed | self._now_agreed
        self._agreed = {group: revision for group, revision in agreed.items() if group in groups}
        self._now_agreed = {}
        if self.ledger.reunited:
            self._agreed = {}


class HighestWins(Checker):
    """Nobody is put in step with a revision below one that a voter offered, unless that one was refused."""

    name = "highest wins"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._refused: set[int] = set()
        self._agreed: dict[int, int] = {}
        """By group, the last revision that anybody was put in step with."""
        self._elected: dict[int, int] = {}

    def master_handles(self, event: object) -> None:
        self._refused = set()

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if isinstance(message, RefusedSync):
            self._refused.add(known.connection)
        if not isinstance(message, Synced):
            return
        self._elected[known.group] = message.revision
        group = [each for each in self.ledger.electorate() if each.group == known.group]
        missing = [each for each in group if each.claim is None and each.connection not in self._answered(message)]
        if missing:
            raise self.fail(f"{known.peer[:8]} is in sync without the vote of {missing[0].peer[:8]}")
        agreed = self._agreed.get(known.group)
        for each in group:
            claim = each.claim
            proved = Rights.BRING_STATE in self.theatre.rights_of(each.connection)
            if claim is None or _receives(claim) or not proved:
                continue
            legal = agreed is None or claim.revision <= agreed + 1
            if legal and claim.revision > message.revision:
                raise self.fail(f"{each.peer[:8]} offered {claim.revision}, but {message.revision} was elected")

    def master_handled(self, event: object) -> None:
        for group, revision in self._elected.items():
            self._agreed[group] = revision
        self._elected = {}
        if self.ledger.reunited:
            known = [(each.group, each.agreed) for each in self.ledger.accepted() if each.agreed is not None]
            for group, agreed in sorted(known, key=lambda each: each[1].attempt):
                self._agreed[group] = agreed.revision
        groups = {each.group for each in self.ledger.accepted()}
        self._agreed = {group: revision for group, revision in self._agreed.items() if group in groups}

    def _answered(self, message: Synced) -> set[int]:
        """Those of this sync that have their answer already, whose claims the ledger has closed."""
        return {
            each.connection for each in self.ledger.known.values() if each.synced == message.attempt
        } | self._refused
