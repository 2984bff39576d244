"""Breaks rules of the core on purpose: `python -m tests.simulation.mutants` tells which checker noticed, and when."""

from collections.abc import Iterator
from contextlib import ExitStack

from tests.simulation import aimed
from tests.simulation.checkers import NAMES
from tests.simulation.mutants import calls, membership, parties, recovery, states, strands, widths, words
from tests.simulation.mutants.mutant import Mutant
from tests.simulation.runner import Verdict, play

SEEDS_MAX = 300
"""A mutant that lives through this many seeds shows a hole in the checkers."""

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    **membership.MUTANTS,
    **calls.MUTANTS,
    **states.MUTANTS,
    **parties.MUTANTS,
    **recovery.MUTANTS,
    **words.MUTANTS,
    **widths.MUTANTS,
    **strands.MUTANTS,
}


def hunt(name: str, plays_max: int = SEEDS_MAX) -> tuple[int, Verdict | None]:
    """Play seeds or aimed schedules with a broken core until a checker notices; how many it took. What a core or a
    mutant raises itself does not count."""
    with ExitStack() as stack:
        for mutant in MUTANTS[name]:
            stack.enter_context(mutant.patch())
        for plays, verdict in enumerate(_plays(MUTANTS[name][0], plays_max), start=1):
            if verdict.checker in NAMES:
                return plays, verdict
    return plays_max, None


def _plays(mutant: Mutant, plays_max: int) -> Iterator[Verdict]:
    if mutant.aimed:
        return map(aimed.play, aimed.sample(plays_max, 0, (mutant.aimed,)))
    seeds = range(mutant.first, mutant.first + plays_max)
    return (play(seed, hostile=mutant.hostile, parties=mutant.parties) for seed in seeds)
