"""Effects gathered while the master handles one event, in order."""

from collections.abc import Iterable

from pccl.core.effects import Close, MasterEffect, Note, Send
from pccl.core.messages import Ping, ToPeer
from pccl.core.roster import Roster
from pccl.types import PeerId

TEXT_MAX = 4096
"""The longest text a message may carry (`messages.Text`); longer ones are cut: the sentence still helps."""


PINGS_MAX = 16
"""Unanswered pings to one peer: it is not there, and more of them would only fill its connection."""


def clip(text: str) -> str:
    """A text that any message can carry and any terminal can show: short, encodable, printable."""
    text = "".join(
        letter if letter.isprintable() else "?" for letter in text.encode("utf-8", "replace").decode("utf-8")
    )
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


class Outbox:
    """Addresses messages by peer; whoever is no longer connected is passed over."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._effects: list[MasterEffect] = []

    def send(self, peers: Iterable[PeerId], message: ToPeer) -> None:
        """One message to each of these peers."""
        members = [member for peer in peers if (member := self._roster.member(peer)) is not None]
        for member in members:
            member.session.say(message)
        if members:
            self._effects.append(Send(tuple(member.connection for member in members), message))

    def ping(self, peers: Iterable[PeerId], now: float) -> None:
        """Ask these peers for a sign of life, and remember when."""
        asked = [peer for peer in peers if (member := self._roster.member(peer)) and len(member.pings) < PINGS_MAX]
        for peer in asked:
            member = self._roster.member(peer)
            assert member is not None, "just looked up"
            member.pings.append(now)
        self.send(asked, Ping())

    def send_connection(self, connection: int, message: ToPeer) -> None:
        """One message to a connection that belongs to no member."""
        self._effects.append(Send((connection,), message))

    def repeat(self, connection: int, messages: Iterable[ToPeer]) -> None:
        """Say again what a member has not heard on its last connection."""
        self._effects.extend(Send((connection,), message, again=True) for message in messages)

    def close(self, connection: int) -> None:
        """Close a connection once everything sent on it has gone."""
        self._effects.append(Close(connection))

    def note(self, reason: str) -> None:
        """Tell the operator."""
        self._effects.append(Note(clip(reason)))

    def take(self) -> list[MasterEffect]:
        """Everything gathered so far; the outbox is empty afterwards."""
        effects, self._effects = self._effects, []
        return effects
