"""The other end of a probe: a port that is open for one, and says so to the master that dials it.

Owns that port. Must not know what the answer is for.
"""

import asyncio
import socket
from contextlib import suppress

from pccl.core.messages.lanes import LaneAnswer
from pccl.net import handshake
from pccl.net.listening import Listener
from pccl.wire.framing import Purpose, WireError, preamble

CONNECTION_DEAD_S = 10.0
"""Of a probe, which takes a few seconds."""


class ProbedPort:
    """Open from `open` to `close`. Lives in one event loop."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce
        self._listener = Listener(self._connected, CONNECTION_DEAD_S)
        self._greetings: set[asyncio.Task[None]] = set()

    def open(self, host: str, port: int) -> int:
        """The port that it became. Raises `OSError`."""
        self._listener.open(host, port)
        return self._listener.port

    def close(self) -> None:
        """Free the port."""
        self._listener.close()
        for greeting in self._greetings:
            greeting.cancel()

    def _connected(self, sock: socket.socket, host: str) -> None:
        greeting = asyncio.get_running_loop().create_task(self._greet(sock))
        greeting.add_done_callback(lambda task: sock.close() if task.cancelled() else None)  # before its first step
        self._greetings.add(greeting)
        greeting.add_done_callback(self._greetings.discard)

    async def _greet(self, sock: socket.socket) -> None:
        with sock, suppress(OSError, WireError):  # A stranger; the probe, if it comes, is another connection.
            hello = await handshake.read_hello(sock)
            ours = hello.receiver == self._nonce
            reply = LaneAnswer(ours, "" if ours else "this port is open for a probe, not for lanes")
            handshake.answer(sock, reply, preamble(Purpose.LANE))
