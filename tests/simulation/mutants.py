"""Breaks rules of the core on purpose: `python -m tests.simulation.mutants` tells which checker noticed, and when."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import PropertyMock, patch

from msgspec import Struct

from pccl.core.admission import Admission
from pccl.core.ballot import Ballot
from pccl.core.collectives import Collectives
from pccl.core.lanes import Lanes, LinkEnd
from pccl.core.liveness import Liveness
from pccl.core.master import Master
from pccl.core.peer import Peer
from tests.simulation.runner import Verdict, play

SEEDS_MAX = 300
"""A mutant that lives through this many seeds shows a hole in the checkers."""


class Mutant(Struct, frozen=True):
    """A rule and how to break it."""

    rule: str
    owner: type
    name: str
    broken: Any


# The broken methods take `self` and whatever else; types would only repeat those of the methods they replace.
def _around(method: Callable[..., Any], name: str, replacement: Any) -> Callable[..., Any]:
    """The method, with an attribute of its object replaced while it runs."""

    def broken(self: Any, *arguments: Any) -> Any:
        with patch.object(self, name, replacement):
            return method(self, *arguments)

    return broken


def _majority(self: Any) -> bool:
    return len(self.votes) * 2 > len(self._electorate())


def _advance_anyway(self: Any, now: float) -> Any:
    with patch.object(self._wiring, "stands", lambda group: True):
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


_ADVANCE, _START, _REPORT, _LEND = Admission.advance, Collectives.advance, Collectives.report, Lanes.lend

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
    "never kick": (Mutant("a silent peer is kicked", Liveness, "watch", lambda self, waited_for, now: []),),
    "leave contradictions alone": (
        Mutant("calls that cannot complete fail", Master, "_refuse_contradicting", lambda self, now: None),
    ),
    "forget the open calls": (
        Mutant("every call is answered", Peer, "_lose", _around(Peer._lose, "_resolve", lambda *_: None)),
    ),
    "say nothing": (Mutant("every wait has words", Master, "explain", lambda self: ()),),
}


def hunt(name: str, seeds_max: int = SEEDS_MAX) -> tuple[int, Verdict | None]:
    """Play seeds with a broken core until a checker notices; how many it took."""
    with ExitStack() as stack:
        for mutant in MUTANTS[name]:
            stack.enter_context(patch.object(mutant.owner, mutant.name, mutant.broken))
        for seed in range(seeds_max):
            verdict = play(seed)
            if verdict.failure:
                return seed + 1, verdict
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
