"""`pccl master`: a master that says what it does. Owns what is printed and how signals end it."""

import logging
import signal
import sys
import threading
from types import FrameType

from pccl import MasterNode, UsageError

LOOK_S = 0.5
"""How soon a master that ended by itself is noticed."""


def serve(listen: str) -> int:
    """Serve until SIGINT or SIGTERM; the exit status."""
    _print_notes()
    stop = threading.Event()
    try:
        master = MasterNode(listen)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: _stop(stop, number, frame))
        master.run()
    except UsageError as error:
        print(f"pccl master: {error}", file=sys.stderr)
        return 2
    host = listen.rpartition(":")[0] or "all addresses"
    print(f"the master listens on {host}:{master.port} and waits for peers; Ctrl-C ends it", flush=True)
    while master.serving and not stop.wait(LOOK_S):
        pass
    if not stop.is_set():
        print("the master ended because of an internal error", file=sys.stderr)
        return 1
    master.interrupt()
    print("the master has ended", flush=True)
    return 0


def _stop(stop: threading.Event, number: int, frame: FrameType | None) -> None:
    stop.set()


def _print_notes() -> None:
    """The master's notes are its output, not its diagnostics."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("pccl")
    logger.addHandler(handler)
    logger.propagate = False
