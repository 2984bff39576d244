"""A thread with an event loop of its own, and blocking calls into it from the user's threads.

Owns the thread and the wait. Must not know what runs in the loop.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class LoopEnded(Exception):
    """The loop has ended: nothing can run in it any more."""


class _Handed(Generic[T]):
    """A coroutine on its way into the loop. It can be given up from the moment at which this exists: Ctrl-C may come
    while it is handed in, when `asyncio.run_coroutine_threadsafe` has started it and not yet returned its future."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self.result: Future[T] = Future()

    def begin(self) -> None:
        """In the loop."""
        self._task = asyncio.ensure_future(self._work)
        self._task.add_done_callback(self._over)

    def give_up(self) -> None:
        """In the loop, after `begin` if that was handed in at all."""
        if self._task is None:
            self._work.close()
        else:
            self._task.cancel()

    def _over(self, task: asyncio.Task[T]) -> None:
        error = CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.result.set_result(task.result())
        else:
            self.result.set_exception(error)


class LoopThread:
    """An event loop that turns in a thread.

    A daemon for peers: the process of a trainer ends when its script ends, whatever the master does. Not a daemon for
    a master: its process lives as long as it serves."""

    def __init__(self, name: str, *, daemon: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._entrance = threading.Lock()
        """Held while work is handed in, and when the loop closes its door: nothing is handed in and forgotten."""
        self._open = True
        self._thread = threading.Thread(target=self._turn, name=name, daemon=daemon)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it. Ctrl-C interrupts the wait and gives the coroutine up."""
        handed = _Handed(work)
        # The wait has no timeout: a lock without one is interruptible by signals wherever fork exists, and what is
        # waited for is bounded by the core or explained by its notes.
        try:
            with self._entrance:
                if not self._open or threading.current_thread() is self._thread:
                    raise LoopEnded("the loop has ended, or would wait for itself")
                self._loop.call_soon_threadsafe(handed.begin)
            return handed.result.result()
        except CancelledError:
            raise LoopEnded("the loop ended during the call") from None
        except LoopEnded:
            work.close()
            raise
        except BaseException:
            self.post(handed.give_up)
            raise

    def submit(self, function: Callable[[], object]) -> None:
        """Run a function in the loop some time soon. Raises `LoopEnded` when it never will."""
        with self._entrance:
            if not self._open:
                raise LoopEnded("the loop has ended")
            self._loop.call_soon_threadsafe(function)

    def post(self, function: Callable[[], object]) -> None:
        """Run a function in the loop some time soon; nothing happens when the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            return  # Ended: there is nothing left to be done in it.

    def stop(self) -> None:
        """Let the loop end; `join` waits for it."""
        self.post(self._loop.stop)

    def join(self, timeout_s: float) -> bool:
        """True when the thread has ended."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _turn(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with self._entrance:
                self._open = False
            # One turn for what was handed in last, so that it is among the tasks that are told of the end.
            self._loop.run_until_complete(asyncio.sleep(0))
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.close()
