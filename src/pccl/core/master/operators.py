"""Operators: people who put a peer out, by the right of their connection.

Owns how a peer is found by what a person calls it, and the answers. Like an observer an operator has no place anywhere:
it asks once on a connection. Rules: docs/protocol.md, "Operators".
"""

from pccl.core.effects.both import Note
from pccl.core.effects.master import Received
from pccl.core.fields import KickKind
from pccl.core.master.part import Part
from pccl.core.master.roster import Member
from pccl.core.messages.observers import KickPeer, PeerKicked
from pccl.core.messages.to_peer import Kick
from pccl.core.names import clean
from pccl.core.rights import Rights
from pccl.core.text import clip, names
from pccl.types import short


class Operators(Part):
    """What they ask for."""

    def kick(self, event: Received, ask: KickPeer, now: float) -> None:
        """Put a peer out, or answer why not."""
        if Rights.OPERATE not in event.rights:
            reason = (
                f"a connection from {event.host or 'there'} may not kick: only the role operator gives that "
                "right or, where the master has no secret, the master's own machine"
            )
            note = Note(f"refused to kick {clip(ask.peer)!r}: {reason}", "refused", warns=True)
            self._outbox.note_outsider(note, event.host)
            self._outbox.kick(event.connection, Kick(KickKind.NO_RIGHT, reason))
            return
        found = self._find(ask.peer)
        if len(found) != 1:
            self._outbox.kick(event.connection, Kick(KickKind.NOT_ONE, self._not_one(ask.peer, found)))
            return
        (member,) = found
        self._outbox.answer(event.connection, PeerKicked(member.peer, self._roster.names.name(member.peer)))
        self._outbox.note(Note(f"an operator at {event.host} kicks {short(member.peer)}", "operator", peer=member.peer))
        reason = f"an operator removed it: {clip(ask.reason) or 'no reason given'}"
        self._door.expel(member, Kick(KickKind.OPERATOR, reason), now)

    def _find(self, wanted: str) -> list[Member]:
        """The members of this id, else of this name, else those whose id begins so."""
        members = self._roster.everybody()
        ways = (
            [each for each in members if each.peer == wanted],
            [each for each in members if self._roster.names.name(each.peer) == clean(wanted) != ""],
            [each for each in members if each.peer.startswith(wanted)],
        )
        return next((found for found in ways if found), [])

    def _not_one(self, wanted: str, found: list[Member]) -> str:
        if not found:
            here = names(each.peer for each in self._roster.everybody())
            return f"no peer has the name {clip(wanted)!r} or an id that begins so; here are {here or 'none'}"
        ids = ", ".join(f"{self._roster.names.full(each.peer)} with the id {each.peer}" for each in found[:8])
        return f"{len(found)} peers are meant by {clip(wanted)!r}: {ids}; name one by its id"
