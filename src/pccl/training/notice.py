"""What SIGTERM means to a run: the machine is about to be taken away.

Owns the handler and the time that is left. Must not know what is done with it.
"""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


class Notice:
    """Given or not, and how long ago."""

    def __init__(self, notice_s: float) -> None:
        self._notice_s = notice_s
        self._given_at: float | None = None
        self._before: Any = None
        self._timer: threading.Timer | None = None
        self._overdue: Callable[[], None] = lambda: None

    def watch(self, overdue: Callable[[], None]) -> None:
        """From now on. `overdue` is called, in another thread, when the time is over. Only if the program does not
        handle the signal itself, and in its main thread, which alone may. A Communicator that was passed has a handler
        that ends the process at once: this one, which says goodbye as well, stands for it."""
        self._overdue = overdue
        in_main_thread = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGTERM)
        if in_main_thread and (handler is signal.SIG_DFL or _is_of_a_communicator(handler)):
            self._before = signal.signal(signal.SIGTERM, self._handle)

    def unwatch(self) -> None:
        """As it was before."""
        if self._timer is not None:
            self._timer.cancel()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._given_at is None:
            self._given_at = time.monotonic()
            self._timer = threading.Timer(self._notice_s, self._overdue)
            self._timer.daemon = True
            self._timer.start()

    @property
    def given(self) -> bool:
        """The process shall end."""
        return self._given_at is not None

    def allows(self, seconds: float) -> bool:
        """Whether so much time is left."""
        return self._given_at is not None and time.monotonic() + seconds < self._given_at + self._notice_s


def _is_of_a_communicator(handler: object) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("pccl.api.")
