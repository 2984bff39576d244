"""Virtual time: what happens next, and nothing about what it is."""

import heapq
from collections.abc import Callable
from typing import Any


class Scheduler:
    """A heap of what will happen. Equal times keep the order in which they were planned, so a run is repeatable."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        """How much has happened: the measure of a run's cost."""
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, time: float, act: Callable[..., object], *arguments: Any) -> None:
        """Do this at that time, or now if it has passed."""
        self._planned += 1
        heapq.heappush(self._heap, (max(time, self.now), self._planned, act, arguments))

    def after(self, delay_s: float, act: Callable[..., object], *arguments: Any) -> None:
        """Do this so many seconds from now."""
        self.at(self.now + delay_s, act, *arguments)

    def advance(self) -> bool:
        """Let the next thing happen; False when nothing is planned."""
        if not self._heap:
            return False
        self.now, _, act, arguments = heapq.heappop(self._heap)
        self.steps += 1
        act(*arguments)
        return True

    def run(self, until: float, finished: Callable[[], bool]) -> bool:
        """Go on until a time or a condition; True if it was the condition."""
        while not finished():
            if not self._heap or self._heap[0][0] > until:
                self.now = max(self.now, until)
                return finished()
            self.advance()
        return True
