"""A short run of `pccl stress`, so that the tool works and what it checks holds, at least for half a minute."""

import re
import socket
import subprocess
import sys
import time

import pytest

from tests.e2e.harness import ROOT

KILLS = 15


def start(*arguments):
    command = [sys.executable, "-m", "pccl.cli", "stress", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT)


@pytest.mark.timeout(120)
def test_a_run_that_is_interrupted_is_no_success(tmp_path):
    with start("--peers", "3", "--minutes", "5", "--cut", "--master", "--logs", str(tmp_path)) as run:
        await_fault(run)
        run.terminate()
        told = run.stdout.read()
        assert run.wait(30.0) == 130, told
    assert "INTERRUPTED" in told
    assert "nothing broke," not in told


@pytest.mark.timeout(120)
def test_nothing_stays_behind_when_the_parent_is_killed(tmp_path):
    with start("--peers", "3", "--minutes", "5", "--cut", "--logs", str(tmp_path)) as run:
        await_fault(run)
        words = (tmp_path / "master.log").read_text().split()
        host, port = next(word for word in words if word.startswith("127.")).split(":")
        run.kill()
        run.wait(30.0)
    deadline = time.monotonic() + 30.0
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) != 0:
                return
    pytest.fail("the master of a run whose parent is dead still listens")


def await_fault(run):
    while "under faults" not in (line := run.stdout.readline()):
        assert line, "it ended"


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
