"""`pccl master`: a master that prints what it does. Owns what is printed and how signals end it."""

import contextlib
import queue
import signal
import sys

from pccl import MasterNode, UsageError
from pccl.logs import print_on

LOOK_S = 0.5
"""How soon a master that ended by itself is noticed."""


def serve(listen: str) -> int:
    """Serve until SIGINT or SIGTERM; the exit status."""
    # Its `put` may interrupt its `get` in any place: a handler runs in the middle of what the main thread does.
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        master = MasterNode(listen)
        print_on(sys.stdout)
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
