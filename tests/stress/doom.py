"""Where in the life of a collective a peer can die, and the watcher that makes it die there.

Owns the points of death, each told by an effect of the peer's core; `pccl.net.watching` shows them to us.
"""

import os
import signal
import threading
from enum import StrEnum

from pccl.core.effects.peer_effects import (
    Committed,
    PeerEffect,
    Resolve,
    SendMaster,
    SendParcel,
    StartAttempt,
    StartExchange,
)
from pccl.core.messages.to_master import Done, Initiate
from pccl.dataplane.plane import DataPlane
from pccl.net.watching import Watcher, watchers


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


def _before(effect: PeerEffect, tags: dict[int, int]) -> list[tuple[Point, int]]:
    match effect:
        case SendParcel(tag=tag):
            return [(Point.LAUNCH, tag)]
        case SendMaster(message=Initiate(tag=tag, parcel=0)):
            return [(Point.LAUNCH, tag)]
        case SendMaster(message=Initiate(tag=tag)):
            return [(Point.PARCEL, tag)]
        case StartAttempt(tag=tag, attempt=attempt) | StartExchange(tag=tag, attempt=attempt):
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
        case StartAttempt(tag=tag):
            return [(Point.BYTES, tag)]
        case SendMaster(message=Done(tag=tag)):
            return [(Point.REPORT, tag)]
    return []


class Doom(Watcher):
    """Ends this process by SIGKILL at a point, once armed. It may be armed by any thread, before or after `attach`. It
    watches all peers of its process: there is one."""

    def __init__(self) -> None:
        self._point: Point | None = None
        self._tag: int | None = None
        self._moved_bytes = 0
        self._spared = 0
        self._tags: dict[int, int] = {}
        """By attempt: an outcome names nothing else."""

    def attach(self) -> None:
        """From now on look on."""
        watchers.append(self)

    def arm(self, point: Point, tag: int | None = None, moved_bytes: int = 0, spared: int = 0) -> None:
        """Die there; without `tag`, in whichever collective comes there first. `moved_bytes` is for `Point.BYTES`, and
        `spared` is how often the point may be passed before."""
        self._tag, self._moved_bytes, self._spared = tag, moved_bytes, spared
        self._point = point

    def before(self, effect: PeerEffect, plane: DataPlane) -> None:
        """See `Watcher`."""
        for point, tag in _before(effect, self._tags):
            self._passed(point, tag, plane)

    def after(self, effect: PeerEffect, plane: DataPlane) -> None:
        """See `Watcher`."""
        for point, tag in _after(effect):
            self._passed(point, tag, plane)

    def _passed(self, point: Point, tag: int, plane: DataPlane) -> None:
        if point is not self._point or self._tag not in (None, tag):
            return
        if self._spared:
            self._spared -= 1
        elif point is Point.BYTES:
            # Not a moment but a stretch of time, which begins here.
            threading.Thread(target=self._die_at_byte, args=(plane,), daemon=True).start()
        else:
            die()

    def _die_at_byte(self, plane: DataPlane) -> None:
        """Look as often as possible: a megabyte takes less than a millisecond. If nothing is under way any more, this
        process lives on."""
        while moved := plane.moved_bytes():
            if max(moved) >= self._moved_bytes:
                die()


def die() -> None:
    """At once, like a machine that loses its power."""
    os.kill(os.getpid(), signal.SIGKILL)
