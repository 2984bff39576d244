"""A short drill, so that the tool works and what it checks holds, at least for half a minute."""

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import HANG_S

ROOT = Path(__file__).parents[2]

KILLS = 15


def start(*arguments):
    command = [sys.executable, "-m", "tests.stress", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT)


def test_a_drill_that_is_interrupted_is_no_success(tmp_path):
    with start("--peers", "3", "--minutes", "5", "--cut", "--master", "--logs", str(tmp_path)) as drill:
        await_fault(drill)
        drill.terminate()
        told = drill.stdout.read()
        assert drill.wait(HANG_S) == 130, told
    assert "INTERRUPTED" in told
    assert "nothing broke," not in told


def test_nothing_stays_behind_when_the_parent_is_killed(tmp_path):
    with start("--peers", "3", "--minutes", "5", "--cut", "--logs", str(tmp_path)) as drill:
        await_fault(drill)
        words = (tmp_path / "master.log").read_text().split()
        host, port = next(word for word in words if word.startswith("127.")).split(":")
        drill.kill()
        drill.wait(HANG_S)
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) != 0:
                return
    pytest.fail("the master of a drill whose parent is dead still listens")


def await_fault(drill):
    while "under faults" not in (line := drill.stdout.readline()):
        assert line, "it ended"


@pytest.mark.parametrize("secret", [[], ["--secret"]], ids=["open", "secret"])
def test_a_short_drill_breaks_nothing(tmp_path, secret):
    arguments = [
        *secret,
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
        [sys.executable, "-m", "tests.stress", *arguments, "--logs", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * HANG_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "nothing broke" in ran.stdout
    kills = int(re.search(r"seed 7: (\d+) kills", ran.stdout)[1])
    compared = int(re.search(r"results compared +(\d+)", ran.stdout)[1])
    cuts = sum(map(int, re.findall(r" (\d+)", re.search(r"\n  cuts( .*)", ran.stdout)[1])))
    assert kills >= KILLS
    assert cuts
    assert compared > KILLS  # How many a second is a matter of the machine.
    assert (tmp_path / "drill.audit").exists() == bool(secret), "who came with which token is written down"
