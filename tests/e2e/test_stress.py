"""A short run of `pccl stress`, so that the tool works and what it checks holds, at least for half a minute."""

import re
import subprocess
import sys

import pytest

from tests.e2e.harness import ROOT

KILLS = 30


@pytest.mark.timeout(240)
def test_a_short_run_breaks_nothing(tmp_path):
    arguments = [
        "--peers",
        "4",
        "--kills",
        str(KILLS),
        "--kill-every",
        "0.1-0.6",
        "--stop",
        "--cut",
        "--master",
        "--seed",
        "7",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "pccl.cli", "stress", *arguments, "--logs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nothing broke" in ran.stdout
    kills = int(re.search(r"seed 7: (\d+) kills", ran.stdout)[1])
    compared = int(re.search(r"results compared +(\d+)", ran.stdout)[1])
    cuts = sum(map(int, re.findall(r" (\d+)", re.search(r"\n  cuts( .*)", ran.stdout)[1])))
    assert kills >= KILLS
    assert cuts > KILLS // 3
    assert compared > 10 * KILLS
