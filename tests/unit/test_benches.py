"""Benches that no test runs, read as sources: what would keep them from running at all."""

import ast
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def master_commands(path):
    """The words of each command that starts a master."""
    for node in ast.walk(ast.parse(path.read_text())):
        words = node.elts if isinstance(node, ast.List) else node.args if isinstance(node, ast.Call) else []
        texts = [ast.literal_eval(each) if isinstance(each, ast.Constant) else ast.unparse(each) for each in words]
        if "master" in texts and "--listen" in texts:
            yield texts


FILES = [path for path in sorted(BENCH.rglob("*.py")) if list(master_commands(path))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(BENCH)))
def test_a_master_that_may_listen_beyond_this_machine_needs_no_secret(path):
    """Off loopback a master makes one, and peers without a token are refused: nothing would be measured."""
    for texts in master_commands(path):
        assert texts[texts.index("--listen") + 1].startswith("127.0.0.1:") or "--insecure" in texts


def test_the_benches_that_start_masters_are_found():
    assert {"public_sync.py", "training_hiding.py", "fleet.py"} <= {path.name for path in FILES}
