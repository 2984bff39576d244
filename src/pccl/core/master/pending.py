"""The question whether candidates wait (`are_peers_pending`): a vote of all accepted peers, and one answer for all.

Owns the ballot. Does not know what the peers do with the answer.

Rules: docs/protocol.md, "Contradictions".
"""

from collections.abc import Iterable

from pccl.core.master.part import Common, Departure, Part, Wait
from pccl.core.messages.to_peer import PendingAnswer
from pccl.core.rules.ballot import Ballot
from pccl.types import PeerId


class Pending(Part):
    """The votes on the question."""

    def __init__(self, common: Common) -> None:
        super().__init__(common)
        self.ballot = Ballot[None]("are_peers_pending", lambda: self._roster.accepted)

    def advance(self, now: float) -> bool:
        """Answer when all have asked."""
        if self.ballot.complete:
            answer = PendingAnswer(bool(self._roster.ready(now)), self._roster.draw_number())
            self._outbox.send(self.ballot.votes, answer)
            self.ballot.clear()
        return False

    def lose(self, gone: Departure) -> None:
        """Its vote goes with it."""
        self.ballot.forget(gone.peer)

    def waits(self) -> list[Wait]:
        """The peers that have asked."""
        ballot = self.ballot
        if not ballot.votes:
            return []
        return [Wait(tuple(ballot.votes), ballot.explain(), ballot.since, ballot.question, tuple(ballot.missing()))]

    def waited_for(self) -> Iterable[PeerId]:
        """The peers that have not."""
        return self.ballot.missing()
