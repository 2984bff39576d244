"""What `make` does, without doing it: each target brings what it needs, and one variable makes the tests fewer."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def would_run(*arguments):
    """All commands of a target, as on a machine where nothing was made before."""
    given = ("MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "SMALL", "PYTEST_ARGS", "ARGS")
    environment = {name: value for name, value in os.environ.items() if name not in given}
    command = ["make", "--dry-run", "--always-make", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("target", ["demo", "sim", "bench"])
def test_what_needs_the_package_alone_installs_nothing_else(target):
    commands = would_run(target)
    assert commands.count("pip install") == 1
    assert "--editable .\n" in commands


def test_tests_bring_their_tools():
    commands = would_run("test")
    assert "dev > .venv/extra-dev.txt" in commands
    assert "pip install --quiet --disable-pip-version-check --requirement .venv/extra-dev.txt" in commands
    assert "-m pytest -n auto --dist worksteal\n" in commands


def test_a_small_machine_runs_one_test_at_a_time():
    assert "-m pytest -n 1 --dist worksteal\n" in would_run("test", "SMALL=1")
