"""The public API under two type checkers: good use is good to both, and each misuse is noticed by both.

basedpyright is pyright with its own Node.js in the wheel: pyright's package would fetch one from the network.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import HANG_S

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def read(*command):
    process = subprocess.run(
        [sys.executable, "-m", *command], cwd=HERE, capture_output=True, text=True, timeout=2 * HANG_S, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_mypy(tmp_path):
    settings = tmp_path / "mypy.ini"  # not the project's own, which names the files to read
    settings.write_text("[mypy]\nstrict = True\nmypy_path = " + os.fspath(ROOT / "src") + "\n")
    said = read("mypy", f"--config-file={settings}", f"--cache-dir={ROOT / '.mypy_cache'}", "good.py", "bad.py")
    assert "no issues found in 2 source files" in said


def test_pyright():
    said = read("basedpyright", "--project", "pyrightconfig.json", "--pythonpath", sys.executable)
    assert "0 errors, 0 warnings" in said
