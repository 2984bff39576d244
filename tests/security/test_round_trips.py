"""Round trips of connecting, and of making a link again, are those of the page: by the bench that it names."""

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.patience import HANG_S

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (?:[^|]*) \(`(\w+)`\) \| (\d) \| (\d) \|")
NEAR_S, FAR_S = 0.02, 0.2
RUNS_MAX = 5
"""Of the bench. Beside a busy core one is late by a round trip now and then: the shortest of all of them counts."""

Case = tuple[str, bool]


def test_round_trips_are_those_of_the_page():
    told = {}
    for what, plain, secured in ROW.findall((ROOT / "docs/security.md").read_text()):
        told |= {(what, False): int(plain), (what, True): int(secured)}
    assert {what for what, _ in told} == {"connect", "join", "remake"}
    near_ms: dict[Case, float] = {}
    far_ms: dict[Case, float] = {}
    slopes: dict[Case, int] = {}
    for _ in range(RUNS_MAX):
        for line in measured():
            case = line["what"], line["token"]
            near_ms[case] = min(line["near_ms"], near_ms.get(case, line["near_ms"]))
            far_ms[case] = min(line["far_ms"], far_ms.get(case, line["far_ms"]))
        slopes = {case: round((far_ms[case] - near_ms[case]) / 1e3 / (FAR_S - NEAR_S)) for case in near_ms}
        if slopes == told:
            return
    assert slopes == told, (near_ms, far_ms)


def measured():
    ways = ["--near", str(NEAR_S), "--far", str(FAR_S), "--tries", "2"]
    bench = [sys.executable, str(ROOT / "bench/round_trips.py"), *ways]
    ran = subprocess.run(bench, stdout=subprocess.PIPE, text=True, timeout=4 * HANG_S, check=True)
    return map(json.loads, ran.stdout.splitlines())
