"""What the run waits for, in words: for the operator and for the peers that wait.

Reads the parts of the master and changes none of them. A wait is explained once it has lasted a while, and again only
when its words change. Rules: docs/protocol.md, "Words for waits".
"""

from collections.abc import Sequence

from pccl.core.master.collective import Collective
from pccl.core.master.outbox import Outbox
from pccl.core.master.part import Part, Wait
from pccl.core.messages.to_peer import Waiting
from pccl.core.text import NAMES_MAX, clip
from pccl.types import PeerId, short


class Waits:
    """The sentences sent so far."""

    def __init__(self, parts: Sequence[Part], outbox: Outbox, explain_after_s: float) -> None:
        self._parts = parts
        self._outbox = outbox
        self._explain_after_s = explain_after_s
        self._noted: tuple[str, ...] = ()
        self._sent: dict[PeerId, str] = {}

    def all(self) -> list[Wait]:
        """Every wait there is."""
        return [wait for part in self._parts for wait in part.waits()]

    def missing_in(self, collective: Collective) -> str:
        """Which peers have not called this collective, and what each of them waits in instead."""
        missing = collective.ballot.missing()
        if not missing:
            return f"{collective.explain()}, which all peers of the group have called"
        named = [
            f"{short(peer)} ({where})" if (where := self._where(peer)) else short(peer) for peer in missing[:NAMES_MAX]
        ]
        more = f" and {len(missing) - NAMES_MAX} more" if len(missing) > NAMES_MAX else ""
        return f"{collective.ballot.question} was not called by {', '.join(named)}{more}"

    def _where(self, peer: PeerId) -> str:
        """The calls in which a peer waits, in words; empty if there is none."""
        calls = [wait.call for wait in self.all() if peer in wait.waiting]
        return f"it waits in {', '.join(calls[:NAMES_MAX])}" if calls else ""

    def send(self, now: float) -> None:
        """Send the operator and the peers the sentences of long waits, if their words have changed."""
        waits = [wait for wait in self.all() if now - wait.since >= self._explain_after_s]
        sentences = tuple(wait.sentence for wait in waits)
        for sentence in sentences:
            if sentence not in self._noted:
                self._outbox.note(sentence)
        self._noted = sentences
        self._send_waiting(waits)

    def _send_waiting(self, waits: list[Wait]) -> None:
        present: dict[PeerId, str] = {}
        for wait in waits:
            for peer in wait.waiting:
                present.setdefault(peer, wait.sentence)
        changed: dict[str, list[PeerId]] = {}
        for peer, sentence in present.items():
            if sentence != self._sent.get(peer):
                changed.setdefault(sentence, []).append(peer)
        for sentence, peers in changed.items():
            self._outbox.send(peers, Waiting(clip(sentence)))
        self._sent = present
