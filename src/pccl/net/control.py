"""A peer's control connection: to its master, and after that has ended to the one that takes its place.

Owns which connection is the present one: what happens on an older one is ignored. Must not know what is sent, nor when
to dial.
"""

import asyncio
import socket
from collections.abc import Callable

from pccl.net.dialling import Dialler
from pccl.net.peer_end import PeerEnd
from pccl.net.sockets import Resolved, SocketAddress
from pccl.security.control import MakeGuard

Place = tuple[str, int]
"""Host and port of the master. The host is a name that may have several addresses, others from dial to dial."""


class NotOurMaster(Exception):
    """Something listens at the master's address, but it cannot be our master: trying again does not help."""


class Addresses:
    """Which of the addresses behind the master's name are tried first."""

    def __init__(self) -> None:
        self._known: list[SocketAddress] = []
        """Of the last dial."""
        self._last: SocketAddress | None = None
        """The one that last answered as our master."""
        self._strange: set[SocketAddress] = set()
        """Where something took the connection and did not answer as our master."""

    def order(self, addresses: list[Resolved]) -> list[Resolved]:
        """The one that last answered, then those that are not known, then those that did not answer as our master."""
        self._known = [address for _, address in addresses]
        return sorted(addresses, key=lambda each: (each[1] in self._strange, each[1] != self._last))

    def answered(self, address: SocketAddress) -> None:
        """Our master is there."""
        self._last = address
        self._strange.clear()

    def passed_over(self, address: SocketAddress) -> None:
        """Something else is there, or what is there does not answer."""
        self._strange.add(address)

    @property
    def strange(self) -> int:
        """At how many of those that are known it is not."""
        return sum(address in self._strange for address in self._known)

    @property
    def left(self) -> int:
        """At how many of them it may be."""
        return len(self._known) - self.strange


class Control:
    """The connection to a master. Lives in one event loop."""

    def __init__(
        self,
        master: Place,
        dialler: Dialler,
        on_frame: Callable[[bytes], None],
        on_closed: Callable[[str], None],
        make_guard: MakeGuard | None = None,
    ) -> None:
        self._master = master
        self._make_guard = make_guard
        self.addresses = Addresses()
        self._dialler = dialler
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._end: PeerEnd | None = None
        self._fading: set[PeerEnd] = set()
        """Ended by us; our last message may still be on its way."""
        self._faded = asyncio.Event()
        self._faded.set()

    async def open(self, timeout_s: float) -> PeerEnd:
        """Connect to what is behind the master's name now. Whether it is ours shows in `greeted`. Raises `OSError`."""
        self.close()
        sock = await self._dialler.connect(*self._master, timeout_s, self.addresses.order)
        address = _other_end(sock)
        try:
            guard = self._make_guard(self._master[0]) if self._make_guard is not None else None
            end = PeerEnd(lambda body: self._frame(end, body), lambda cause: self._closed(end, cause), guard)
            await asyncio.get_running_loop().create_connection(lambda: end, sock=sock)
        except BaseException:
            sock.close()
            raise
        if not end.alive:
            end.greeted.cancel()
            # Looked at, too, if it has failed: asyncio complains of a failure that is never looked at.
            cause = None if end.greeted.cancelled() else end.greeted.exception()
            raise ConnectionError("it closed the connection without an answer") from cause
        self._end = end
        end.greeted.add_done_callback(lambda answer: self._judge(address, answer))
        return end

    def _judge(self, address: SocketAddress | None, answer: "asyncio.Future[str]") -> None:
        """What is at an address has shown whether it is our master."""
        if address is not None:
            ours = not answer.cancelled() and answer.exception() is None and not answer.result()
            (self.addresses.answered if ours else self.addresses.passed_over)(address)

    async def open_again(self, timeout_s: float) -> None:
        """The same for one that was there before: if it is not ours, or does not answer, the connection just ends.
        Raises `OSError`."""
        end = await self.open(timeout_s)
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
        """End the connection after what was sent has left; its end is not reported."""
        end, self._end = self._end, None
        if end is not None:
            self._fading.add(end)
            self._faded.clear()
            end.close()

    def fail(self, cause: str) -> None:
        """End it at once; that is reported."""
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


def _other_end(sock: socket.socket) -> SocketAddress | None:
    """Where a socket is connected to; None if that has ended already."""
    try:
        address: SocketAddress = sock.getpeername()
    except OSError:
        return None
    return address
