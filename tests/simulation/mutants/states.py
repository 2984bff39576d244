"""Rules of shared states and visitors, broken."""

from typing import Any

from pccl.core.effects.peer_effects import Failure, FailureKind
from pccl.core.master.observers import Observers
from pccl.core.master.roster import Roster
from pccl.core.master.sync import Syncs
from pccl.core.master.visits import Visits
from pccl.core.peer.sync import Sync
from pccl.core.peer.visits import Visits as PeerVisits
from pccl.core.rules import election
from tests.simulation.mutants.mutant import Mutant


def _report_without_cause(self: Any, member: Any, attempt: int, cause: str, flow: Any) -> None:
    _REPORT_SYNC(self, member, attempt, "", flow)


def _popular_only(eligible: Any) -> Any:
    states = [claim.state for claim in eligible.values()]
    return max(eligible.values(), key=lambda claim: states.count(claim.state))


def _wait_for_nobody(self: Any, sync: Any, now: float) -> None:
    _START_SYNC(self, sync, now)
    sync.unreported.clear()


def _forget_sync(self: Any, call: int) -> None:
    if self._call == call:
        self._answer(Failure(FailureKind.USAGE, "interrupted"))


def _vote_at_once(self: Any, call: int, request: Any) -> None:
    self._request = None
    _BEGIN_SYNC(self, call, request)


_BEGIN_SYNC = Sync.begin
_REPORT_SYNC = Syncs.report
_START_SYNC = Syncs._start
_answer = Observers.answer


def _believe_all(eligible: Any, agreed: Any, unproved: Any) -> Any:
    return election._of_this_history(eligible, agreed)


def _count_clones(eligible: Any, agreed: Any, unproved: Any) -> Any:
    return _BELIEVED(eligible, agreed, eligible)


_BELIEVED = election._believed

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "believe who may not bring a state": (Mutant("a jump needs a right", election, "_believed", _believe_all),),
    "count peers, not tokens": (
        Mutant("those with the right outweigh any number", election, "_believed", _count_clones, hostile=True),
    ),
    "in step before the transfer": (
        Mutant("all are in step when the last transfer is over", Syncs, "_start", _wait_for_nobody),
    ),
    "count the votes of the lost in a sync": (
        Mutant("a sync forgets who is gone", Syncs, "lose", lambda self, gone: None),
    ),
    "forgive a puller that failed": (
        Mutant("who did not get it makes all call again", Syncs, "report", _report_without_cause),
    ),
    "elect the most popular revision": (Mutant("the highest wins", election, "_most_popular", _popular_only),),
    "elect from strategies that do not go together": (
        Mutant("enforce what is popular at all or at none", election, "_mixed", lambda claims: "", first=50),
    ),
    "elect who only receives": (
        Mutant("a mixture is offered to nobody", election, "_eligible", lambda claims: dict(claims), first=300),
    ),
    "let anybody serve visitors": (
        Mutant("holders are those who were in step", Visits, "_holders", lambda self, group: self._roster.ring(group)),
    ),
    "serve beyond the end": (Mutant("who is out serves nobody", PeerVisits, "lose", lambda self, loss: None),),
    "take visitors for candidates": (
        Mutant("visitors stay outside", Roster, "add_visitor", lambda self, member: self.add_candidate(member)),
    ),
    "vote again in an interrupted sync": (
        Mutant("the next one takes over its vote, or waits for its end", Sync, "begin", _vote_at_once, first=200),
    ),
    "hear no more of an interrupted sync": (
        Mutant("it goes on without its caller", Sync, "abandon", _forget_sync, first=240),
    ),
}
