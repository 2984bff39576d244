"""The machine's limit: the bytes of a ring all-reduce over as many connections, and no arithmetic.

In a ring of N each process sends 2(N-1)/N of the tensor to the next one and receives as much from the previous one. So
does this, from and into memory as large as the tensor, with one thread for each direction and blocking calls that
release the GIL. Two processes share their connections for both directions, as two peers of ours do.
"""

import queue
import socket
import threading

import numpy as np

from rivals.rival import Facts

TURN_BYTES = 1 << 20
"""Per call: large enough that Python's share of the time is below one percent."""

BUFFER_BYTES = 1 << 18
"""Of each socket: what is under way stays in the caches. With the kernel's default, which grows to megabytes,
the same bytes cost twice the CPU time."""


class Limit:
    """Settings: `lanes`, `congestion` (both as ours were seen to have)."""

    sums = False

    def __init__(self, settings: Facts) -> None:
        self.rank = int(settings["rank"])
        self._size = int(settings["size"])
        self._lanes = int(settings["lanes"])
        self._congestion = str(settings["congestion"]).encode()
        self._listener = _socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(self._lanes)
        self._turns: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._sent: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, daemon=True)

    def offer(self) -> Facts:
        return {"port": self._listener.getsockname()[1]}

    def connect(self, offers: list[Facts]) -> Facts:
        both_ways = self._size == 2
        following = offers[(self.rank + 1) % self._size]
        dialled, accepted = [], []
        if not both_ways or self.rank == 0:
            dialled = [_socket() for _ in range(self._lanes)]
            for sock in dialled:
                sock.connect(("127.0.0.1", following["port"]))
        if not both_ways or self.rank == 1:
            accepted = [self._listener.accept()[0] for _ in range(self._lanes)]
        self._to_next = dialled or accepted
        self._from_previous = accepted or dialled
        for sock in {*self._to_next, *self._from_previous}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._congestion:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, self._congestion)
        self._sender.start()
        return {"lanes": self._lanes, "congestion": self._congestion.decode()}

    def all_reduce(self, values: np.ndarray) -> None:
        memory = values.data.cast("B")
        self._turns.put(memory)
        for sock, part in self._parts(self._from_previous, memory):
            while part:
                part = part[sock.recv_into(part, 0, socket.MSG_WAITALL) :]
        self._sent.get()

    def close(self) -> None:
        self._turns.put(None)
        self._sender.join()

    def _send(self) -> None:
        while (memory := self._turns.get()) is not None:
            for sock, part in self._parts(self._to_next, memory):
                sock.sendall(part)
            self._sent.put(None)

    def _parts(self, lanes: list[socket.socket], memory: memoryview) -> list[tuple[socket.socket, memoryview]]:
        """Which part goes over which connection; both ends reckon alike."""
        left = 2 * (self._size - 1) * len(memory) // self._size
        parts: list[tuple[socket.socket, memoryview]] = []
        at = 0
        while left:
            part = memory[at : at + min(TURN_BYTES, left)]
            parts.append((lanes[len(parts) % len(lanes)], part))
            left -= len(part)
            at = (at + len(part)) % len(memory)
        return parts


def _socket() -> socket.socket:
    """Sizes are set before it connects or listens; what it accepts inherits them."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    return sock
