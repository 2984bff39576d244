"""The programs of `examples/c`, with each compiler: a peer joins, one is killed, the rest agree on every step."""

import re
import signal
import subprocess

import pytest

from tests.c_api.building import COMPILERS, ROOT, compile_program, environment
from tests.c_api.test_functions import free_port
from tests.e2e.harness import PATIENCE_S, STDERR, Process

LINES_MAX = 60
STEP = re.compile(r"step (\d+): (\d+) peers, weight (\S+)")


class Program(Process):
    """One of the examples."""

    def _start(self, arguments, env):
        command = [str(each) for each in arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment(), stdin=pipe, stdout=pipe, stderr=STDERR, text=True)

    def await_step(self, peers):
        """Wait for a step with so many peers; all steps until then."""
        seen = {}
        while True:
            step, size, weight = STEP.fullmatch(self.line()).groups()
            seen[int(step)] = weight
            if int(size) == peers:
                return seen


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_run_of_the_examples(compiler, tmp_path, processes):
    master_program, peer_program = (
        compile_program(compiler, ROOT / "examples" / "c" / f"{name}.c", tmp_path / name) for name in ("master", "peer")
    )
    port = free_port()
    master = Program(master_program, port)
    processes.append(master)
    assert f"listens on port {port}" in master.line()
    peers = []
    for size in (1, 2, 3):
        peers.append(Program(peer_program, port, 400))
        processes.append(peers[-1])
        steps = [peer.await_step(size) for peer in peers]
        newest = max(steps[-1])
        assert {each[newest] for each in steps if newest in each} == {str(newest)}, "the mean of ones, step by step"
    peers[1].kill()
    for peer in (peers[0], peers[2]):
        peer.await_step(2)
    master.signal(signal.SIGTERM)
    assert master.line() == "the master has ended"
    assert master.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("name", ["master", "peer"])
def test_the_examples_are_short(name):
    text = (ROOT / "examples" / "c" / f"{name}.c").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES_MAX
