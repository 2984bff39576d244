"""Connections: ordered, delayed, and broken in every way that TCP lets through.

Owns the way of bytes between two processes. Does not know what the bytes mean; master and lanes both use it.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.scheduler import Scheduler

TCP_GIVES_UP_S = 120.0
"""A connection whose bytes vanish is closed by the kernels after this: keep-alive and TCP_USER_TIMEOUT of about two
minutes, well above every limit of the protocol, so that the protocol's own limits are what is tested."""


class Network:
    """The delays of one run."""

    def __init__(self, scheduler: Scheduler, random: Random, jitter_s: float, resets: float) -> None:
        self.scheduler = scheduler
        self.random = random
        self.jitter_s = jitter_s
        self.resets = resets
        """How often a process that is killed has not read all that has arrived."""

    def delay(self, distance_s: float) -> float:
        """One way of one message: the distance, and often a little, rarely much more."""
        return distance_s + self.random.expovariate(1.0) * self.jitter_s


class Connection:
    """Two sides, 0 and 1. Each side is told at most once that the connection ended, and nothing after that."""

    def __init__(self, network: Network, distance_s: float) -> None:
        self.vanished = False
        """Bytes of at least one direction are lost without anybody being told."""
        self._network = network
        self.distance_s = distance_s
        self.greeted = False
        """Who was dialled has answered, in the very first bytes."""
        self.flying = [0, 0]
        """Messages on their way to each side."""
        self._arrivals = [0.0, 0.0]
        self._closed = [False, False]
        self._loses = [False, False]
        self.severed = False
        """It was cut, and what was on its way is lost; either side may not have noticed yet."""
        self._held = [False, False]
        self._waiting: list[list[tuple[Callable[..., object], Any]]] = [[], []]
        self._on_bytes: list[Callable[[bytes], object]] = [_nobody, _nobody]
        self._on_close: list[Callable[[str], object]] = [_nobody, _nobody]

    def attach(self, side: int, on_bytes: Callable[[bytes], object], on_close: Callable[[str], object]) -> None:
        """Who hears what arrives at a side."""
        self._on_bytes[side], self._on_close[side] = on_bytes, on_close

    def greet(self) -> None:
        """Who was dialled answers."""
        self.greeted = True

    def open(self, side: int) -> bool:
        """As far as this side knows."""
        return not self._closed[side]

    def send(self, side: int, data: bytes) -> None:
        """Send from a side; what a closed or broken connection is given is lost."""
        if not self._closed[side]:
            self._plan(1 - side, self._deliver, data)

    def close(self, side: int, cause: str) -> None:
        """Close from a side, after what it has sent; the other side is told."""
        if not self._closed[side]:
            self._closed[side] = True
            self._plan(1 - side, self._tell_unless_lost, cause)

    def cut(self, cause: str) -> None:
        """Break it: nothing more arrives, and each side is told in its own time."""
        self.severed = True
        for side in (0, 1):
            self._network.scheduler.after(self._network.delay(self.distance_s), self._tell, side, cause)

    def crash(self, side: int) -> None:
        """The process at a side is gone, and its kernel closes the connection: after what was sent, or, if something
        has arrived there that nobody has read, with a reset that overtakes it."""
        resets = self._network.resets
        if resets and self._network.random.random() < resets:
            self.cut("connection reset")
        else:
            self.close(side, "connection reset")

    def hold(self, towards: tuple[int, ...]) -> None:
        """From now on what is sent to these sides waits, until it is released or the kernels give up."""
        for side in towards:
            self._held[side] = True
        self._network.scheduler.after(TCP_GIVES_UP_S, self._give_up)

    def release(self) -> None:
        """What was held arrives now, in order."""
        self._held = [False, False]
        for side in (0, 1):
            waiting, self._waiting[side] = self._waiting[side], []
            for act, what in waiting:
                act(side, what)

    def _give_up(self) -> None:
        if any(self._held):
            self.cut("timed out")

    def vanish(self, towards: tuple[int, ...]) -> None:
        """From now on nothing arrives at these sides, and nobody is told until the kernels give up."""
        self.vanished = True
        for side in towards:
            self._loses[side] = True
        self._network.scheduler.after(TCP_GIVES_UP_S, self.cut, "timed out")

    def _plan(
        self, side: int, act: Callable[[int, str], object] | Callable[[int, bytes], object], what: object
    ) -> None:
        arrival = self._network.scheduler.now + self._network.delay(self.distance_s)
        self._arrivals[side] = max(self._arrivals[side], arrival)
        self.flying[side] += 1
        self._network.scheduler.at(self._arrivals[side], act, side, what)

    def _deliver(self, side: int, data: bytes) -> None:
        if self._held[side]:
            self._waiting[side].append((self._deliver, data))
            return
        self.flying[side] -= 1
        if not (self.severed or self._loses[side] or self._closed[side]):
            self._on_bytes[side](data)

    def _tell_unless_lost(self, side: int, cause: str) -> None:
        if self._held[side]:
            self._waiting[side].append((self._tell_unless_lost, cause))
            return
        if not (self.severed or self._loses[side]):
            self._tell(side, cause)

    def _tell(self, side: int, cause: str) -> None:
        if not self._closed[side]:
            self._closed[side] = True
            self._on_close[side](cause)


def _nobody(_: object) -> None:
    """Nobody listens yet."""
