"""Every program of bench/ can be started: what it imports is there, from wherever it is called, and the masters that it
starts admit its peers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
OURS = {"pccl", "tests", "bench", *(path.stem for path in BENCH.glob("*.py"))}
_START = """
import ast, pathlib, runpy, sys
sys.path[0] = sys.argv[2]  # As when it is the program.
try:
    runpy.run_path(sys.argv[1], run_name="imported")
    for node in ast.walk(ast.parse(pathlib.Path(sys.argv[1]).read_text())):  # Also what is imported later.
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            exec(compile(ast.Module([node], []), sys.argv[1], "exec"), {})
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


def master_commands(path):
    """The words of each command that starts a master."""
    for node in ast.walk(ast.parse(path.read_text())):
        words = node.elts if isinstance(node, ast.List) else node.args if isinstance(node, ast.Call) else []
        texts = [ast.literal_eval(each) if isinstance(each, ast.Constant) else ast.unparse(each) for each in words]
        if "master" in texts and "--listen" in texts:
            yield texts


STARTERS = [path for path in sorted(BENCH.rglob("*.py")) if list(master_commands(path))]


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: str(path.relative_to(BENCH)))
def test_a_master_that_may_listen_beyond_this_machine_needs_no_secret(path):
    """Off loopback a master makes one, and peers without a token are refused: nothing would be measured."""
    if "join at: " in path.read_text():
        return  # It hands on the address that the master prints, with its token.
    for texts in master_commands(path):
        assert texts[texts.index("--listen") + 1].startswith("127.0.0.1:") or "--insecure" in texts


def test_the_benches_that_start_masters_are_found():
    assert {"public_sync.py", "training_hiding.py", "fleet.py"} <= {path.name for path in STARTERS}
