"""Effects gathered while the master handles one event, in order."""

from collections.abc import Iterable

from pccl.core.effects.both import Note
from pccl.core.effects.master import Close, MasterEffect, Send
from pccl.core.master.roster import Roster
from pccl.core.messages.both import Ping
from pccl.core.messages.to_peer import Kick, ToPeer
from pccl.core.text import clip
from pccl.types import PeerId

PINGS_MAX = 16
"""Unanswered pings to one peer: it is not there, and more of them would only fill its connection."""


class Outbox:
    """Addresses messages by peer; peers that are gone are passed over."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._effects: list[MasterEffect] = []

    def send(self, peers: Iterable[PeerId], message: ToPeer) -> None:
        """One message to each of these peers."""
        members = [member for peer in peers if (member := self._roster.member(peer)) is not None]
        for member in members:
            member.session.log(message)
        if members:
            self._effects.append(Send(tuple(member.connection for member in members), message))

    def ping(self, peers: Iterable[PeerId], now: float) -> None:
        """Ask these peers for a sign of life, and remember when."""
        asked = [member for peer in peers if (member := self._roster.member(peer))]
        asked = [member for member in asked if len(member.pulse.pings) < PINGS_MAX]
        for member in asked:
            member.pulse.pings.append(now)
        self.send([member.peer for member in asked], Ping())

    def kick(self, connection: int, kick: Kick) -> None:
        """Close a connection, and send first why."""
        self._effects.append(Send((connection,), Kick(kick.kind, clip(kick.reason))))
        self.close(connection)

    def repeat(self, connection: int, messages: Iterable[ToPeer]) -> None:
        """Send again what a member has not received on its last connection."""
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
