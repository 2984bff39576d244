"""A peer's control connection: to one of its masters, and after that has ended to the next one.

Owns which connection is the present one: what happens on an older one is nobody's business any more. Must not know what
is said, nor when to dial whom.
"""

import asyncio
from collections.abc import Callable, Sequence

from pccl.net.connection import PeerEnd
from pccl.net.dialling import Dialler

Place = tuple[str, int]
"""Host and port of a master."""


class NotOurMaster(Exception):
    """Something listens at the master's address, but it cannot be our master: trying again does not help."""


class Control:
    """The connection to a master. Lives in one event loop."""

    def __init__(
        self,
        masters: Sequence[Place],
        dialler: Dialler,
        on_frame: Callable[[bytes], None],
        on_closed: Callable[[str], None],
    ) -> None:
        self._masters = masters
        self._dialler = dialler
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._end: PeerEnd | None = None
        self._fading: set[PeerEnd] = set()
        """Ended by us; our last word may still be on its way."""
        self._faded = asyncio.Event()
        self._faded.set()

    async def open(self, place: int, timeout_s: float) -> PeerEnd:
        """Connect to this master, from now on the present one. Whether it is ours shows in `greeted`. Raises
        `OSError`."""
        self.close()
        sock = await self._dialler.connect(*self._masters[place], timeout_s)
        end = PeerEnd(lambda body: self._frame(end, body), lambda cause: self._closed(end, cause))
        try:
            await asyncio.get_running_loop().create_connection(lambda: end, sock=sock)
        except BaseException:
            sock.close()
            raise
        if not end.alive:
            end.greeted.cancel()
            # Looked at, too, if it has failed: asyncio complains of a failure that nobody sees.
            cause = None if end.greeted.cancelled() else end.greeted.exception()
            raise ConnectionError("it closed the connection without a word") from cause
        self._end = end
        return end

    async def open_again(self, place: int, timeout_s: float) -> None:
        """The same for one that was there before: if it is not ours, or says nothing, the connection just ends. Raises
        `OSError`."""
        end = await self.open(place, timeout_s)
        silence = asyncio.get_running_loop().call_later(timeout_s, end.fail, f"no answer within {timeout_s:g} s")

        def greeted(answer: "asyncio.Future[str]") -> None:
            silence.cancel()
            if not answer.cancelled() and answer.exception() is None and answer.result():
                end.fail(answer.result())

        end.greeted.add_done_callback(greeted)

    def send(self, body: bytes) -> None:
        """Send one frame, if there is a connection."""
        if self._end is not None:
            self._end.send(body)

    def close(self) -> None:
        """End the connection after what was sent has left; its end is not told."""
        end, self._end = self._end, None
        if end is not None:
            self._fading.add(end)
            self._faded.clear()
            end.close()

    def fail(self, cause: str) -> None:
        """End it at once; that is told."""
        if self._end is not None:
            self._end.fail(cause)

    def stop(self, cause: str) -> None:
        """End everything at once."""
        end, self._end = self._end, None
        for each in (*self._fading, *([end] if end is not None else [])):
            each.fail(cause)

    async def faded(self) -> None:
        """Wait until all that we ended is gone."""
        await self._faded.wait()

    def _frame(self, end: PeerEnd, body: bytes) -> None:
        if self._end is end:
            self._on_frame(body)

    def _closed(self, end: PeerEnd, cause: str) -> None:
        self._fading.discard(end)
        if not self._fading:
            self._faded.set()
        if self._end is end:
            self._end = None
            self._on_closed(cause)
