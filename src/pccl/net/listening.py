"""Accepting connections, and keeping strangers within bounds.

Owns listening sockets and the list of connections that have not said who they are. Must not know what they send.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from pccl.net import sockets
from pccl.net.bounds import STRANGERS_MAX

log = logging.getLogger("pccl")

HELLO_TIMEOUT_S = 10.0
"""From the connection to its first complete message. Preamble and first message are sent together, on control
connections and on lanes, so one round trip and two lost segments fit in several times; a scanner that sends nothing
costs one descriptor for this long."""

_ACCEPTED_AT_ONCE = 32
"""Connections accepted in one turn of the loop. Those that sent at once are read in the next one: in a flood, before
enough others were accepted to push them out."""

_ACCEPT_PAUSE_S = 0.2
"""When descriptors have run out: time for some to be closed, and no busy loop."""


class Strangers:
    """Connections on a deadline, oldest first."""

    def __init__(self, limit: int = STRANGERS_MAX, timeout_s: float = HELLO_TIMEOUT_S) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._ends: dict[int, tuple[Callable[[str], object], asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, number: int, end: Callable[[str], object]) -> None:
        """Watch this connection; `end(cause)` closes it."""
        if len(self._ends) >= self._limit:
            self._expel(next(iter(self._ends)), f"more than {self._limit} connections that did not say who they are")
        cause = f"nothing complete within {self._timeout_s:g} s"
        timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expel, number, cause)
        self._ends[number] = (end, timer)

    def remove(self, number: int) -> bool:
        """It has said who it is, or is gone. True when it was a stranger."""
        _, timer = self._ends.pop(number, (None, None))
        if timer is not None:
            timer.cancel()
        return timer is not None

    def expel_all(self, cause: str) -> None:
        for number in list(self._ends):
            self._expel(number, cause)

    def _expel(self, number: int, cause: str) -> None:
        end, timer = self._ends.pop(number)
        timer.cancel()
        log.debug("connection %d closed: %s", number, cause)
        end(cause)


class Listener:
    """Hands every accepted connection to one function."""

    def __init__(self, on_connection: Callable[[socket.socket, str], None], connection_dead_s: float) -> None:
        self._on_connection = on_connection
        self._connection_dead_s = connection_dead_s
        self._sockets: list[socket.socket] = []

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

    def _accept_waiting(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted = sockets.accept(listener, self._connection_dead_s)
            except OSError as error:
                if not sockets.out_of_descriptors(error):
                    log.debug("a connection broke before it was accepted: %s", error)
                    continue
                log.warning("no connection can be accepted: %s; trying again in %g s", error, _ACCEPT_PAUSE_S)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_PAUSE_S, self._resume, listener)
                return
            if accepted is None:
                return
            self._on_connection(*accepted)
