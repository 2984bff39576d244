"""The processes of a stress run: a master, peers in the run, and spares that have started and wait for their turn.

Owns starting, hearing and ending them, and their logs. Must not know what they should say, or why anybody is killed.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 60.0
"""A process that has not said its first word by then: a start takes a fraction of a second, ten times as long on a busy
machine."""

SETTLE_S = 1.0
"""Time for processes to write down the stacks of their threads."""


class Child:
    """A process, its lines, and the file with all that it logs."""

    def __init__(self, name: str, logs: Path, arguments: list[str], settings: dict[str, str]) -> None:
        self.name = name
        self.log = logs / f"{name.replace(' ', '-')}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")}
        # The sources that this tool runs from are those that its processes run, installed or not.
        paths = [str(Path(__file__).parents[3]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        environment.update(settings)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which then ends them all.
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self._rest = b""

    def lines(self) -> list[str] | None:
        """Those that have come; None at the end of its output."""
        try:
            data = os.read(self.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return None
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in whole]

    def order(self, name: str, **facts: object) -> None:
        """Tell it to do something; one that is dead does not hear it, which shows elsewhere."""
        with suppress(BrokenPipeError):
            self._stdin.write((json.dumps({"do": name, **facts}) + "\n").encode())
            self._stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Whatever happened, leave no process behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.stdout.close()
        with suppress(BrokenPipeError):  # an order that it did not live to read
            self._stdin.close()


@dataclass
class PeerChild:
    """One peer and what its parent knows of it."""

    child: Child
    number: int
    heard_at: float
    """When it last said anything, or was woken."""
    stage: str = "starting"
    """starting, spare, joining, in, leaving."""
    phase: str = "starting"
    step: int = 0
    peer: str = ""
    steps: int = 0
    """That it has done since it was accepted."""
    stopped: bool = False
    doomed: str = ""
    """How it shall die, once that is decided."""
    kick_due: bool = False
    """It was stopped for so long that the others must go on without it."""
    late_s: float = 0.0
    """How long it was stopped, and so may be late."""
    steps_back: int = 2
    """Steps it has ended since it was last stopped."""
    size: int = 0
    """Of its group after its latest step."""

    @property
    def name(self) -> str:
        return f"{self.child.name} ({self.peer[:8]})" if self.peer else self.child.name

    @property
    def strong(self) -> bool:
        """In the run, and about to stay there."""
        return self.stage == "in" and not self.doomed and not self.stopped and not self.kick_due


class Fleet:
    """All processes. Use it as a context manager: none survives it."""

    def __init__(self, logs: Path, seed: int, master_settings: dict[str, str]) -> None:
        self.logs = logs
        self._seed = seed
        self._master_settings = master_settings
        self._selector = selectors.DefaultSelector()
        self._count = 0
        self.peers: list[PeerChild] = []
        """All that live, or have died without our having noticed."""
        self.address = ""
        self._peer_settings = {"PCCL_LOG_LEVEL": "INFO"}

    def __enter__(self) -> "Fleet":
        arguments = ["pccl.cli", "master", "--listen", "127.0.0.1:0"]
        self.master = Child("master", self.logs, arguments, self._master_settings)
        self._said = self.master.log.open("a")
        deadline = time.monotonic() + START_S
        while not self.address:
            for line in self.master.lines() or []:
                self.address = self.address or next((word for word in line.split() if word[:4] == "127."), "")
            if time.monotonic() > deadline or self.master.process.poll() is not None:
                self.master.end()
                raise TimeoutError(f"the master did not start; see {self.master.log}")
            time.sleep(0.01)
        self._selector.register(self.master.stdout, selectors.EVENT_READ, None)
        return self

    def __exit__(self, *_: object) -> None:
        for peer in self.peers:
            peer.child.end()
        self.master.end()
        self._said.close()
        self._selector.close()

    def start_peer(self) -> PeerChild:
        """One more process; it says `ready` when it can join."""
        self._count += 1
        facts = json.dumps({"address": self.address, "seed": self._seed})
        child = Child(f"peer {self._count}", self.logs, ["pccl.cli.stress.peer", facts], self._peer_settings)
        peer = PeerChild(child, self._count, time.monotonic())
        self.peers.append(peer)
        self._selector.register(child.stdout, selectors.EVENT_READ, peer)
        return peer

    def hear(self, timeout_s: float) -> Iterator[tuple[PeerChild, dict[str, Any] | None]]:
        """What peers have said, for at most this long; None is the end of one."""
        for key, _ in self._selector.select(timeout_s):
            peer: PeerChild | None = key.data
            if peer is None:
                self._hear_master()
                continue
            lines = peer.child.lines()
            if lines is None:
                self._selector.unregister(peer.child.stdout)
                yield peer, None
            for line in lines or []:
                yield peer, json.loads(line)

    def _hear_master(self) -> None:
        lines = self.master.lines()
        if lines is None:
            self._selector.unregister(self.master.stdout)
        for line in lines or []:
            print(line, file=self._said, flush=True)

    def bury(self, peer: PeerChild) -> int:
        """It has ended: its exit status, negative for a signal."""
        peer.child.end()
        self.peers.remove(peer)
        return peer.child.process.returncode

    def write_stacks(self) -> None:
        """Have all peers write into their logs what their threads are doing."""
        for peer in self.peers:
            if peer.child.process.poll() is None and peer.stage != "starting":
                peer.child.signal(signal.SIGCONT)
                peer.child.signal(signal.SIGUSR1)
        time.sleep(SETTLE_S)
