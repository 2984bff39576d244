"""Rules of collectives and of calls, broken."""

from typing import Any
from unittest.mock import patch

from pccl.core.effects.peer_effects import Committed
from pccl.core.master import collectives
from pccl.core.master.collectives import Collectives
from pccl.core.master.recovery import restore as restoring
from pccl.core.master.refusals import Refusals
from pccl.core.messages.to_master import Done
from pccl.core.peer import collectives as runs
from pccl.core.peer.calls import Calls
from pccl.core.peer.links import Links as PeerLinks
from tests.simulation.mutants.mutant import Mutant, around


def _start_anyway(self: Any, group: int, now: float) -> None:
    with patch.object(self._links, "stands", lambda group: True):
        _START(self, group, now)


def _report_done(self: Any, member: Any, report: Any, now: float) -> None:
    _REPORT(self, member, report if isinstance(report, Done) else Done(report.tag, report.attempt), now)


def _lend_again(self: Any, peer: Any, lanes: Any, attempt: int) -> Any:
    with patch.object(self, "_lent", {}):
        lent = _LEND(self, peer, lanes, attempt)
    self._lent.update(dict.fromkeys(lent or (), attempt))
    return lent


def _all_lanes(self: Any, group: int) -> tuple[int, ...]:
    return tuple(range(self._roster.lanes[group]))


def _unsay(self: Any, call: int) -> None:
    _ABANDON(self, call)
    self._open = {name: waiting for name, waiting in self._open.items() if waiting is not None}


def _open_whatever(self: Any, member: Any, tag: int) -> Any:
    collective = self._collectives.get(member.group, {}).get(tag)
    return collective if collective is not None and member.peer in collective.ballot.votes else None


_ABANDON = Calls.abandon
_START = Collectives._advance
_REPORT = Collectives.report
_LEND = PeerLinks.lend


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "no recount on a death": (
        Mutant("ballots are counted again", Collectives, "lose", around(Collectives.lose, "_count", lambda *_: None)),
    ),
    "answer before the rewiring": (Mutant("callers wait for the ring", Collectives, "_advance", _start_anyway),),
    "commit without comparing": (
        Mutant("results are equal bits", collectives, "different_results", lambda digests: ""),
        Mutant("also under another master", restoring, "different_results", lambda digests: ""),
    ),
    "commit a failure": (Mutant("one failure aborts", Collectives, "report", _report_done),),
    "lend a lane twice": (
        Mutant("the master gives each collective its own lanes", Collectives, "_free_lanes", _all_lanes),
        Mutant("a peer lends a lane once", PeerLinks, "lend", _lend_again),
    ),
    "ignore that time is over": (
        Mutant("a vote can be taken back", Collectives, "withdraw", lambda self, member, tags, explain, now: None),
    ),
    "take a vote back after the start": (Mutant("what has started goes on", Collectives, "open_vote", _open_whatever),),
    "leave contradictions alone": (
        Mutant("calls that cannot complete fail", Refusals, "advance", lambda self, now: False),
    ),
    "forget the open calls": (Mutant("every call is answered", Calls, "lose", lambda self, loss: self._open.clear()),),
    "vote again after an interrupt": (Mutant("the vote of an interrupted call stands", Calls, "abandon", _unsay),),
    "each its own candidates": (Mutant("one for all", runs, "Committed", lambda *a: Committed(*a[:4], id(a) % 3 > 0)),),
}
