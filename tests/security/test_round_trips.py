"""Round trips of connecting, and of making a link again, are those of the page: by the bench that it names."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.patience import HANG_S

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (?:[^|]*) \(`(\w+)`\) \| (\d) \| (\d) \|")


def test_round_trips_are_those_of_the_page():
    told = {what: (int(plain), int(secured)) for what, plain, secured in ROW.findall(page())}
    bench = [sys.executable, str(ROOT / "bench/round_trips.py"), "--tries", "2"]
    ran = subprocess.run(bench, stdout=subprocess.PIPE, text=True, timeout=4 * HANG_S, check=True)
    measured: dict[str, tuple[int, ...]] = {}
    for line in map(json.loads, ran.stdout.splitlines()):
        measured[line["what"]] = (*measured.get(line["what"], ()), round(line["round_trips"]))
    assert set(told) == {"connect", "join", "remake"}
    assert measured == told


def page():
    return (ROOT / "docs/security.md").read_text()
