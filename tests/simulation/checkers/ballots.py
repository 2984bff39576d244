"""Nothing is decided without the votes of all that are asked, nor waited for without a reason."""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from pccl.core.messages.to_peer import Awaited, PendingAnswer, Start, ToPeer, TopologyUpdated
from pccl.types import PeerId, tag_name
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.theatre import Theatre

PATIENCE_S = 5.0
"""A wait this long must have a reason that names somebody."""


class AllVotes(Checker):
    """A ballot completes only when every accepted peer that lives has voted."""

    name = "all votes"

    def master_sends(self, known: Known, message: ToPeer) -> None:
        match message:
            case TopologyUpdated():
                missing = [each for each in self.ledger.electorate() if not (each.updating or each in self._answered)]
                self._answered.append(known)
            case PendingAnswer():
                missing = [each for each in self.ledger.electorate() if not (each.asking or each in self._answered)]
                self._answered.append(known)
            case Start(tag):
                group = [each for each in self.ledger.electorate() if each.group == known.group]
                missing = [each for each in group if tag not in each.initiated]
                if len({each.initiated[tag] for each in group if tag in each.initiated}) > 1:
                    raise self.fail(f"tag {tag} starts although its voters disagree")
            case _:
                return
        if missing:
            names = ", ".join(each.peer[:8] for each in missing)
            raise self.fail(f"{type(message).__name__} is sent without the vote of {names}")

    _answered: list[Known]

    def master_handles(self, event: object) -> None:
        self._answered = []


class AwaitedPeersKnow(Checker):
    """A peer for whose vote others wait is told so, and no other peer is."""

    name = "awaited peers know"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        self._told: dict[tuple[int, PeerId], float] = {}
        """By master and peer: when last."""
        self._since: dict[tuple[int, PeerId, PeerId, int], float] = {}
        """By master: votes that were missing when we last looked, and since when."""
        self._handled_at = self._woke_at = 0.0
        """When a master last did anything, and when it last did so after a pause."""

    def master_handles(self, event: object) -> None:
        now = self.theatre.scheduler.now
        if now - self._handled_at > PATIENCE_S / 2:
            self._woke_at = now
        self._handled_at = now

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Awaited):
            return
        self._told[self.theatre.master.number, known.peer] = self.theatre.scheduler.now
        if message.call in map(tag_name, known.initiated):
            raise self.fail(f"{known.peer[:8]} has voted for {message.call}, and is told that others wait for it there")
        others = [each for each in self.ledger.known.values() if each is not known]
        if not any(each.waits and not (each.topology is None and self.ledger.half(each)) for each in others):
            raise self.fail(f"{known.peer[:8]} is told that others wait in {message.call}, and none does")

    def sampled(self) -> None:
        """A vote that has been missing for long."""
        master, now = self.theatre.master, self.theatre.scheduler.now
        if master.gone or master.frozen or now - self._woke_at < PATIENCE_S:
            return
        missing = [(master.number, *each) for each in self._missing_votes()]
        self._since = {each: self._since.get(each, now) for each in missing}
        for (_, waits, peer, tag), since in self._since.items():
            told = self._told.get((master.number, peer), -inf)
            if now - since > PATIENCE_S and now - told > PATIENCE_S:
                raise self.fail(f"{peer[:8]} is not told that {waits[:8]} waits for it in tag {tag}")

    def _missing_votes(self) -> Iterator[tuple[PeerId, PeerId, int]]:
        """Who waits, for whom, in what."""
        running = {attempt.tag for attempt in self.ledger.running.values()}
        for known in self.ledger.known.values():
            host = self.theatre.host_of(known)
            if host is None or host.harms or known.tells or host.waiting_s() <= PATIENCE_S:
                continue
            if known.topology is None:
                continue  # It waits to be taken back, perhaps into another run than the one that goes on here.
            for tag in known.initiated.keys() - running:
                for each in self.ledger.electorate():
                    if each.group == known.group and tag not in each.initiated and not each.away:
                        yield known.peer, each.peer, tag


class NoSilentWait(Checker):
    """Whoever waits for more than a few seconds can read why, with the name of somebody who is really missing."""

    name = "no silent wait"

    def sampled(self) -> None:
        theatre = self.theatre
        if theatre.master.gone or theatre.master.frozen:
            return
        waiting = [known for known in self.ledger.known.values() if self._waits_long(known)]
        if not waiting:
            return
        sentences = theatre.explain()
        if not sentences:
            raise self.fail(f"{waiting[0].peer[:8]} waits, and the master says nothing")
        named = set().union(*(theatre.named_in(sentence) for sentence in sentences))
        missing = set().union(*(self._missing(known) for known in waiting))
        if not named & missing and not self._may_come_back(sentences):
            names = ", ".join(sorted(peer[:8] for peer in missing))
            raise self.fail(f"missing are {names or 'none'}, but the master says {sentences}")

    _unnamed_since: float | None = None
    _by = 0
    """By which master."""

    def _may_come_back(self, sentences: tuple[str, ...]) -> bool:
        """Somebody is waited for whom nobody can name, for a while: peers of a run that an earlier master led."""
        limits, now = self.theatre.plan.master_limits, self.theatre.scheduler.now
        if not any("earlier run" in sentence or "come back" in sentence for sentence in sentences):
            self._unnamed_since = None
            return False
        if self._unnamed_since is None or now - self._seen_at > PATIENCE_S or self._by != self.theatre.master.number:
            self._unnamed_since, self._by = now, self.theatre.master.number
        self._seen_at = now
        return now - self._unnamed_since < limits.silence_s + limits.newborn_s + limits.reunion_s + PATIENCE_S

    _seen_at = 0.0

    def _waits_long(self, known: Known) -> bool:
        host = self.theatre.host_of(known)
        return host is not None and not host.harms and known.waits and host.waiting_s() > PATIENCE_S

    def _missing(self, known: Known) -> set[PeerId]:
        """Everybody who could end the wait of this peer."""
        others = list(self.ledger.accepted())
        missing: set[PeerId] = set()
        if known.visits:
            missing.add(known.peer)  # One that comes again so soon waits for nobody but itself.
        if known.topology is None and self.ledger.half(known):
            missing.add(known.peer)  # It waits for peers of its own machine, of which there is no name yet.
        elif known.topology is None:
            missing |= {each.peer for each in others if not each.updating}
        if known.updating:
            missing |= {each.peer for each in others if not each.updating}
        if known.asking:
            missing |= {each.peer for each in others if not each.asking}
        for tag in known.initiated:
            missing |= {each.peer for each in others if each.group == known.group and tag not in each.initiated}
        if known.claim is not None:
            missing |= {each.peer for each in others if each.group == known.group}
        missing |= {peer for each in self.ledger.known.values() for peer in each.ring if self.ledger.find(peer) is None}
        missing |= {each.peer for each in self.ledger.known.values() if each.tells}
        for attempt in self.ledger.running.values():
            missing |= attempt.participants.keys() - attempt.reports.keys()
        for each in self.ledger.known.values():
            if any(link not in each.up for link in each.links):
                missing.add(each.peer)
            missing |= self._unlinked(each)
            host = self.theatre.host_of(each)
            # A link that rests after it failed is in nobody's list, but its ends had a reason to fail.
            reach = self.theatre.reach
            if host is None or host.harms or reach.troubles(host) or reach.hampers(each.peer):
                missing.add(each.peer)
        return missing

    def _unlinked(self, known: Known) -> set[PeerId]:
        if known.topology is None or len(known.topology.ring) < 2:
            return set()
        ring = known.topology.ring
        rank = ring.index(known.peer)
        neighbours = {ring[rank - 1], ring[(rank + 1) % len(ring)]}
        return {PeerId(peer) for peer in neighbours - {link.peer for link in known.links.values()}}
