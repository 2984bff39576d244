"""Effects gathered while a peer handles one event, in order."""

from pccl.core.effects.both import Note
from pccl.core.effects.peer_effects import Answer, Failure, FailureKind, PeerEffect, Resolve, SendMaster
from pccl.core.messages.to_master import ToMaster


class Outbox:
    """All parts of a peer put their effects here."""

    def __init__(self) -> None:
        self.effects: list[PeerEffect] = []

    def add(self, *effects: PeerEffect) -> None:
        """These are next."""
        self.effects += effects

    def send(self, message: ToMaster) -> None:
        """One message to the master."""
        self.add(SendMaster(message))

    def resolve(self, call: int | None, answer: Answer) -> None:
        """Answer a call; None is one for which no thread waits any more."""
        if call is not None:
            self.add(Resolve(call, answer))

    def fail(self, call: int, kind: FailureKind, reason: str) -> None:
        """Answer a call with a failure."""
        self.resolve(call, Failure(kind, reason))

    def note(self, reason: str, event: str, warns: bool = True) -> None:
        """Tell the operator."""
        self.add(Note(reason, event, warns))

    def take(self) -> list[PeerEffect]:
        """Everything gathered so far; the outbox is empty afterwards."""
        effects, self.effects = self.effects, []
        return effects
