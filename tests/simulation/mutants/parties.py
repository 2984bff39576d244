"""Rules of parties, broken."""

from typing import Any
from unittest.mock import patch

from pccl.core.fields import Party
from pccl.core.master.admission import Admission
from pccl.core.master.parties import Parties
from pccl.core.master.pending import Pending
from pccl.core.master.recovery import away
from pccl.core.master.recovery.away import Away
from pccl.core.master.recovery.census import Census
from pccl.core.master.roster import Roster
from tests.simulation.mutants.mutant import Mutant


def _all_awake(self: Any, now: float = float("inf")) -> Any:
    return {peer: each for peer, each in self.candidates.items() if each.rests_until <= now}


def _asked_for_all(self: Any, now: float) -> bool:
    with patch.object(self._roster, "ready", lambda now: self._roster.candidates):
        return _PENDING(self, now)


def _waits_of_all(self: Any) -> Any:
    with patch.object(self._roster, "ready", lambda now=0.0: self._roster.candidates):
        return _WAITS(self)


def _as_it_is(self: Any, roster: Any) -> Any:
    return self


def _leave_alone(self: Any, member: Any, now: float) -> None:
    with patch.object(self._roster, "mates", lambda member: []):
        _LEAVE(self, member, now)


_PENDING, _WAITS, _LEAVE = Pending.advance, Admission.waits, Away.leave

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "admit half a party": (Mutant("a trial has whole parties", Roster, "ready", _all_awake, parties=True),),
    "keep the rest of a party": (
        Mutant("a party goes together", Parties, "mates", lambda self, gone: [], parties=True),
    ),
    "keep the rest of a trial": (
        Mutant("a party is tried together", Admission, "_withdraw", lambda self, gone: None, parties=True),
    ),
    "pending for half a party": (Mutant("no peer waits for halves", Pending, "advance", _asked_for_all, parties=True),),
    "wait for half a party": (Mutant("no peer waits for halves", Admission, "waits", _waits_of_all, parties=True),),
    "believe a claim": (
        Mutant("a party is known by its key", Party, "which", property(lambda self: self.name), 0, True, True),
    ),
    "go on with half a party": (
        Mutant("who does not come back takes its party along", Census, "of_whole_parties", _as_it_is, parties=True),
    ),
    "no time to say goodbye": (Mutant("a party has time to say goodbye", away, "TOGETHER_S", 0.2, parties=True),),
    "goodbye of one": (Mutant("a party says goodbye together", Away, "leave", _leave_alone, parties=True),),
}
