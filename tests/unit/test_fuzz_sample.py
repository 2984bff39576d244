"""A sample of `make fuzz`, so that a target that has stopped to work is noticed."""

import subprocess
import sys

from tests.patience import HANG_S


def test_some_cases_of_each_target():
    command = [sys.executable, "-m", "tests.fuzz", "--cases", "6000"]
    played = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert played.returncode == 0, played.stderr
    assert "6,000 cases" in played.stdout
