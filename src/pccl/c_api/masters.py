"""Masters of programs in C: from their handles to `MasterNode`, and how they are stopped.

Owns the pipe to which `pcclInterruptMaster` writes handles, from signal handlers too, and the thread that reads it.
Must not know how calls come in.
"""

import logging
import os
import sys
import threading

from pccl import MasterNode, PCCLError, UsageError
from pccl.c_api.handles import Handles

LOOK_S = 0.5
"""How soon a master that ended by itself is noticed."""

HANDLE_BYTES = 8


class CMaster:
    """One master, from its creation to its destruction. All methods may be called by any thread."""

    def __init__(self, listen: str) -> None:
        self._master = MasterNode(listen)
        self._lock = threading.Lock()
        self._ran = self._interrupted = False
        self._over = threading.Event()

    def run(self) -> None:
        """Serve. One that was interrupted before is over at once."""
        with self._lock:
            self._master.run()
            self._ran = True
            if self._interrupted:
                self._stop()

    def interrupt(self) -> None:
        """Stop serving, now or as soon as it begins."""
        with self._lock:
            self._interrupted = True
            if self._ran:
                self._stop()

    def _stop(self) -> None:
        try:
            self._master.interrupt()
        finally:
            self._over.set()

    def await_termination(self) -> None:
        """Wait until it was interrupted and has stopped."""
        if not self._ran:
            raise UsageError("pcclMasterAwaitTermination: call pcclRunMaster first")
        while not self._over.wait(LOOK_S):
            if not self._master.serving and not self._over.wait(LOOK_S):
                raise PCCLError("the master ended because of an internal error; see what it has logged")


MASTERS: Handles[CMaster] = Handles("master_instance", "pcclCreateMaster")


def interrupts() -> int:
    """Where handles of masters are written to that shall stop."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)  # A handler must not wait. It never has to: a page is 512 handles.
    threading.Thread(target=_obey, args=(read_end,), name="pccl-interrupts", daemon=True).start()
    return write_end


def _obey(read_end: int) -> None:
    """Until the other end is closed, which a program never does: its library is never unloaded."""
    while handle := os.read(read_end, HANDLE_BYTES):
        master = MASTERS.look_up(int.from_bytes(handle, sys.byteorder))
        if master is None:
            continue  # It was destroyed meanwhile, and needs no stopping.
        try:
            master.interrupt()
        except Exception:  # Whatever befell this one, others must still be stopped.
            logging.getLogger("pccl.master").exception("a master could not be interrupted")
    os.close(read_end)
