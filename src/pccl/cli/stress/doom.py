"""Where in the life of a collective a peer can die, and the hook that makes it die there.

Owns the points of death. The hook is set around the effects of one peer from outside: the library itself has no place
for it. That is why this module, unlike the rest of `cli`, knows how a Communicator is built.
"""

import os
import signal
import threading
from collections.abc import Callable
from enum import StrEnum

from pccl import Communicator
from pccl.core.effects import Committed, PeerEffect, Resolve, SendMaster, SendParcel, StartExchange, StartRun
from pccl.core.messages import Done, Initiate
from pccl.dataplane.native import NativePlane


class Point(StrEnum):
    """A moment between two effects of a peer, in the order in which they come."""

    LAUNCH = "before its vote"
    PARCEL = "with its contribution sent but no vote"
    VOTE = "between vote and start"
    START = "told to start"
    BYTES = "at some byte"
    FINISH = "finished, not reported"
    REPORT = "reported, before the outcome"
    OUTCOME = "told the outcome, call not answered"


Hook = Callable[[Point, int], None]
"""Called with each point that is passed, and the tag."""


def watch(communicator: Communicator, passed: Hook) -> None:
    """From now on call `passed` at each point of each collective, in the control thread, except for `Point.BYTES`,
    which is no moment but a stretch of time that begins there. Only for a Communicator that is connected."""
    membership = communicator._membership
    assert membership is not None, "watch what is connected"
    assert membership._shell is not None, "watch what is connected"
    driver = membership._shell._driver
    assert driver is not None, "watch what is connected"
    carry_out = driver._carry_out
    tags: dict[int, int] = {}
    """By attempt: an outcome names nothing else."""

    def watched(effect: PeerEffect) -> None:
        for point, tag in _before(effect, tags):
            passed(point, tag)
        carry_out(effect)
        for point, tag in _after(effect):
            passed(point, tag)

    driver._carry_out = watched


def _before(effect: PeerEffect, tags: dict[int, int]) -> list[tuple[Point, int]]:
    match effect:
        case SendParcel(tag=tag):
            return [(Point.LAUNCH, tag)]
        case SendMaster(message=Initiate(tag=tag, parcel=0)):
            return [(Point.LAUNCH, tag)]
        case SendMaster(message=Initiate(tag=tag)):
            return [(Point.PARCEL, tag)]
        case StartRun(tag=tag, attempt=attempt) | StartExchange(tag=tag, attempt=attempt):
            tags[attempt] = tag
            return [(Point.START, tag)]
        case SendMaster(message=Done(tag=tag)):
            return [(Point.FINISH, tag)]
        case Resolve(answer=Committed(attempt=attempt)):
            return [(Point.OUTCOME, tags.pop(attempt))]
    return []


def _after(effect: PeerEffect) -> list[tuple[Point, int]]:
    match effect:
        case SendMaster(message=Initiate(tag=tag)):
            return [(Point.VOTE, tag)]
        case StartRun(tag=tag):
            return [(Point.BYTES, tag)]
        case SendMaster(message=Done(tag=tag)):
            return [(Point.REPORT, tag)]
    return []


class Doom:
    """Ends this process by SIGKILL at a point, once armed. It may be armed by any thread, before or after `attach`."""

    def __init__(self) -> None:
        self._point: Point | None = None
        self._tag: int | None = None
        self._moved_bytes = 0
        self._spared = 0
        self._communicator: Communicator | None = None

    def attach(self, communicator: Communicator) -> None:
        """Be the doom of this peer, which is connected."""
        self._communicator = communicator
        watch(communicator, self._passed)

    def arm(self, point: Point, tag: int | None = None, moved_bytes: int = 0, spared: int = 0) -> None:
        """Die there; without `tag`, in whichever collective comes there first. `moved_bytes` is for `Point.BYTES`, and
        `spared` is how often the point may be passed before."""
        self._tag, self._moved_bytes, self._spared = tag, moved_bytes, spared
        self._point = point

    def _passed(self, point: Point, tag: int) -> None:
        if point is not self._point or self._tag not in (None, tag):
            return
        if self._spared:
            self._spared -= 1
        elif point is Point.BYTES:
            threading.Thread(target=self._die_at_byte, daemon=True).start()
        else:
            die()

    def _die_at_byte(self) -> None:
        """Look as often as possible: a megabyte takes less than a millisecond. A run that ends first spares us."""
        assert self._communicator is not None
        plane = self._communicator._data_plane
        assert isinstance(plane, NativePlane), "only native runs count while they run"
        while running := list(plane._running.values()):
            if any(each.run.moved_bytes >= self._moved_bytes for each in running):
                die()


def die() -> None:
    """At once, like a machine that loses its power."""
    os.kill(os.getpid(), signal.SIGKILL)
