"""Accepting connections, and keeping strangers within bounds.

Owns listening sockets and the list of connections that have not said who they are. Must not know what they send.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import NamedTuple

from pccl.core.rights import origin_of
from pccl.net import sockets
from pccl.net.bounds import STRANGERS_MAX

log = logging.getLogger("pccl")

HELLO_TIMEOUT_S = 10.0
"""From the connection to its first complete message. Preamble and first message are sent together, on control
connections and on lanes, so one round trip and two lost segments fit in several times; a scanner that sends nothing
costs one descriptor for this long."""

_ACCEPTED_AT_ONCE = 8
"""Connections accepted in one turn of the loop, some 0.15 ms each: a vote beside a flood of them waits for a few turns.
Those that sent at once are read in the next one: in a flood, before enough others were accepted to push them out."""

_ACCEPT_PAUSE_S = 0.2
"""When descriptors have run out: time for some to be closed, and no busy loop."""

_WARN_EVERY_S = 10.0
"""Between two lines about descriptors that have run out; the pause above would make it five a second."""


class _Stranger(NamedTuple):
    end: Callable[[str], object]
    timer: asyncio.TimerHandle
    origin: str


class Strangers:
    """Connections on a deadline. When there are too many, the oldest goes of the address that has most: a flood pushes
    out its own, and a peer far away, whose first message takes a round trip or two, is not hit by it. (A flood from as
    many addresses as there is room for pushes out the oldest of all.)"""

    def __init__(self, limit: int = STRANGERS_MAX, timeout_s: float = HELLO_TIMEOUT_S) -> None:
        self._limit = limit
        self._limit_each = max(1, limit // 2)
        """From one address. Peers behind one router, which all come back at once after a restart of the master, are
        strangers for the time of their first message; others must get in beside them."""
        self._timeout_s = timeout_s
        self._ends: dict[int, _Stranger] = {}
        self._crowds: dict[str, dict[int, None]] = {}
        """By origin, oldest first."""

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, number: int, end: Callable[[str], object], host: str = "") -> None:
        """Watch this connection; `end(cause)` closes it."""
        origin = origin_of(host)
        if len(self._crowds.get(origin, ())) >= self._limit_each:
            self._expel_oldest(origin, f"more than {self._limit_each} connections of one address")
        elif len(self._ends) >= self._limit:
            largest = max(self._crowds, key=lambda each: len(self._crowds[each]))
            self._expel_oldest(largest, f"more than {self._limit} connections")
        cause = f"nothing complete within {self._timeout_s:g} s"
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expel, number, cause)
        self._ends[number] = _Stranger(end, timer, origin)
        self._crowds.setdefault(origin, {})[number] = None

    def remove(self, number: int) -> bool:
        """It has said who it is, or is gone. True when it was a stranger."""
        return self._take_out(number) is not None

    def expel_all(self, cause: str) -> None:
        for number in list(self._ends):
            self._expel(number, cause)

    def _expel_oldest(self, origin: str, cause: str) -> None:
        self._expel(next(iter(self._crowds[origin])), f"{cause} that did not say who they are")

    def _expel(self, number: int, cause: str) -> None:
        stranger = self._take_out(number)
        assert stranger is not None, "only those that are here are expelled"
        log.debug("connection %d closed: %s", number, cause)
        stranger.end(cause)

    def _take_out(self, number: int) -> _Stranger | None:
        stranger = self._ends.pop(number, None)
        if stranger is not None:
            stranger.timer.cancel()
            crowd = self._crowds[stranger.origin]
            del crowd[number]
            if not crowd:
                del self._crowds[stranger.origin]
        return stranger


class Listener:
    """Hands every accepted connection to one function."""

    def __init__(self, on_connection: Callable[[socket.socket, str], None], connection_dead_s: float) -> None:
        self._on_connection = on_connection
        self._connection_dead_s = connection_dead_s
        self._sockets: list[socket.socket] = []
        self._failures = 0
        self._warn_again_at = 0.0

    def open(self, host: str, port: int) -> None:
        """Raises `OSError`."""
        self._sockets = sockets.listen(host, port)
        for listener in self._sockets:
            self._resume(listener)

    @property
    def port(self) -> int:
        port: int = self._sockets[0].getsockname()[1]
        return port

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [listener.getsockname()[:2] for listener in self._sockets]

    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._sockets:
            loop.remove_reader(listener)
            listener.close()
        self._sockets = []

    def _resume(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept_waiting, listener)

    def _warn(self, error: OSError, now: float) -> None:
        """Descriptors have run out, which may last for as long as a flood does: one line in a while."""
        self._failures += 1
        if now >= self._warn_again_at:
            self._warn_again_at = now + _WARN_EVERY_S
            words = "no connection can be accepted: %s; trying again every %g s (%d times so far)"
            log.warning(words, sockets.in_words(error), _ACCEPT_PAUSE_S, self._failures)

    def _accept_waiting(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted = sockets.accept(listener, self._connection_dead_s)
            except OSError as error:
                if not sockets.out_of_descriptors(error):
                    log.debug("a connection broke before it was accepted: %s", error)
                    continue
                loop = asyncio.get_running_loop()
                self._warn(error, loop.time())
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_PAUSE_S, self._resume, listener)
                return
            if accepted is None:
                return
            self._on_connection(*accepted)
