"""How many lines the operator gets about those that are not in the run: any program that reaches the port can come and
go a thousand times a second.

Owns the count for each address. Pure: it is told the time. Must not know what the lines say.
"""

LINES_MAX = 4
"""For each address, in `WINDOW_S`: enough to see what goes wrong with peers behind one router."""
WINDOW_S = 60.0
ADDRESSES_MAX = 1024
"""Addresses that are remembered; of more, the ones that came first are forgotten, and have their lines again."""


class Ration:
    """Which lines are told, and how many were not."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[float, int]] = {}
        """By address: when its window began, and how many lines there have been in it."""

    def draw(self, address: str, now: float) -> int | None:
        """None if this line is one too many; else how many were before it, since the last one that was told."""
        began, count = self._windows.get(address, (now, 0))
        silenced = 0
        if now - began >= WINDOW_S:
            silenced, began, count = max(0, count - LINES_MAX), now, 0
        self._windows[address] = began, count + 1
        while len(self._windows) > ADDRESSES_MAX:
            del self._windows[next(iter(self._windows))]
        return silenced if count < LINES_MAX else None
