"""Each story in `scenarios/` goes as its file says; `python -m tests.simulation --rewrite` writes them anew."""

from pathlib import Path

import pytest

from tests.simulation.scenario import DIRECTORY, play


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    expected, happened = play(path)
    assert happened == expected
