"""Every program of bench/ can be started: what it imports is there, from wherever it is called."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
OURS = {"pccl", "tests", "bench", *(path.stem for path in BENCH.glob("*.py"))}
_START = """
import runpy, sys
sys.path[0] = sys.argv[2]  # As when it is the program.
try:
    runpy.run_path(sys.argv[1], run_name="imported")
except ModuleNotFoundError as error:
    sys.exit(f"lacks {error.name}")
"""


@pytest.mark.parametrize("path", sorted(BENCH.glob("*.py")), ids=lambda path: path.stem)
def test_a_bench_finds_all_that_it_imports(path, tmp_path):
    started = subprocess.run(
        [sys.executable, "-c", _START, path, BENCH], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    lacks = started.stderr.strip().partition("lacks ")[2]
    if lacks and lacks.partition(".")[0] not in OURS:
        pytest.skip(f"{lacks} is not installed")
    assert started.returncode == 0, started.stderr
