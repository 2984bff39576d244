"""Parties: the peers of one machine, which are admitted together or not at all, and go together.

Owns which newcomers fit into a party, what one that is not complete waits for, and which members go with one that is
gone. That a trial has whole parties only follows from `Roster.ready`. Rules: docs/protocol.md, "Parties".
"""

from collections.abc import Sequence

from pccl.core.fields import Identity, KickKind, Party
from pccl.core.master.part import Departure, Part, Wait
from pccl.core.master.roster import Member
from pccl.core.messages.to_peer import Kick
from pccl.core.names import shown
from pccl.core.text import NAMES_MAX, names
from pccl.types import PeerId, short


class Parties(Part):
    """Of candidates and of members."""

    def objection(self, me: Identity) -> Kick | None:
        """Why this peer is not of the party that it names; None if it is, or has none. Those that are here stay."""
        here = [
            each for each in self._roster.candidates.values() if me.party.name and each.party.which == me.party.which
        ]
        for other in here:
            if other.party.size != me.party.size:
                return _refusal(
                    me, f"{short(other.peer)} has party_size={other.party.size} and {short(me.peer)} {me.party.size}"
                )
            if other.group == me.group:
                return _refusal(me, f"{short(other.peer)} and {short(me.peer)} both have peer_group={me.group}")
        if here and len(here) >= me.party.size:
            return _refusal(me, f"its {me.party.size} peers are {names(each.peer for each in here)}")
        return None

    def mates(self, gone: Sequence[Departure]) -> list[Departure]:
        """The members that go because these do, each of which receives why."""
        departures: dict[PeerId, Departure] = {}
        leaving = [each.peer for each in gone]
        for each in gone:
            called = shown(each.member.party_called)
            for mate in self._roster.mates(each.member):
                if mate.peer not in leaving and mate.peer not in departures:
                    reason = f"{short(each.peer)}, group {each.member.group} of its party {called}, is gone: {each.how}"
                    self._outbox.kick(mate.connection, Kick(KickKind.PARTY, f"{reason}; a party goes as a whole"))
                    departures[mate.peer] = Departure(mate, reason, each.now, event="kicked")
        return list(departures.values())

    def waits(self) -> list[Wait]:
        """The candidates whose party is not complete. No peer waits for them. The eldest parties have a sentence each,
        all others one: a token can make any number of them."""
        whole, parties = self._roster.ready(), dict[Party, list[Member]]()
        for each in self._roster.candidates.values():
            if each.peer not in whole:
                parties.setdefault(each.party, []).append(each)
        told = [(here, self._explain(party, here)) for party, here in list(parties.items())[:NAMES_MAX]]
        if rest := list(parties.values())[NAMES_MAX:]:
            crowd = [each for here in rest for each in here]
            peers = names(each.peer for each in crowd)
            told.append((crowd, f"{peers} wait for the rest of their parties, of {len(rest)} more parties"))
        return [Wait(tuple(each.peer for each in here), words, here[0].joined_at) for here, words in told]

    def _explain(self, party: Party, here: list[Member]) -> str:
        called, peers, lacking = shown(party.name), names(each.peer for each in here), party.size - len(here)
        verb = "waits" if len(here) == 1 else "wait"
        if not lacking:
            return f"{peers} {verb} until the party {called} that is here is gone: both are of the same machine"
        sentence = f"{peers} {verb} for {lacking} more rank{'s' if lacking > 1 else ''} of party {called}"
        alike = [each.party.which == party.which for each in self._roster.everybody() if each.party.name == party.name]
        return sentence if all(alike) else f"{sentence}; there is a party of that name on another machine"


def _refusal(me: Identity, conflict: str) -> Kick:
    how = "give all peers of a party the same party_size, and each another peer_group"
    return Kick(KickKind.PARTY, f"party {shown(me.party.name)}: {conflict}; {how}")
