"""`pccl master`: a master that prints what it does. Owns what is printed and how signals end it."""

import contextlib
import logging
import queue
import signal
import sys

from pccl import MasterNode, UsageError

LOOK_S = 0.5
"""How soon a master that ended by itself is noticed."""


def serve(listen: str) -> int:
    """Serve until SIGINT or SIGTERM; the exit status."""
    _print_notes()
    # Its `put` may interrupt its `get` in any place: a handler runs in the middle of what the main thread does.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        master = MasterNode(listen)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: signals.put(number))
        master.run()
    except UsageError as error:
        print(f"pccl master: {error}", file=sys.stderr)
        return 2
    host = listen.rpartition(":")[0] or "all addresses"
    print(f"the master listens on {host}:{master.port} and waits for peers; Ctrl-C ends it", flush=True)
    while master.serving:
        with contextlib.suppress(queue.Empty):
            signals.get(timeout=LOOK_S)
            master.interrupt()
            print("the master has ended", flush=True)
            return 0
    print("the master ended because of an internal error", file=sys.stderr)
    return 1


def _print_notes() -> None:
    """The master's notes are its output, not its diagnostics."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("pccl")
    logger.addHandler(handler)
    logger.propagate = False
