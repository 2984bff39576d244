"""The loop event → core → effects, the same for master and peer.

Owns the order of events, the one armed timer and the clock that a core sees. Must not know what an event or an effect
means.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

log = logging.getLogger("pccl")

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")
_EventIn = TypeVar("_EventIn", contravariant=True)
_EffectOut = TypeVar("_EffectOut")


class Core(Protocol[_EventIn, _EffectOut]):
    """What decides: `core.master.Master`, `core.peer.Peer`."""

    def handle(self, event: _EventIn, now: float) -> list[_EffectOut]: ...

    def next_deadline(self) -> float | None: ...


class Driver(Generic[EventT, EffectT]):
    """Hands events to a core one at a time, in order, and carries out its effects."""

    def __init__(
        self,
        core: Core[EventT, EffectT],
        tick: EventT,
        carry_out: Callable[[EffectT], None],
        on_bug: Callable[[Exception], None],
        contain: Callable[[EventT, float], list[EffectT]] | None = None,
    ) -> None:
        """`contain` says what to do about an event at which the core has raised; without it, or if it raises too, the
        driver ends and `on_bug` is called."""
        self._core = core
        self._contain = contain
        self._tick = tick
        self._carry_out = carry_out
        self._on_bug = on_bug
        self._events: deque[EventT] = deque()
        self._busy = False
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._arming = False
        self._work: set[asyncio.Task[None]] = set()

    def post(self, event: EventT) -> None:
        """Handle this event now, or after those already posted when called from inside an effect."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events and not self._stopped:
                for effect in self._decide(self._events.popleft(), self._loop.time()):
                    self._carry_out(effect)
        except Exception as error:
            self._end_in_bug(error)
        finally:
            self._busy = False
        if not self._arming:
            # Once per turn of the loop, not per event: a thousand votes may arrive in one turn.
            self._arming = True
            self._loop.call_soon(self._arm)

    def _decide(self, event: EventT, now: float) -> list[EffectT]:
        try:
            return self._core.handle(event, now)
        except Exception as error:
            if self._contain is None:
                raise
            log.critical("internal error at %s, please report it", type(event).__name__, exc_info=error)
            return self._contain(event, now)

    def start(self, work: Coroutine[Any, Any, EventT]) -> asyncio.Task[None]:
        """Carry out an effect that takes time: a coroutine that returns the next event. One that raises is a bug."""
        task = self._loop.create_task(self._finish(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        # A task that is given up before its first step never looks at its coroutine.
        task.add_done_callback(lambda _: work.close())
        return task

    async def _finish(self, work: Coroutine[Any, Any, EventT]) -> None:
        try:
            event = await work
        except Exception as error:
            # Its event would never come, and the core would wait for it for ever.
            self._end_in_bug(error)
        else:
            self.post(event)

    def _end_in_bug(self, error: Exception) -> None:
        # A core that raised may be in any state. Ending is better than going on: peers that wait for this process learn
        # it at once, instead of waiting for an answer that may never come.
        log.critical("internal error, please report it", exc_info=error)
        self.stop()
        self._on_bug(error)

    def stop(self) -> None:
        """Handle nothing more and give up the work under way."""
        self._stopped = True
        self._events.clear()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._work:
            task.cancel()

    def _arm(self) -> None:
        self._arming = False
        deadline = self._next_deadline()
        due = math.inf if deadline is None else deadline
        if self._timer is not None:
            if self._due <= due:
                return  # It fires early and is armed again then, which is cheaper than a new timer for every event.
            self._timer.cancel()
        self._due = due
        self._timer = None if due == math.inf else self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._due = None, math.inf
        deadline = self._next_deadline()
        if deadline is not None and deadline <= self._loop.time():
            self.post(self._tick)
        else:
            self._arm()

    def _next_deadline(self) -> float | None:
        if self._stopped:
            return None
        try:
            return self._core.next_deadline()
        except Exception as error:
            self._end_in_bug(error)
            return None
