"""The checkers have teeth: each broken rule is noticed."""

import pytest

from tests.simulation.mutants import MUTANTS, SEEDS_MAX, hunt


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    seeds, verdict = hunt(name)
    assert verdict is not None, f"nobody noticed in {seeds} of {SEEDS_MAX} seeds: {name}"
