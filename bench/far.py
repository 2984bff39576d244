"""A way that takes 80 ms there and back, or as long as asked for, without root: a relay in front of a port, which holds
what passes.

Owns the delay. As over a real way, a connection stands at its far end before the first bytes come: a round trip later.
"""

import asyncio
import contextlib
import threading
import time

ROUND_TRIP_S = 0.080
READ_BYTES = 256 * 1024


class FarAway:
    """Relays, in a thread of their own."""

    def __init__(self, round_trip_s: float = ROUND_TRIP_S) -> None:
        self._round_trip_s = round_trip_s
        self._standing: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def lead(self, port: int, host: str = "127.0.0.1") -> int:
        """A port that leads to this one, so far away."""
        return asyncio.run_coroutine_threadsafe(self._open(host, port), self._loop).result()

    def cut(self) -> None:
        """Every connection that stands breaks, at both ends at once; new ones can be made."""
        self._loop.call_soon_threadsafe(lambda: [writer.transport.abort() for writer in list(self._standing)])

    async def _open(self, host: str, port: int) -> int:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(self._round_trip_s / 2)
            try:
                far = await asyncio.open_connection(host, port)
            except OSError:
                writer.close()
                return
            stands_at, ends = time.monotonic() + self._round_trip_s, {writer, far[1]}
            self._standing |= ends
            there = self._carry(reader, far[1], stands_at)
            await asyncio.gather(there, self._carry(far[0], writer, 0.0))
            self._standing -= ends

        server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=1024)
        chosen: int = server.sockets[0].getsockname()[1]
        return chosen

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, not_before: float) -> None:
        """Each portion half a round trip after it came; what is on its way does not hold up what follows."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            data = b"-"
            while data:
                due, data = await waiting.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                writer.write(data)
                await writer.drain()

        delivering = asyncio.ensure_future(deliver())
        data = b"-"
        with contextlib.suppress(OSError):
            while data:
                data = await reader.read(READ_BYTES)
                waiting.put_nowait((max(not_before, time.monotonic() + self._round_trip_s / 2), data))
        if data:
            waiting.put_nowait((0.0, b""))
        with contextlib.suppress(OSError):
            await delivering
        with contextlib.suppress(OSError):
            writer.close()
