"""Observers: what they ask is answered from the state of the run, and changes nothing of it.

Owns the answers. An observer has no place anywhere: the core keeps nothing of it but how many dials it was asked for.
Rules: docs/protocol.md, "Observers".
"""

from collections.abc import Iterator
from math import inf

from pccl.core.effects.master import Close, DialBack, DialledBack, MasterEffect, Received, Send
from pccl.core.fields import KickKind
from pccl.core.master.collectives import Collectives
from pccl.core.master.links import Links
from pccl.core.master.part import Lead, Wait
from pccl.core.master.roster import Member, Roster
from pccl.core.master.waits import Waits
from pccl.core.messages.observers import AskProbe, AskStatus, Probed
from pccl.core.messages.to_peer import Kick
from pccl.core.rights import Rights
from pccl.core.status import (
    CAUSE_MAX,
    EVENTS_KEPT,
    GROUPS_LISTED,
    IDS_LISTED,
    LINKS_LISTED,
    PEERS_LISTED,
    SENTENCE_MAX,
    STATUS_VERSION,
    WAITS_LISTED,
    EventStatus,
    LinkStatus,
    PeerStatus,
    Status,
    WaitStatus,
)
from pccl.core.text import clip
from pccl.types import PeerId

DIALS_MAX = 8
"""Dials for observers at a time: any program that reaches the port can ask for one, and each takes a descriptor."""

DIAL_TIMEOUT_S = 4.0
"""SYN is sent again after 1 s and 3 s: two losses fit in, and a person waits for the answer."""


class Observers:
    """All that is answered to them."""

    def __init__(self, roster: Roster, lead: Lead, links: Links, collectives: Collectives, waits: Waits) -> None:
        self._roster = roster
        self._lead = lead
        self._links = links
        self._collectives = collectives
        self._waits = waits
        self._dials = 0
        self.born_at: float | None = None

    def answer(self, event: Received, now: float) -> list[MasterEffect]:
        """One message of a connection that is no peer's."""
        connection, asked = event.connection, event.message
        if Rights.OBSERVE not in event.rights:
            reason = "this connection may not observe: its token is for something else; use one of the role observer"
            return [Send((connection,), Kick(KickKind.NO_RIGHT, reason)), Close(connection)]
        match asked:
            case AskStatus():
                return [Send((connection,), self.status(event, now)), Close(connection)]
            case AskProbe(port=port, nonce=nonce) if self._dials < DIALS_MAX:
                self._dials += 1
                return [DialBack(connection, event.host, port, nonce, DIAL_TIMEOUT_S)]
        reason = f"the master dials {self._dials} others already; ask again in {DIAL_TIMEOUT_S:g} s"
        return [Send((connection,), Kick(KickKind.FULL, reason)), Close(connection)]

    def dialled(self, event: DialledBack) -> list[MasterEffect]:
        """A dial for an observer is over."""
        self._dials -= 1
        answer = Probed(event.host, clip(event.cause), event.seconds)
        return [Send((event.connection,), answer), Close(event.connection)]

    def status(self, event: Received, now: float) -> Status:
        """The run at this moment."""
        roster = self._roster
        members = [*self._in_order(), *roster.returning.values(), *roster.visitors.values()]
        waits = [wait for wait in self._waits.all() if wait.sentence]
        ranks = {peer: rank for ring in roster.rings.values() for rank, peer in enumerate(ring)}
        return Status(
            version=STATUS_VERSION,
            release=self._lead.release,
            run=self._lead.run,
            epoch=roster.epoch,
            unix_s=event.unix_s,
            age_s=now - (now if self.born_at is None else self.born_at),
            seen=event.host,
            peers=tuple(self._peer(member, ranks, now) for member in members[:PEERS_LISTED]),
            links=tuple(self._links_listed()),
            rounds=tuple(each.told(now) for each in list(self._collectives.rounds.values())[:GROUPS_LISTED]),
            waits=tuple(self._wait(wait, now) for wait in waits[:WAITS_LISTED]),
            events=tuple(
                EventStatus(now - at, note.event, note.warns, note.reason[:SENTENCE_MAX])
                for at, note in list(self._waits.outbox.events)[-EVENTS_KEPT:]
            ),
            size=len(members),
            lanes=tuple(self._collectives.lanes.told()[:GROUPS_LISTED]),
        )

    def _in_order(self) -> Iterator[Member]:
        """Those on the roster as they stand in their rings, then candidates."""
        for ring in self._roster.rings.values():
            yield from (self._roster.accepted[peer] for peer in ring)
        yield from self._roster.candidates.values()

    def _peer(self, member: Member, ranks: dict[PeerId, int], now: float) -> PeerStatus:
        round_trip_s = member.pulse.round_trip_s
        return PeerStatus(
            peer=member.peer,
            name=self._roster.names.name(member.peer),
            stage=str(member.stage),
            group=member.group,
            rank=ranks.get(member.peer),
            machine=clip(member.label.machine),
            pid=member.label.pid,
            release=clip(member.label.release),
            announced=member.announced,
            seen=member.seen_host,
            port=member.port,
            age_s=now - member.joined_at,
            round_trip_s=None if round_trip_s == inf else round_trip_s,
            party=member.party_called or member.party.name,
        )

    def _links_listed(self) -> Iterator[LinkStatus]:
        for link in list(self._links.all())[:LINKS_LISTED]:
            cause = self._roster.names.spell(next(reversed(link.causes.values()), ""))
            yield LinkStatus(link.dialler, link.target, str(link.stage), link.round_trip_s or None, cause[:CAUSE_MAX])

    def _wait(self, wait: Wait, now: float) -> WaitStatus:
        return WaitStatus(
            sentence=clip(self._roster.names.spell(wait.sentence))[:SENTENCE_MAX],
            call=wait.call,
            age_s=now - wait.since,
            bound_s=None if wait.until is None else max(0.0, wait.until - now),
            works=wait.works,
            waiting=wait.waiting[:IDS_LISTED],
            missing=wait.missing[:IDS_LISTED],
        )
