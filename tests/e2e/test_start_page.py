"""The script of `docs/start.md` does what the page says, as it stands there."""

import re
import subprocess
import sys

import pytest

from tests.e2e.harness import ROOT

PAGE = ROOT / "docs" / "start.md"
STEPS_SEEN = 2


@pytest.fixture
def start_script(tmp_path):
    """Starts processes with the script of the page, and ends them after the test."""
    (script,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "first.py"
    path.write_text(script, encoding="utf-8")
    started = []

    def start(address):
        process = subprocess.Popen([sys.executable, path, address], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def await_line(process, pattern):
    """The first line that matches; the test's timeout is the deadline."""
    for line in process.stdout:
        if re.search(pattern, line):
            return line
    return pytest.fail(f"the script ended without a line like {pattern!r}")


def test_two_peers_add_up_their_ones_and_one_goes_on_alone(master, start_script):
    first, second = start_script(master.address), start_script(master.address)
    await_line(first, r"peer [0-9a-f]{8}: rank \d of \d")
    for _ in range(STEPS_SEEN):
        for peer in (first, second):
            assert await_line(peer, "from").rstrip().endswith("2 from 2 peers")
    second.kill()
    await_line(first, "no other peer here")
    third = start_script(master.address)
    assert await_line(third, "from").rstrip().endswith("2 from 2 peers")
