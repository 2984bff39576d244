"""Programs in C for the tests: compiled with what `pccl config` prints, run as processes that obey lines."""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.harness import STDERR, Process

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
WARNINGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
COMPILERS = ("gcc", "clang")


def config(*flags):
    """What `pccl config` prints, as arguments."""
    command = [sys.executable, "-m", "pccl", "config", *flags]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def shared_python():
    """The library of this Python, or None: then no program in C can use it, and `pcclInit` says so."""
    name, folder = f"libpython{sysconfig.get_python_version()}.so.1.0", Path(sysconfig.get_config_var("LIBDIR"))
    places = [folder / name, folder / (sysconfig.get_config_var("MULTIARCH") or "") / name]
    return next((place for place in places if place.exists()), None)


def compile_program(compiler, source, program, *flags):
    """Compile one file. gcc must be there: the package itself was built with a compiler."""
    if shutil.which(compiler) is None and compiler != "gcc":
        pytest.skip(f"there is no {compiler} on this machine")
    if shared_python() is None:
        pytest.skip("this Python has no shared library: install libpython, or use another Python")
    needed = [*config("--cflags"), str(source), *config("--libs"), "-lpthread"]
    subprocess.run([compiler, *WARNINGS, "-g", "-O1", *flags, *needed, "-o", str(program)], check=True)
    return program


def environment(**settings):
    """Ours without settings for peers and masters, and without hints for Python: a program in C has none."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PCCL_", "PYTHON"))}
    return kept | settings


class Answer(NamedTuple):
    """One line of a program: `order result name=value … text=sentence`."""

    order: str
    result: int
    facts: dict[str, str]
    text: str
    words: list[str]


def parse(line):
    line, _, text = line.partition("text=")
    order, result, *words = line.split()
    return Answer(order, int(result), dict(word.split("=") for word in words if "=" in word), text, words)


class CProcess(Process):
    """A program of ours in C."""

    def __init__(self, program, *before, env=None):
        self._program = [*before, str(program)]
        self._env = environment() if env is None else env
        super().__init__()
        assert self.answer("ready").result == 0

    def _start(self, arguments, environment):
        pipe = subprocess.PIPE
        return subprocess.Popen(self._program, env=self._env, stdin=pipe, stdout=pipe, stderr=STDERR, text=True)

    def order(self, *words):
        """Have something done, without waiting for its answer."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()

    def answer(self, order):
        """The next answer, which must be to this order."""
        answer = parse(self.line())
        assert answer.order == order, answer
        return answer

    def do(self, *words):
        """Have something done and wait for its answer, whatever it is."""
        self.order(*words)
        return self.answer(words[0])

    def succeed(self, *words):
        """The same; its facts. It must have been a success."""
        answer = self.do(*words)
        assert answer.result == 0, answer
        return answer.facts

    def become_peer(self, port, six=0, group=0):
        self.succeed("init")
        self.succeed("create", port, six, group)
        return self
