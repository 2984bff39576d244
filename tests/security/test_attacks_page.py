"""The page names a test for every attack of the review, and each of these tests exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = re.search(r"<!-- attacks -->\n(.*?)<!-- /attacks -->", (ROOT / "docs/security.md").read_text(), re.DOTALL)[1]
ROWS = {row.split("|")[1].strip(): row for row in TABLE.splitlines()[2:]}
WITHOUT = {"A11"}
"""The page says why."""


def test_every_attack_has_a_row():
    assert list(ROWS) == [f"S{number}" for number in range(1, 16)] + [f"A{number}" for number in range(1, 13)]


@pytest.mark.parametrize("attack", ROWS)
def test_each_has_a_test_that_exists(attack):
    named = re.findall(r"`(tests/[\w/]+\.py)`(?: \(([^)]*)\))?", ROWS[attack])
    assert bool(named) != (attack in WITHOUT)
    for file, names in named:
        source = (ROOT / file).read_text()
        for name in re.findall(r"`(\w+)`", names):
            assert f"def {name}(" in source, f"{file} has no {name}"
