"""One unanimous vote over an electorate, with the sentence that explains what it waits for.

Every phase of the protocol is entered by such a vote, so there is one class for all of them. A dead voter leaves the
electorate: `forget` must be called for it, or the ballot would wait for ever (the simulator has a mutant that omits
this call). The ballot does not know what is voted on, nor what follows.
"""

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from pccl.core.text import names
from pccl.types import PeerId

Vote = TypeVar("Vote")


class Ballot(Generic[Vote]):
    """Votes on one question. Every voter is in the electorate, but while several that go together are forgotten one by
    one: then as many may have voted as there are voters, and not the same."""

    def __init__(self, question: str, electorate: Callable[[], Collection[PeerId]]) -> None:
        self.question = question
        self.votes: dict[PeerId, Vote] = {}
        self.since = 0.0
        """When the first vote came."""
        self._electorate = electorate

    def cast(self, voter: PeerId, vote: Vote, now: float) -> None:
        """Count a vote; the caller has checked that the voter is in the electorate and has not voted."""
        if not self.votes:
            self.since = now
        self.votes[voter] = vote

    def forget(self, voter: PeerId) -> None:
        """A voter is gone, and its vote with it."""
        self.votes.pop(voter, None)

    def clear(self) -> None:
        """The question was answered: the next vote opens a new round."""
        self.votes.clear()

    @property
    def complete(self) -> bool:
        """A peer has asked, and all have agreed."""
        if not self.votes:
            return False
        electorate = self._electorate()
        # Counted first: a thousand voters are looked at one by one only once.
        return len(self.votes) == len(electorate) and all(peer in self.votes for peer in electorate)

    def missing(self) -> list[PeerId]:
        """The peers whose votes are waited for; none when none has voted."""
        return [peer for peer in self._electorate() if peer not in self.votes] if self.votes else []

    def explain(self) -> str:
        """What this ballot waits for, in words."""
        absent = self.missing()
        voters = len(self._electorate())
        return f"{self.question} waits for {names(absent)} ({len(self.votes)} of {voters} peers have called it)"
