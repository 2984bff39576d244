"""The network of a stress drill: a process that passes bytes on between the others, until it is told to cut.

Owns doors, which are listening ports that each lead to another port, and the connections through them. Obeys lines of
JSON and answers with lines of JSON. A process of its own, so that nothing else that its parent does delays the bytes.
Must not know what the bytes mean, nor who is expected to survive what.
"""

import asyncio
import json
import os
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Any

READ_BYTES = 1 << 18
"""Taken from a socket at once: a segment of a large collective."""

LEAD_S = 10.0
"""A door that has been opened but leads nowhere yet keeps callers waiting for this long."""

HANG_UP = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends RST, as a machine does that has lost all memory."""


def tell(event: str, **facts: object) -> None:
    """One line for the parent."""
    os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


class Door:
    """A listening port and where it leads."""

    def __init__(self, name: str, connections: "list[Connection]") -> None:
        self.name = name
        self._connections = connections
        self.leads_to: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        # Not `loop.sock_accept`: in Python 3.11 to cancel it while a connection arrives is an error in the loop.
        asyncio.get_running_loop().add_reader(self._listener, self._let_in)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def lead(self, port: int) -> None:
        """From now on lead there."""
        if self.leads_to.done():
            self.leads_to = asyncio.get_running_loop().create_future()
        self.leads_to.set_result(port)

    def shut(self) -> None:
        """Accept no more connections."""
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()

    def _let_in(self) -> None:
        try:
            near, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # it was closed again before we accepted it
            return
        near.setblocking(False)
        connection = Connection(self, near)
        self._connections.append(connection)
        connection.task = asyncio.create_task(connection.pass_on())
        connection.task.add_done_callback(partial(_forget, self._connections, connection))


def _forget(connections: "list[Connection]", ended: "Connection", _: object) -> None:
    connections.remove(ended)


class Connection:
    """One way through a door: the socket of the caller, that of the called, and what becomes of bytes towards each."""

    def __init__(self, door: Door, near: socket.socket) -> None:
        self.door = door
        self.task: asyncio.Task[None] | None = None
        self.whole = False
        """Bytes pass, and no fault has struck it."""
        self._sockets = [near]
        self._flows = [asyncio.Event(), asyncio.Event()]
        """Set while bytes towards a side pass, or are swallowed."""
        self._swallowed: tuple[int, ...] = ()
        self._how = HANG_UP

    async def pass_on(self) -> None:
        """Pass bytes in both directions until either end closes, fails, or is cut."""
        loop = asyncio.get_running_loop()
        try:
            port = await asyncio.wait_for(asyncio.shield(self.door.leads_to), LEAD_S)
            far = socket.socket()
            far.setblocking(False)
            self._sockets.append(far)
            await loop.sock_connect(far, ("127.0.0.1", port))
            for each in self._sockets:
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for flow in self._flows:
                flow.set()
            self.whole = True
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(0))
                both.create_task(self._pass(1))
        except* (OSError, TimeoutError):
            pass  # One end has hung up or cannot be reached: the other one is told so below.
        finally:
            self.whole = False
            self._hang_up(self._sockets)

    async def _pass(self, side: int) -> None:
        """Bytes towards this side."""
        loop = asyncio.get_running_loop()
        source, sink = self._sockets[1 - side], self._sockets[side]
        while True:
            data = await loop.sock_recv(source, READ_BYTES)
            await self._flows[side].wait()
            if side in self._swallowed:
                if not data:
                    return
            elif data:
                await loop.sock_sendall(sink, data)
            else:
                sink.shutdown(socket.SHUT_WR)
                return

    def _hang_up(self, sides: Iterable[socket.socket]) -> None:
        for each in sides:
            if each.fileno() >= 0:
                if self._how:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, self._how)
                each.close()

    # ── what may happen to it ────────────────────────────────────────────────────────────────────────────────────────

    def strike(self, kind: str, sides: tuple[int, ...], seconds: float) -> None:
        """Have one of these happen to it."""
        self.whole = False
        loop = asyncio.get_running_loop()
        match kind:
            case "reset":
                self.end()
            case "close":
                self._how = b""
                self.end()
            case "stall":
                for side in sides:
                    self._flows[side].clear()
                loop.call_later(seconds, self._flow_again)
            case "black hole":
                self._swallowed = sides
                loop.call_later(seconds, self.end)
            case "half-open":
                self._swallowed = (0, 1)
                with suppress(OSError):  # It has just been closed by itself.
                    self._sockets[sides[0]].shutdown(socket.SHUT_RDWR)
                loop.call_later(seconds, self.end)

    def _flow_again(self) -> None:
        self.whole = self.task is not None and not self.task.done()
        for flow in self._flows:
            flow.set()

    def end(self) -> None:
        """Hang up at both ends."""
        assert self.task is not None, "it runs from its first moment on"
        self.task.cancel()


class Proxy:
    """All doors, and all connections through them."""

    def __init__(self) -> None:
        self._doors: dict[str, Door] = {}
        self._connections: list[Connection] = []
        """In the order in which they came."""

    def obey(self, order: dict[str, Any]) -> None:
        """What the parent wants."""
        match order.pop("do"):
            case "open":
                door = self._doors[order["door"]] = Door(order["door"], self._connections)
                tell("opened", door=door.name, port=door.port)
            case "lead":
                self._doors[order["door"]].lead(order["port"])
            case "shut":
                self._doors.pop(order["door"]).shut()
            case "cut":
                self._cut(**order)

    def _cut(self, kind: str, doors: str, pick: float, sides: list[int], seconds: float) -> None:
        """Strike one connection through doors whose names begin so, or, for `reset all`, all through one door."""
        whole = [each for each in self._connections if each.whole and each.door.name.startswith(doors)]
        if not whole:
            return
        chosen = whole[int(pick * len(whole))]
        if kind == "reset all":
            for each in whole:
                if each.door is chosen.door:
                    each.strike("reset", (0, 1), 0.0)
        else:
            chosen.strike(kind, tuple(sides), seconds)
        tell("cut", kind=kind, door=chosen.door.name)


async def serve() -> None:
    """Obey until the parent is gone."""
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    proxy = Proxy()
    tell("ready")
    while line := await orders.readline():
        proxy.obey(json.loads(line))


if __name__ == "__main__":
    asyncio.run(serve())
