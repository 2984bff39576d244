"""Real processes for the tests: a master, peers, and the lines they print. Every wait has a deadline."""

import functools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from pccl.net import sockets
from tests.e2e.nursery import Nursery
from tests.patience import HANG_S

ROOT = Path(__file__).parents[2]
PATIENCE_S = HANG_S
"""Above every bound that is tested, and below the timeout of a test."""
STDERR = os.open(os.devnull, os.O_WRONLY) if os.environ.get("QUIET_PEERS") else 2


class Ended(Exception):
    """A process ended while more was expected of it."""


def _environment():
    """Ours, without settings for peers and masters."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return environment


@functools.cache
def nursery(*imports):
    """Whose children have imported these modules too."""
    return Nursery(ROOT, _environment(), imports)


class Process:
    """A process whose lines of output arrive in a queue."""

    def __init__(self, *arguments, settings=None):
        self.process = self._start(arguments, _environment() | (settings or {}))
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self, arguments, environment):
        return subprocess.Popen(
            [sys.executable, "-u", *arguments],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=STDERR,
            text=True,
        )

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def line(self, timeout_s=PATIENCE_S):
        """The next line; raises `queue.Empty` when none comes in time."""
        line = self._lines.get(timeout=timeout_s)
        if line is None:
            self._lines.put(None)
            raise Ended(f"exit status {self.process.wait()}")
        return line

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        """SIGSTOP, and wait until it has stopped."""
        self.process.send_signal(signal.SIGSTOP)
        self.await_stop()

    def await_stop(self):
        """Wait until not one of its threads runs any more."""
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume_after(self, seconds):
        """Stay stopped for this long, then go on. Nothing happens meanwhile that could be waited for: what is tested
        is that time passes which this process does not see."""
        threading.Event().wait(seconds)
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self._reader.join(1.0)
        if not self._reader.is_alive():  # Alive when a forked child still has the pipe.
            self.process.stdout.close()


class ForkedProcess(Process):
    """The `main` of a module, as if by `python -m`, from the nursery; where there is none, by `python -m`."""

    def __init__(self, module, *arguments, settings, imports=()):
        self._imports = imports
        super().__init__("-m", module, *arguments, settings=settings)

    def _start(self, arguments, environment):
        if sys.platform != "linux":
            return super()._start(arguments, environment)
        _, module, *rest = arguments
        return nursery(*self._imports).start(module, *rest, environment=environment, stderr=STDERR)


class MasterProcess(ForkedProcess):
    def __init__(self, listen="127.0.0.1:0", **settings):
        settings = {f"PCCL_{name.upper()}": str(value) for name, value in settings.items()}
        insecure = [] if sockets.is_loopback(listen.rpartition(":")[0].strip("[]")) else ["--insecure"]
        super().__init__("pccl.cli", "master", "--listen", listen, *insecure, settings=settings)
        self.said = []
        first = self.line()
        if insecure:
            assert "NOT SECURED" in first
            first = self.line()
        address = first.split(" and waits")[0].split()[-1]
        self.port = int(address.rpartition(":")[2])
        host = listen.rpartition(":")[0]
        self.address = f"{host if host not in ('0.0.0.0', '', '[::]') else '127.0.0.1'}:{self.port}"

    def expect_said(self, *words, timeout_s=PATIENCE_S):
        """Wait until the master has printed a line with all these words."""
        deadline = time.monotonic() + timeout_s
        while True:
            line = self.line(max(0.0, deadline - time.monotonic()))
            self.said.append(line)
            if all(word in line for word in words):
                return line


class PeerProcess(ForkedProcess):
    def __init__(self, address, settings=None, imports=(), **arguments):
        self.peer = ""
        arguments = json.dumps({"address": address, **arguments})
        super().__init__("tests.e2e.peer_script", arguments, settings=settings, imports=imports)

    def order(self, name, **arguments):
        """Have a call made, without waiting for its answer."""
        self.process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
        self.process.stdin.flush()

    def expect(self, event, timeout_s=PATIENCE_S, **facts):
        """Wait for this event with these facts. A failure of a call is an error unless it is what is expected."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                said = json.loads(self.line(max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"{self.peer[:8]}: no {event} {facts} within {timeout_s} s") from None
            if said["event"] == "failed" and event != "failed":
                raise AssertionError(f"{self.peer[:8]}: {said}")
            self.peer = said.get("peer", self.peer)
            if said["event"] == event and all(said.get(name) == value for name, value in facts.items()):
                return said

    def expect_any(self, events, timeout_s=PATIENCE_S):
        """Wait for the first of these events."""
        deadline = time.monotonic() + timeout_s
        while True:
            said = json.loads(self.line(max(0.0, deadline - time.monotonic())))
            if said["event"] in events:
                return said

    def do(self, name, timeout_s=PATIENCE_S, **arguments):
        """Have a call made and wait for its answer."""
        self.order(name, **arguments)
        return self.expect(name, timeout_s)

    def says_nothing(self):
        """True when no line waits to be read."""
        return self._lines.empty()


def all_do(peers, name, **arguments):
    """Have the same call made by all of them at once; their answers."""
    for peer in peers:
        peer.order(name, **arguments)
    return [peer.expect(name) for peer in peers]


def join(peers, newcomers):
    """Let `newcomers` connect, and `peers` admit them, one after the other. Starts with nobody, too."""
    inside = list(peers)
    for newcomer in newcomers:
        newcomer.order("connect")
        if inside:
            all_do(inside, "await_pending")
            all_do(inside, "update")
        newcomer.expect("connect")
        inside.append(newcomer)
    return inside


def behind_the_name(known):
    """A `sockets.look_up` for which the name master.test stands for these addresses."""
    look_up = sockets.look_up

    def found(host, port, flags):
        if host != "master.test":
            return look_up(host, port, flags)
        if flags:
            raise OSError("a name, not an address")
        return [(socket.AF_INET, address) for address in known]

    return found
