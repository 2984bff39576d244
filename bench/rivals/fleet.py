"""The processes of one rival, started once and kept: told what to run, asked what it took.

Control goes over a socket in a directory of its own, which reaches into network namespaces and through `mpirun` alike.
A process that waits for its next command waits in the kernel, so rivals do not disturb each other.
"""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rivals.rival import Facts

BENCH = Path(__file__).resolve().parent.parent

START_TIMEOUT_S = 120.0
"""Importing torch four times on a busy machine takes tens of seconds."""

REPLY_TIMEOUT_S = 600.0
"""A rival that says nothing for this long hangs."""

GOODBYE_S = 10.0


class RivalFailed(Exception):
    """A process ended or hung; the sentence says which."""


@dataclass(frozen=True)
class Place:
    """Where a process runs: what goes before its command, and the address and interface it has there."""

    before: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    interface: str = "lo"


@dataclass
class Measured:
    """One rival at one size: what each repetition took each process, and the CPU time of all."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    repetitions: int = 0

    def add(self, other: "Measured") -> None:
        self.seconds += other.seconds
        self.cpu_s += other.cpu_s
        self.repetitions += other.repetitions


class Fleet:
    """All processes of one rival."""

    def __init__(self, name: str, controls: list[TextIO], master: int | None) -> None:
        self.name = name
        self.facts: Facts = {}
        self._controls = controls
        self._master = master

    def connect(self, offers: list[Facts]) -> None:
        self.facts = self._all_do(offers)[0]

    def look(self) -> None:
        """At the connections again: a library may have made others since."""
        self.facts |= self._all_do({"look": True})[0]

    def prepare(self, nbytes: int) -> float:
        """Memory for a size, and a first all-reduce: what that took."""
        replies = self._all_do({"prepare": nbytes})
        if not all(reply["right"] for reply in replies):
            raise RivalFailed(f"{self.name}: a wrong sum at {nbytes} bytes")
        return max(float(reply["first_s"]) for reply in replies)

    def run(self, repetitions: int, *, hot: bool = False, together: bool = True) -> Measured:
        """`together` spends one more all-reduce, not measured, on starting at the same instant."""
        before = self._master_cpu_s()
        replies = self._all_do({"run": repetitions, "hot": hot, "together": together})
        cpu_s = sum(reply["cpu_s"] for reply in replies) + self._master_cpu_s() - before
        return Measured([second for reply in replies for second in reply["seconds"]], cpu_s, repetitions)

    def _all_do(self, command: Any) -> list[Facts]:
        for control in self._controls:
            control.write(json.dumps(command) + "\n")
            control.flush()
        return [_reply(self.name, control) for control in self._controls]

    def _master_cpu_s(self) -> float:
        if self._master is None:
            return 0.0
        tasks = Path(f"/proc/{self._master}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


Start = Callable[[contextlib.ExitStack, str, Facts], int | None]
"""Starts the processes, given the control socket and the settings that all share; says the master's process id."""


def each(library: str, places: list[Place]) -> Start:
    """One process per place."""

    def start(stack: contextlib.ExitStack, control: str, settings: Facts) -> None:
        for rank, place in enumerate(places):
            own = {**settings, "rank": rank, "listen": place.address, "interface": place.interface}
            _launch(stack, [*place.before, *_command(library, control, own)])

    return start


def with_master(places: list[Place]) -> Start:
    """Peers of ours, and their master at the first place."""

    def start(stack: contextlib.ExitStack, control: str, settings: Facts) -> int:
        command = [sys.executable, "-m", "pccl.cli", "master", "--listen", f"{places[0].address}:0"]
        command += ["--insecure"] if settings.get("insecure") else []
        master = _launch(stack, [*places[0].before, *command], stdout=subprocess.PIPE)
        assert master.stdout is not None, "a pipe was asked for"
        said = next((line for line in master.stdout if b"join at" in line), b"")
        found = re.search(r"join at: (?:pccl://)?([^\s,]+)", said.decode())
        if found is None:
            raise RivalFailed("ours: the master did not start")
        # Read on, or a full pipe would hold the master up.
        threading.Thread(target=master.stdout.read, daemon=True).start()
        each("ours", places)(stack, control, {**settings, "master": found[1]})
        return master.pid

    return start


def under_mpirun(size: int, transport: str) -> Start:
    """Ranks of Open MPI that speak over one transport only."""

    def start(stack: contextlib.ExitStack, control: str, settings: Facts) -> None:
        options = ["-np", str(size), "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1"]
        options += ["--mca", "btl", f"{transport},self", "--mca", "btl_tcp_if_include", "lo"]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        _launch(stack, ["mpirun", *root, *options, *_command("mpi", control, settings)])

    return start


@contextlib.contextmanager
def fleet(name: str, size: int, settings: Facts, start: Start, reply_s: float = REPLY_TIMEOUT_S) -> Iterator[Fleet]:
    """The processes of a rival, connected with each other; ended with the block. One that is told something and does
    not answer within `reply_s` has failed."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.settimeout(START_TIMEOUT_S)
        listener.bind(f"{directory}/control")
        listener.listen(size)
        master = start(stack, f"{directory}/control", {**settings, "size": size, "directory": directory})
        controls: dict[int, TextIO] = {}
        offers: dict[int, Facts] = {}
        for _ in range(size):
            try:
                sock = stack.enter_context(listener.accept()[0])
            except TimeoutError:
                raise RivalFailed(f"{name}: only {len(controls)} of {size} processes started") from None
            sock.settimeout(reply_s)
            control = stack.enter_context(sock.makefile("rw"))
            hello = _reply(name, control)
            controls[hello["rank"]], offers[hello["rank"]] = control, hello["offer"]
        started = Fleet(name, [controls[rank] for rank in range(size)], master)
        started.connect([offers[rank] for rank in range(size)])
        yield started


def _reply(name: str, control: TextIO) -> Facts:
    try:
        line = control.readline()
    except OSError as error:
        raise RivalFailed(f"{name}: a process does not answer ({error})") from error
    if not line:
        raise RivalFailed(f"{name}: a process ended")
    reply: Facts = json.loads(line)
    return reply


def _command(library: str, control: str, settings: Facts) -> list[str]:
    return [sys.executable, "-m", "rivals.process", library, control, json.dumps(settings)]


def _launch(stack: contextlib.ExitStack, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, cwd=BENCH, **options)
    stack.callback(_end, process)
    return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Its control socket is closed already, so it ends by itself; a master is told."""
    if process.stdout is not None:
        process.terminate()
    try:
        process.wait(GOODBYE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
