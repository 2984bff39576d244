"""SIGUSR1: every peer of this process writes its flight record to stderr, while it goes on.

Owns what the signal does. Must not know what a record holds.
"""

import os
import signal
import sys
import threading
from types import FrameType

from pccl.api.goodbye import living


def write_on_sigusr1() -> None:
    """From now on, unless the program has asked for something else on SIGUSR1: Slurm and others use it for their own
    ends. Only the main thread may set a handler."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, _asked)


def _asked(number: int, frame: FrameType | None) -> None:
    # The code below us may hold the lock of a record: it is read elsewhere.
    threading.Thread(target=_write, name="pccl-flights", daemon=True).start()


def _write() -> None:
    for each in living.copy():
        print(each.told_flights(), file=sys.stderr, flush=True)


def _begin_as_child() -> None:
    """A forked child has no part in the memberships of its parent, and dies of SIGUSR1 as it would."""
    if signal.getsignal(signal.SIGUSR1) is _asked:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


os.register_at_fork(after_in_child=_begin_as_child)
