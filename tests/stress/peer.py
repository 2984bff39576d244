"""One peer of a stress drill, in a process of its own: joins on order, then steps until it must leave, or is killed.

Owns the script of a peer and the lines it sends to its parent. It reports what breaks, and ends. Must not know the
other peers, or which faults are to come.
"""

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from contextlib import closing
from typing import Any

from pccl import Communicator, Kicked, PCCLError
from pccl.net.watching import Watcher, watchers
from tests.stress.caller import Caller
from tests.stress.calls import agree, do_step
from tests.stress.doom import Doom, Point
from tests.stress.parity import Parity
from tests.stress.values import Wrong

CONNECT_ATTEMPTS = 30
"""One takes about a second while no master is there."""

_telling = threading.Lock()


def tell(event: str, **facts: object) -> None:
    """One line for the parent, whole, whichever thread says it."""
    with _telling:
        os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


class Ports(Watcher):
    """Others dial this peer through a door, which must lead to its port by then: the parent learns it as soon as the
    kernel has chosen one."""

    def listening(self, port: int) -> None:
        """See `Watcher`."""
        tell("listening", port=port)


class StressPeer:
    """The script."""

    def __init__(self, address: str, seed: int, announce: str = "") -> None:
        self._address = address
        self._seed = seed
        self._announce = announce
        if announce:
            watchers.append(Ports())
        self._doom = Doom()
        self._doom.attach()
        self._parity = Parity()
        self._joined: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._leaving = threading.Event()
        threading.Thread(target=self._obey, daemon=True).start()

    def _obey(self) -> None:
        """Orders of the parent. When it is gone there is nothing left to do."""
        for line in sys.stdin:
            order = json.loads(line)
            match order.pop("do"):
                case "join":
                    self._joined.put(order["founder"])
                case "die":
                    self._doom.arm(Point(order["point"]), moved_bytes=order["moved_bytes"], spared=order["spared"])
                case "leave":
                    self._leaving.set()
                    self._joined.put(0)  # If it still waits for its turn, its turn has come.
        os._exit(1)

    def live(self) -> None:
        """All of it."""
        while not self._leaving.is_set():
            founder = self._joined.get()
            try:
                if not self._leaving.is_set():
                    self._take_part(founder)
            except Kicked as error:
                # Stopped for too long; whether it was is for the parent to know. As the error says: join again.
                tell("kicked", reason=str(error))

    def _take_part(self, founder: int) -> None:
        tell("at", phase="connect")
        # Not connected by `with`: a master may be away for longer than five attempts take.
        communicator = Communicator(self._address, announce=self._announce)
        communicator.connect(CONNECT_ATTEMPTS)
        with closing(communicator):
            tell("accepted", peer=communicator.peer_id)
            self._train(communicator, founder)
            tell("at", phase="close")
        tell("left")

    def _train(self, communicator: Communicator, founder: int) -> None:
        step, last_ended = 0, time.monotonic()
        fresh = True  # A newcomer begins behind the others' `update_topology`.
        while not self._leaving.is_set():
            if not fresh:
                tell("at", phase="are_peers_pending")
                if communicator.are_peers_pending():
                    tell("at", phase="update_topology")
                    communicator.update_topology()
            fresh = False
            tell("at", phase="agree")
            step = agree(communicator, step, founder, tell)
            it = Caller(communicator, self._seed, step, tell)
            tell("at", phase="sync", step=step)
            self._parity.sync(it)
            do_step(it)
            self._parity.learn()
            now = time.monotonic()
            tell("step", step=step, size=len(communicator.ring), seconds=now - last_ended)
            step, last_ended = step + 1, now


def main() -> int:
    faulthandler.register(signal.SIGUSR1)  # The parent asks for all stacks when a peer hangs.
    facts: dict[str, Any] = json.loads(sys.argv[1])
    peer = StressPeer(**facts)
    tell("ready")
    try:
        peer.live()
    except (PCCLError, Wrong) as error:
        traceback.print_exc()
        tell("broke", what=f"{type(error).__name__}: {error}")
        return 1
    except Exception as error:
        traceback.print_exc()
        tell("broke", what=f"internal error: {error!r}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
