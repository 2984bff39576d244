"""A sample of the aimed schedules, of each family alike; `make aimed` plays all of them."""

import pytest

from tests.simulation.aimed import FAMILIES, play, sample

SCHEDULES = 40
"""Of each family: some seconds."""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("family", FAMILIES)
def test_aimed_schedules(family: str) -> None:
    verdicts = [play(name) for name in sample(SCHEDULES, 0, (family,))]
    failures = [verdict for verdict in verdicts if verdict.failure]
    assert not failures, "\n".join(map(str, failures[:5]))
    assert all(verdict.events > 100 for verdict in verdicts), "there was something to strike"
