"""The processes of a stress drill: a master, peers in the run, and spares that have started and wait for their turn.

Owns starting, reading and ending them, and their logs. Must not know what they should report, or why one is killed.
"""

import json
import select
import selectors
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stress.child import START_S, Child
from tests.stress.network import Network
from tests.stress.options import Options

CONTROL = "control of "
"""How doors to the master are named, one for each peer."""

SILENT = ("black hole", "half-open")
"""Cuts of which one end or both learn nothing until the limits on silence tell them. From all others a peer comes back
to its place."""

JOIN_ADDRESS = "peers join at:"
"""What a master prints for its user, the token with it: it is no log."""

STACKS_S = 5.0
"""Time for all processes to write the stacks of their threads; on a busy machine the slowest may miss it."""

LOOK_S = 0.02
"""Between two looks at the logs for those stacks."""

STACK = "most recent call first"
"""What `faulthandler` writes for each thread."""


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
    excused_until: float = 0.0
    """Until then it may be kicked."""

    @property
    def name(self) -> str:
        return f"{self.child.name} ({self.peer[:8]})" if self.peer else self.child.name

    @property
    def strong(self) -> bool:
        """In the run, and about to stay there."""
        return self.stage == "in" and not self.doomed and not self.stopped and not self.kick_due


class Fleet:
    """All processes. Use it as a context manager: none survives it."""

    def __init__(self, logs: Path, options: Options) -> None:
        self.logs = logs
        self._options = options
        self._network: Network | None = None
        self._selector = selectors.DefaultSelector()
        self._count = 0
        self.peers: list[PeerChild] = []
        """All that live, or have died without our having noticed."""
        self.address = ""
        self.masters = 0
        """That were started."""
        self.master_is_up = False
        """It has printed its first line, and was not killed since."""
        self.master_is_due = False
        """It was killed, and the next one is not started yet."""
        self.cuts: Counter[str] = Counter()
        """Connections that were struck, by kind."""

    def __enter__(self) -> "Fleet":
        with ExitStack() as undo:
            self.start_master("127.0.0.1:0")
            undo.callback(self.__exit__)
            self._await_address()
            if self._options.cut:
                self._network = Network(self.logs)
                self._selector.register(self._network.child.stdout, selectors.EVENT_READ, self._hear_network)
            undo.pop_all()
        return self

    def _await_address(self) -> None:
        while not self.address:
            arrived = select.select([self.master.stdout], [], [], START_S)[0]
            lines = self.master.lines() if arrived else None
            if lines is None:
                raise TimeoutError(f"the master did not start; see {self.master.log}")
            self._note(lines)
            self.address = next((word for line in lines for word in line.split() if word[:4] == "127."), "")
        self.master_is_up = True

    def __exit__(self, *_: object) -> None:
        for peer in self.peers:
            peer.child.end()
        self.master.process.kill()
        if not self.master.stdout.closed:  # Else it was killed before, and the next one is yet to be started.
            self._note_last_words()
        if self._network is not None:
            self._network.child.end()
        self._selector.close()

    def start_master(self, listen: str = "") -> None:
        """The first one, or another one in the place of one that was killed."""
        self.masters += 1
        name = "master" if self.masters == 1 else f"master {self.masters}"
        self.master_is_due = False
        arguments = ["tests.stress.master", "--listen", listen or self.address]
        self.master = Child(name, self.logs, arguments, self._options.master_settings)
        self._selector.register(self.master.stdout, selectors.EVENT_READ, self._hear_master)

    def kill_master(self) -> None:
        """At once; the next one must be started."""
        self._selector.unregister(self.master.stdout)
        self.master_is_up, self.master_is_due = False, True
        self.master.process.kill()
        self._note_last_words()

    def _note_last_words(self) -> None:
        """Of a master that was killed; then it is gone."""
        self.master.process.wait()
        while lines := self.master.lines():
            self._note(lines)
        self.master.end()

    def start_peer(self) -> PeerChild:
        """One more process; it says `ready` when it can join."""
        self._count += 1
        name = f"peer {self._count}"
        facts: dict[str, Any] = {"address": self.address, "seed": self._options.seed}
        if self._network is not None:
            facts["announce"] = f"127.0.0.1:{self._network.open(name)}"
            if self._options.master:
                door = f"{CONTROL}{name}"
                facts["address"] = f"127.0.0.1:{self._network.open(door)}"
                self._network.lead(door, int(self.address.rpartition(":")[2]))
        arguments = ["tests.stress.peer", json.dumps(facts)]
        child = Child(name, self.logs, arguments, self._options.peer_settings)
        peer = PeerChild(child, self._count, time.monotonic())
        self.peers.append(peer)
        self._selector.register(child.stdout, selectors.EVENT_READ, peer)
        return peer

    def hear(self, timeout_s: float) -> Iterator[tuple[PeerChild, dict[str, Any] | None]]:
        """What peers have said, for at most this long; None is the end of one."""
        for key, _ in self._selector.select(timeout_s):
            if not isinstance(key.data, PeerChild):
                key.data()
                continue
            peer = key.data
            lines = peer.child.lines()
            if lines is None:
                self._selector.unregister(peer.child.stdout)
                yield peer, None
            for line in lines or []:
                said = json.loads(line)
                if said["event"] == "listening" and self._network is not None:
                    self._network.lead(peer.child.name, said["port"])
                else:
                    yield peer, said

    def _hear_master(self) -> None:
        lines = self.master.lines()
        if lines is None:
            self._selector.unregister(self.master.stdout)
        self.master_is_up = self.master_is_up or bool(lines)
        self._note(lines or [])

    def _note(self, lines: list[str]) -> None:
        with self.master.log.open("a") as log:
            log.writelines(f"{line}\n" for line in lines if not line.startswith(JOIN_ADDRESS))

    def _hear_network(self) -> None:
        if self._network is None:
            return
        for said in self._network.heard():
            control = said["door"].startswith(CONTROL)
            self.cuts[f"control {said['kind']}" if control else said["kind"]] += 1
            if control and said["kind"] in SILENT:
                for peer in self.peers:
                    if said["door"] == f"{CONTROL}{peer.child.name}":
                        peer.excused_until = time.monotonic() + self._options.wait_s

    def excuses(self, peer: PeerChild) -> bool:
        """This peer may be kicked: nothing has passed between it and the master lately, perhaps for too long."""
        self._hear_network()
        return time.monotonic() < peer.excused_until

    def cut(self, **how: object) -> None:
        """Strike a connection."""
        assert self._network is not None, "only a run with cuts has a network of its own"
        self._network.cut(**how)

    def bury(self, peer: PeerChild) -> int:
        """It has ended: its exit status, negative for a signal."""
        peer.child.end()
        if self._network is not None:
            self._network.shut(peer.child.name)
            if self._options.master:
                self._network.shut(f"{CONTROL}{peer.child.name}")
        self.peers.remove(peer)
        return peer.child.process.returncode

    def write_stacks(self) -> None:
        """Have all peers write into their logs what their threads are doing, and wait until they have."""
        asked = [peer.child for peer in self.peers if peer.stage != "starting" and peer.child.process.poll() is None]
        for child in asked:
            child.signal(signal.SIGCONT)
            child.signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACKS_S
        while time.monotonic() < deadline and not all(_has_stacks(child) for child in asked):
            select.select([], [], [], LOOK_S)


def _has_stacks(child: Child) -> bool:
    return child.process.poll() is not None or STACK in child.log.read_text(errors="replace")
