"""The checkers have teeth: each broken rule is noticed, by a checker and not by an exception of its own."""

from unittest.mock import patch

import pytest

from pccl.core.master.admission import Admission
from tests.simulation.checkers import NAMES
from tests.simulation.mutants import MUTANTS, SEEDS_MAX, Mutant, hunt


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    plays, verdict = hunt(name)
    assert verdict is not None, f"nobody noticed in {plays} of {SEEDS_MAX} plays: {name}"
    assert verdict.checker in NAMES


def test_a_mutant_with_other_parameters_than_its_rule_is_none() -> None:
    with pytest.raises(AssertionError, match="suspend takes"):
        Mutant("stale", Admission, "suspend", lambda self, now: None).patch()


def test_an_exception_of_a_mutant_is_not_counted() -> None:
    def broken(self: object, now: float) -> bool:
        raise TypeError("of its own")

    mutants = {"raises": (Mutant("it raises", Admission, "advance", broken),)}
    with patch.dict(MUTANTS, mutants):
        assert hunt("raises", 3) == (3, None)
