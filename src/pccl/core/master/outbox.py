"""Effects gathered while the master handles one event, in order."""

from collections import deque
from collections.abc import Iterable

from msgspec import structs

from pccl.core.effects.both import Note
from pccl.core.effects.master import Close, MasterEffect, Send
from pccl.core.master.ration import Ration
from pccl.core.master.roster import Roster
from pccl.core.messages.both import Ping
from pccl.core.messages.observers import ToObserver
from pccl.core.messages.to_peer import Kick, ToPeer
from pccl.core.rights import origin_of
from pccl.core.status import EVENTS_KEPT
from pccl.core.text import NAMES_MAX, clip
from pccl.types import PeerId

PINGS_MAX = 16
"""Unanswered pings to one peer: it is not there, and more of them would only fill its connection."""


class Outbox:
    """Addresses messages by peer; peers that are gone are passed over."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._effects: list[MasterEffect] = []
        self.now = 0.0
        """When the event happened that is being handled."""
        self.events: deque[tuple[float, Note]] = deque(maxlen=EVENTS_KEPT)
        """What the operator was told last, and when."""
        self._ration = Ration()
        self._news: list[str] = []
        """Changes of the roster that the peers have not read of."""
        self._losses = False
        """One of them is a loss."""

    def send(self, peers: Iterable[PeerId], message: ToPeer) -> None:
        """One message to each of these peers. Sentences in it have the names of those that they are about."""
        if reason := getattr(message, "reason", ""):
            message = structs.replace(message, reason=clip(self.spell(reason)))
        members = [member for peer in peers if (member := self._roster.member(peer)) is not None]
        for member in members:
            member.session.log(message)
        if members:
            self._effects.append(Send(tuple(member.connection for member in members), message))

    def is_accepted(self, peer: PeerId) -> bool:
        """It is on the roster: what members find is for it to read."""
        return peer in self._roster.accepted

    def ping(self, peers: Iterable[PeerId], now: float) -> None:
        """Ask these peers for a sign of life, and remember when."""
        asked = [member for peer in peers if (member := self._roster.member(peer))]
        asked = [member for member in asked if len(member.pulse.pings) < PINGS_MAX]
        for member in asked:
            member.pulse.pings.append(now)
        self.send([member.peer for member in asked], Ping())

    def kick(self, connection: int, kick: Kick) -> None:
        """Close a connection, and send first why."""
        self._effects.append(Send((connection,), Kick(kick.kind, clip(self.spell(kick.reason)))))
        self.close(connection)

    def answer(self, connection: int, message: ToObserver) -> None:
        """Send this to a connection that is no peer's, and close it."""
        self._effects.append(Send((connection,), message))
        self.close(connection)

    def repeat(self, connection: int, messages: Iterable[ToPeer]) -> None:
        """Send again what a member has not received on its last connection."""
        self._effects.extend(Send((connection,), message, again=True) for message in messages)

    def close(self, connection: int) -> None:
        """Close a connection once everything sent on it has gone."""
        self._effects.append(Close(connection))

    def spell(self, sentence: str) -> str:
        """With the names of the peers in it."""
        return self._roster.names.spell(sentence)

    def note(self, note: Note) -> None:
        """Tell the operator."""
        note = structs.replace(note, reason=clip(self.spell(note.reason)))
        self._effects.append(note)
        self.events.append((self.now, note))

    def note_outsider(self, note: Note, host: str) -> None:
        """Tell the operator of a peer that is not in the run and comes from there, unless there were many already."""
        silenced = self._ration.draw(origin_of(host), self.now) if host else 0
        if silenced is None:
            return
        more = f" (there were {silenced} more of {origin_of(host)} that were not told)" if silenced else ""
        self.note(structs.replace(note, reason=note.reason + more))

    def announce(self, note: Note) -> None:
        """Tell the operator, and all peers with the next topology."""
        self.note(note)
        self._news.append(note.reason)
        self._losses |= note.warns

    def take_news(self) -> tuple[str, bool]:
        """What the peers have not read of, and whether a loss is among it."""
        news, lost = self._news, self._losses
        self._news, self._losses = [], False
        more = f"; and {len(news) - NAMES_MAX} more" if len(news) > NAMES_MAX else ""
        return clip(self.spell("; ".join(news[:NAMES_MAX]) + more)), lost

    def take(self) -> list[MasterEffect]:
        """Everything gathered so far; the outbox is empty afterwards."""
        effects, self._effects = self._effects, []
        return effects
