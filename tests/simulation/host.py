"""A process that runs a core: it may be slow, frozen or gone. Base of the master's and the peers' hosts.

Owns the order in which a core sees what happens, and its timer. Does not know what the core decides.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from pccl.core.effects.both import Tick
from tests.simulation.scheduler import Scheduler
from tests.simulation.violation import Violation

TICKS_AT_ONCE_MAX = 50
"""Ticks at one instant of virtual time; more of them mean that the core's deadline does not move."""


class Core(Protocol):
    """What master and peer have in common."""

    def handle(self, event: Any, now: float) -> list[Any]: ...

    def next_deadline(self) -> float | None: ...


class Host:
    """Runs what is posted to it, in order."""

    def __init__(self, scheduler: Scheduler, core: Core, name: str) -> None:
        self.scheduler = scheduler
        self.name = name
        self.gone = False
        self.frozen = False
        self.frozen_for_good = False
        self.slowness_s = 0.0
        """Time that each event takes; 0 for a healthy process."""
        self.dies_after: int | None = None
        """Crash after so many more effects: between any two of them, or any two receivers of one message."""
        self._core = core
        self._inbox: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._working = False
        self._events: deque[Any] = deque()
        self._busy = False
        self._armed: float | None = None
        self._ticks_at = (0.0, 0)

    # ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def idle(self) -> bool:
        """Nothing waits to be handled."""
        return not self._inbox

    def post(self, act: Callable[..., object], *arguments: Any) -> None:
        """Something happened to this process: it takes notice as soon as it runs."""
        if self.gone:
            return
        if self.frozen or self.slowness_s or self._inbox:
            self._inbox.append((act, arguments))
            self._work_later()
        else:
            act(*arguments)

    def freeze(self) -> None:
        """Stop the process; what happens to it is kept."""
        self.frozen = True

    def thaw(self) -> None:
        """Let it run again. Its timer is late, and may be noticed before what has arrived in the meantime."""
        if self.frozen and not self.frozen_for_good and not self.gone:
            self.frozen = False
            self._inbox.appendleft((self._tick, ()))
            self._work_later()

    def _work_later(self) -> None:
        if not self._working and not self.frozen:
            self._working = True
            self.scheduler.after(self.slowness_s, self._work)

    def _work(self) -> None:
        self._working = False
        if self.frozen or self.gone:
            return
        if self._inbox:
            act, arguments = self._inbox.popleft()
            act(*arguments)
        if self._inbox and not self.gone:
            self._work_later()

    # ── the core ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: Any) -> None:
        """Give the core an event and carry out what it wants. What happens meanwhile is handled after all of that."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        while self._events and not self.gone:
            self._handle(self._events.popleft())
        self._busy = False

    def _handle(self, event: Any) -> None:
        effects = self._core.handle(event, self.scheduler.now)
        self.before(event, effects)
        for effect in effects:
            if not self.lives_on():
                return
            self.perform(effect)
            if self.gone:
                return
        self.after(event)
        self._arm()

    def lives_on(self) -> bool:
        """Whether it gets to do one more thing."""
        if self.dies_after is not None:
            if self.dies_after <= 0:
                self.crash()
                return False
            self.dies_after -= 1
        return True

    def before(self, event: Any, effects: list[Any]) -> None:
        """An event was handled; its effects are about to be carried out."""

    def perform(self, effect: Any) -> None:
        """Carry out one effect."""
        raise NotImplementedError

    def after(self, event: Any) -> None:
        """All effects of an event were carried out."""

    def crash(self) -> None:
        """The process is gone."""
        raise NotImplementedError

    # ── its timer ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        deadline = self._core.next_deadline()
        if deadline is None:
            self._armed = None
        elif self._armed is None or deadline < self._armed:
            self._armed = deadline
            self.scheduler.at(deadline, self._ring, deadline)

    def _ring(self, deadline: float) -> None:
        if self._armed == deadline and not self.gone:
            self._armed = None
            self.post(self._tick)

    def _tick(self) -> None:
        deadline = self._core.next_deadline()
        if deadline is None or deadline > self.scheduler.now:
            self._arm()
            return
        time, count = self._ticks_at
        self._ticks_at = (self.scheduler.now, count + 1 if time == self.scheduler.now else 1)
        if self._ticks_at[1] > TICKS_AT_ONCE_MAX:
            raise Violation("deadlines", f"the deadline {deadline:.6f} of {self.name} stays although it was told so")
        self.handle(Tick())
