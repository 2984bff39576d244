"""Breaks rules of the core on purpose: `python -m tests.simulation.mutants` tells which checker noticed, and when."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from typing import Any
from unittest.mock import PropertyMock, patch

from msgspec import Struct

from pccl.core import election, resettling
from pccl.core.absence import Absence
from pccl.core.absentees import Absentees
from pccl.core.admission import Admission
from pccl.core.ballot import Ballot
from pccl.core.collectives import Collectives
from pccl.core.effects import Failure, FailureKind
from pccl.core.lanes import Lanes, LinkEnd
from pccl.core.liveness import Liveness
from pccl.core.master import Master
from pccl.core.memory import Memory
from pccl.core.muster import Muster
from pccl.core.peer import Peer
from pccl.core.reunion import Reunion
from pccl.core.roster import Member, Roster
from pccl.core.session import Session
from pccl.core.syncing import Syncing
from pccl.core.syncs import Syncs
from pccl.core.visiting import Visiting
from pccl.core.visits import Visits
from pccl.core.wiring import LinkStage, Wiring
from tests.simulation.runner import Verdict, play

SEEDS_MAX = 300
"""A mutant that lives through this many seeds shows a hole in the checkers."""


class Mutant(Struct, frozen=True):
    """A rule and how to break it."""

    rule: str
    owner: Any
    name: str
    broken: Any
    first: int = 0
    """The seed to begin with: some rules matter only in one play of hundreds, with a standby and bad luck."""


# The broken methods take `self` and whatever else; types would only repeat those of the methods they replace.
def _around(method: Callable[..., Any], name: str, replacement: Any) -> Callable[..., Any]:
    """The method, with an attribute of its object replaced while it runs."""

    def broken(self: Any, *arguments: Any) -> Any:
        with patch.object(self, name, replacement):
            return method(self, *arguments)

    return broken


def _suspend_for_nobody(self: Any, now: float, until: float = inf) -> None:
    _SUSPEND(self, now, until if until == inf else now)


def _majority(self: Any) -> bool:
    return len(self.votes) * 2 > len(self._electorate())


def _advance_anyway(self: Any, now: float) -> Any:
    with patch.object(self.wiring, "stands", lambda group: True):
        return _ADVANCE(self, now)


def _start_anyway(self: Any, group: int, stands: bool, now: float) -> None:
    _START(self, group, True, now)


def _report_done(self: Any, member: Any, tag: int, attempt: int, cause: str | None, now: float) -> None:
    _REPORT(self, member, tag, attempt, None, now)


def _lend_again(self: Any, peer: Any, lanes: Any, attempt: int) -> Any:
    with patch.object(self, "_lent", {}):
        lent = _LEND(self, peer, lanes, attempt)
    self._lent.update(dict.fromkeys(lent or (), attempt))
    return lent


def _all_lanes(self: Any, group: int) -> tuple[int, ...]:
    return tuple(range(self._roster.lanes[group]))


def _fail_if_answered(self: Any, link: Any, cause: str, now: float) -> None:
    answered = [self._roster.member(peer).answered_at for peer in link.ends]
    if link.stage is LinkStage.DIALLING and min(answered) <= link.changed_at:
        self._retire_number(link)
        link.number, link.up = 0, []
        self._become(link, LinkStage.RESTING, now, self._limits.redial_s)
    else:
        _FAIL(self, link, cause, now)


def _fail_unless_it_stood(self: Any, link: Any, cause: str, now: float) -> None:
    if link.stage is LinkStage.STANDING:
        link.failures, link.causes = 0, {}
        self._dial(link, now)
    else:
        _FAIL(self, link, cause, now)


def _report_without_cause(self: Any, member: Any, attempt: int, cause: str) -> None:
    _REPORT_SYNC(self, member, attempt, "")


def _popular_only(candidates: Any) -> Any:
    states = [claim.state for claim in candidates.values()]
    return max(candidates.values(), key=lambda claim: states.count(claim.state))


def _wait_for_nobody(self: Any, sync: Any) -> None:
    _START_SYNC(self, sync)
    sync.unreported.clear()


def _unsay(self: Any, call: int) -> None:
    _ABANDON(self, call)
    self._calls = {name: waiting for name, waiting in self._calls.items() if waiting is not None}


def _forget_sync(self: Any, call: int) -> None:
    if self._call == call:
        self._answer(Failure(FailureKind.USAGE, "interrupted"))


_ABANDON = Peer._abandon
_REPORT_SYNC, _START_SYNC = Syncs.report, Syncs._start
_ADVANCE, _START, _REPORT, _LEND = Admission.advance, Collectives.advance, Collectives.report, Lanes.lend
_SUSPEND = Admission.suspend
_FAIL = Wiring._fail

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "commit without all votes": (Mutant("a majority is enough", Ballot, "complete", property(_majority)),),
    "keep the vote of the dead": (Mutant("a ballot forgets who is gone", Ballot, "forget", lambda self, voter: None),),
    "no recount on a death": (
        Mutant("ballots are counted again", Collectives, "lose", _around(Collectives.lose, "_count", lambda *_: None)),
    ),
    "admit before lanes stand": (Mutant("the ring is tried first", Admission, "advance", _advance_anyway),),
    "answer before the rewiring": (Mutant("callers wait for the ring", Collectives, "advance", _start_anyway),),
    "commit a failure": (Mutant("one failure aborts", Collectives, "report", _report_done),),
    "lend a lane twice": (
        Mutant("the master gives each collective its own lanes", Collectives, "_free_lanes", _all_lanes),
        Mutant("a peer lends a lane once", Lanes, "lend", _lend_again),
    ),
    "report a link too early": (Mutant("all lanes stand", LinkEnd, "complete", PropertyMock(return_value=True)),),
    "ignore answers to pings": (
        Mutant(
            "a busy peer is not silent",
            Liveness,
            "_silence",
            lambda self, each, now: now - self._waited_since[each.peer],
        ),
    ),
    "count only what was answered before": (
        Mutant("a dial that fails at once has failed", Wiring, "_fail", _fail_if_answered),
    ),
    "forgive a link that stood": (
        Mutant("a candidate's link that breaks has failed", Wiring, "_fail", _fail_unless_it_stood),
    ),
    "try one place only": (
        Mutant(
            "a candidate may do well elsewhere in the ring",
            Admission,
            "_judge_trial",
            _around(Admission._judge_trial, "_go_around", lambda *_: False),
        ),
    ),
    "in step before the transfer": (
        Mutant("all are in step when the last transfer is over", Syncs, "_start", _wait_for_nobody),
    ),
    "count the votes of the lost in a sync": (
        Mutant("a sync forgets who is gone", Syncs, "lose", lambda self, member, now: None),
    ),
    "forgive a puller that failed": (
        Mutant("who did not get it makes all call again", Syncs, "report", _report_without_cause),
    ),
    "elect the most popular revision": (Mutant("the highest wins", election, "_most_popular", _popular_only),),
    "elect who only receives": (Mutant("a mixture is offered to nobody", election, "_candidates", dict),),
    "let anybody serve visitors": (
        Mutant("holders are those who were in step", Visits, "_holders", lambda self, group: self._roster.ring(group)),
    ),
    "serve beyond the end": (Mutant("who is out serves nobody", Visiting, "lose", lambda self, loss: None),),
    "take visitors for candidates": (
        Mutant("visitors stay outside", Roster, "add_visitor", lambda self, member: self.add_candidate(member, 1)),
    ),
    "never kick": (Mutant("a silent peer is kicked", Liveness, "watch", lambda self, waited_for, now: []),),
    "leave contradictions alone": (
        Mutant("calls that cannot complete fail", Master, "_refuse_contradicting", lambda self, now: None),
    ),
    "forget the open calls": (
        Mutant("every call is answered", Peer, "_lose", _around(Peer._lose, "_resolve", lambda *_: None)),
    ),
    "vote again after an interrupt": (Mutant("the vote of an interrupted call stands", Peer, "_abandon", _unsay),),
    "hear no more of an interrupted sync": (Mutant("it goes on without its caller", Syncing, "abandon", _forget_sync),),
    "go on with whoever is first": (Mutant("everybody gets the time to come back", Muster, "whole", True),),
    "count from one again": (
        Mutant("numbers start beyond all that were given", resettling, "beyond", lambda highest, apart, salt: 1),
    ),
    "commit what some never heard of": (
        Mutant("an attempt that some failed at is aborted", resettling, "_why_aborted", lambda *_: ""),
    ),
    "forget the answers": (
        Mutant("an answer holds for all", Memory, "note", lambda self, message, outcomes_max: None),
    ),
    "forget the votes": (Mutant("votes count as cast", resettling, "_settle_ballots", lambda *_: None),),
    "hold nothing back": (Mutant("first tell what you know", Absence, "passes", lambda self, effect, stage: True),),
    "gather beside a roster": (
        Mutant("whoever is not on the roster is out", Reunion, "_objection", lambda self, resume: ""),
    ),
    "begin beside a run that comes back": (
        Mutant("newcomers wait meanwhile", Admission, "suspend", lambda self, now: None),
    ),
    "go on with too few": (Mutant("no two masters have most of a roster", Muster, "unmatched", True, first=380),),
    "begin before the others are asked": (
        Mutant(
            "newcomers begin no run beside another", Absence, "may_begin", lambda self, now: self._place == 0, first=120
        ),
    ),
    "wait for nobody whom nobody can see": (
        Mutant("nobody found it gone", Member, "doubted", True),
        Mutant("nor is its place taken", Admission, "suspend", _suspend_for_nobody),
    ),
    "say nothing again": (Mutant("who comes back hears what it lacks", Session, "unheard", lambda self, heard: ()),),
    "say all of it again": (
        Mutant("nothing is said twice", Session, "unheard", lambda self, heard: tuple(self._latest)),
    ),
    "wait for nobody who is away": (
        Mutant("whose links stand is not dead", Absentees, "_witnesses", lambda self, peer: []),
        Mutant("nor is one whom nobody found gone", Member, "doubted", True),
    ),
    "wait for the dead": (
        Mutant("who has no link left is dead", Absentees, "_deadline", lambda self, peer: self._away[peer][1] + 1e6),
    ),
    "look for a master for ever": (Mutant("calls end when none comes", Absence, "over", lambda self, now: False),),
    "say nothing": (Mutant("every wait has words", Master, "explain", lambda self: ()),),
}


def hunt(name: str, seeds_max: int = SEEDS_MAX) -> tuple[int, Verdict | None]:
    """Play seeds with a broken core until a checker notices; how many it took."""
    with ExitStack() as stack:
        for mutant in MUTANTS[name]:
            stack.enter_context(patch.object(mutant.owner, mutant.name, mutant.broken))
        first = MUTANTS[name][0].first
        for seed in range(first, first + seeds_max):
            verdict = play(seed)
            if verdict.failure:
                return seed - first + 1, verdict
    return seeds_max, None


def main() -> int:
    """Hunt all mutants and print a table."""
    alive = 0
    for name in MUTANTS:
        seeds, verdict = hunt(name)
        alive += verdict is None
        caught = f"[{verdict.checker}] after {seeds} seeds" if verdict else f"NOT CAUGHT in {seeds} seeds"
        print(f"{name:<28} {caught}", flush=True)
    return alive


if __name__ == "__main__":
    sys.exit(main())
