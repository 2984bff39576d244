"""What the run waits for, in words: for the operator and for those who wait.

Reads the parts of the master and changes none of them. A wait is told once it has lasted a while, and again only when
its words change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from pccl.core.collectives import Life, LifeStage
from pccl.core.messages import Waiting
from pccl.core.outbox import clip
from pccl.types import PeerId

if TYPE_CHECKING:
    from pccl.core.master import Master

LINKS_MAX = 3
"""Links described in one sentence: enough to see a pattern, short enough to read."""


class Wait(Struct, frozen=True):
    """Somebody waits for something."""

    waiting: tuple[PeerId, ...]
    sentence: str
    since: float


class Waits:
    """The sentences told so far."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._noted: tuple[str, ...] = ()
        self._told: dict[PeerId, str] = {}

    def all(self) -> list[Wait]:
        """Every wait there is."""
        return [
            *self._reunion(),
            *self._topology(),
            *self._pending(),
            *(Wait(tuple(each.ballot.votes), each.explain(), each.ballot.since) for each in self._master.syncs.all()),
            *(Wait((each.peer,), each.explain(), each.since) for each in self._master.visits.all()),
            *(self._collective(life) for life in self._master.collectives.lives()),
        ]

    def _reunion(self) -> list[Wait]:
        wait = self._master.reunion.explain()
        return [] if wait is None else [Wait(*wait)]

    def _topology(self) -> list[Wait]:
        sentence = self._master.admission.explain()
        if not sentence:
            return []
        ballot, candidates = self._master.admission.ballot, self._master.roster.candidates
        since = ballot.since if ballot.votes else min(each.joined_at for each in candidates.values())
        return [Wait((*ballot.votes, *candidates), sentence, since)]

    def _pending(self) -> list[Wait]:
        ballot = self._master.pending
        return [Wait(tuple(ballot.votes), ballot.explain(), ballot.since)] if ballot.votes else []

    def _collective(self, life: Life) -> Wait:
        reasons = [life.explain()]
        if life.stage in (LifeStage.READY, LifeStage.STOPPED):
            reasons += [link.explain() for link in self._master.wiring.missing(life.group)[:LINKS_MAX]]
        if life.stage is LifeStage.READY:
            reasons += [other.explain() for other in self._master.collectives.holding_lanes(life.group)[:1]]
        return Wait(tuple(life.ballot.votes), "; ".join(reasons), life.since)

    def tell(self, now: float) -> None:
        """Tell the long waits whose words have changed."""
        waits = [wait for wait in self.all() if now - wait.since >= self._master.limits.explain_after_s]
        sentences = tuple(wait.sentence for wait in waits)
        for sentence in sentences:
            if sentence not in self._noted:
                self._master.outbox.note(sentence)
        self._noted = sentences
        self._tell_waiting(waits)

    def _tell_waiting(self, waits: list[Wait]) -> None:
        told: dict[PeerId, str] = {}
        for wait in waits:
            for peer in wait.waiting:
                told.setdefault(peer, wait.sentence)
        changed: dict[str, list[PeerId]] = {}
        for peer, sentence in told.items():
            if sentence != self._told.get(peer):
                changed.setdefault(sentence, []).append(peer)
        for sentence, peers in changed.items():
            self._master.outbox.send(peers, Waiting(clip(sentence)))
        self._told = told
