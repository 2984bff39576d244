"""How a process with memberships ends: each says goodbye, at the interpreter's end and on SIGTERM, and none for long.

Owns who has not left yet, the exit hook, and what SIGTERM does. Must not know what a goodbye is.

On SIGTERM Python runs a handler once its main thread next runs Python, which may be in the middle of an hour in C. So
the signal also wakes a thread of ours, through Python's wakeup descriptor, and that thread ends the process: `GRACE_S`
after the signal at the latest, plus the time until it gets Python's lock.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import threading
import time
from types import FrameType
from typing import Protocol

from pccl.net.thread import LoopThread

EXIT_GOODBYE_S = 1.0
"""For all goodbyes together; a master that answers needs milliseconds, and the end of a process must not wait long for
one that does not."""

GRACE_S = 2 * EXIT_GOODBYE_S
"""For goodbyes, and as long again until control threads have ended that were told to give theirs up."""

_HANDLED = 0
"""No signal has this number: the handler was called, by Python or by the program's own."""


class Leaver(Protocol):
    """A membership, as seen from the end of its process."""

    def abandon(self, timeout_s: float) -> None:
        """Begin the goodbye and return at once; its control thread ends after this time or before. Takes no lock: a
        handler of a signal may have stopped the thread that holds it."""

    def told_flights(self) -> str:
        """Its flight record, in lines."""


living: set[Leaver] = set()
"""Memberships that have not begun to leave."""

_threads: set[LoopThread] = set()
"""Control threads, until the first that is begun after their end: their goodbyes may be under way."""


def expect(leaver: Leaver, thread: LoopThread) -> None:
    """From now on the process does not end before this one has said goodbye, within bounds."""
    for ended in [each for each in _threads.copy() if not each.alive]:
        _threads.discard(ended)
    _threads.add(thread)
    living.add(leaver)


@atexit.register
def leave_all() -> None:
    """Leave, so that the others read that this peer left, not that it broke. Waits for goodbyes that have begun
    earlier, too: a Communicator that only `main` held is collected when that returns. No control thread runs any more
    when the interpreter ends, or what it holds would never be freed, of which native code complains."""
    for leaver in living.copy():
        leaver.abandon(EXIT_GOODBYE_S)
    threads = _threads.copy()
    _join(threads)
    for thread in threads:
        thread.stop()
    _join(threads)


def _join(threads: set[LoopThread]) -> None:
    deadline = time.monotonic() + EXIT_GOODBYE_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


# ── SIGTERM ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Watch:
    """The thread that SIGTERM wakes."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)  # Python demands it of a descriptor to write to from a handler.
        threading.Thread(target=self._watch, name="pccl-sigterm", daemon=True).start()

    def attach(self) -> None:
        """Wake up on signals, unless the program uses the descriptor itself: then the handler is what wakes this."""
        previous = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        if previous not in (-1, self._write_end):
            signal.set_wakeup_fd(previous)

    def wake(self) -> None:
        """End the process."""
        with contextlib.suppress(BlockingIOError):  # Full of signals, so it wakes anyway.
            os.write(self._write_end, bytes([_HANDLED]))

    def close(self) -> None:
        """In a forked child, which has the descriptors but not the thread."""
        previous = signal.set_wakeup_fd(-1)
        if previous not in (-1, self._write_end):
            signal.set_wakeup_fd(previous)
        os.close(self._read_end)
        os.close(self._write_end)

    def _watch(self) -> None:
        while True:
            for number in os.read(self._read_end, 64):
                # A signal that the program handles itself by now is its own, unless its handler calls ours.
                if number == _HANDLED or (number == signal.SIGTERM and _ours()):
                    _end_with_goodbyes()


_watch: _Watch | None = None


def leave_on_sigterm() -> None:
    """From now on SIGTERM ends this process as before, but with a goodbye. Only if the program has not asked for
    anything else on SIGTERM, and only from the main thread: no other may set a handler."""
    global _watch
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _watch = _watch or _Watch()
        signal.signal(signal.SIGTERM, _terminated)
        _watch.attach()


def _ours() -> bool:
    return signal.getsignal(signal.SIGTERM) is _terminated


def _terminated(number: int, frame: FrameType | None) -> None:
    # The interrupted code below us may hold any lock, so goodbyes are said elsewhere. Nor does it go on: the process
    # ends during this wait.
    if _watch is not None:
        _watch.wake()
        threading.Event().wait(GRACE_S + EXIT_GOODBYE_S)
    _die()


def _end_with_goodbyes() -> None:
    try:
        leave_all()
    finally:
        _die()


def _die() -> None:
    """As SIGTERM ends a process that does not handle it: its supervisor sees the cause. Python lets its main thread
    alone restore what a signal does, which may be busy, so this asks the function below."""
    set_handler = ctypes.pythonapi.PyOS_setsig
    set_handler.argtypes, set_handler.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    set_handler(signal.SIGTERM, None)  # SIG_DFL is the null pointer.
    os.kill(os.getpid(), signal.SIGTERM)


# ── forked children ──────────────────────────────────────────────────────────────────────────────────────────────────

_forking = threading.local()


def _hold_sigterm() -> None:
    """Until the child has become one: before that, SIGTERM to the child would wake the parent's thread."""
    if _ours():
        _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_sigterm_go() -> None:
    mask = vars(_forking).pop("mask", None)
    if mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _begin_as_child() -> None:
    """In a forked child the memberships are the parent's: the child says no goodbye for it, and dies as it would."""
    global _watch
    living.clear()
    _threads.clear()
    if _ours():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _watch is not None:
        _watch.close()
        _watch = None
    _let_sigterm_go()


os.register_at_fork(before=_hold_sigterm, after_in_parent=_let_sigterm_go, after_in_child=_begin_as_child)
