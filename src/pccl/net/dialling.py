"""Dialling: names are looked up once for all connections of a moment, and the addresses of a name tried in turn.

Owns the threads that wait for name servers. Must not know what is sent on a connection.
"""

import asyncio
import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable

from pccl.net import sockets
from pccl.net.sockets import Resolved, SocketAddress

NAME_KEPT_S = 3.0
"""An answer of a name server serves this long: all lanes of a link, dialled in the same instant, ask once, and a name
that moved to another address is found there by the next link. Failures are not kept at all."""

Order = Callable[[list[Resolved]], list[Resolved]]
"""Which of the addresses of a name are tried first."""


class Dialler:
    """Makes connections. Lives in one event loop."""

    def __init__(self, connection_dead_s: float, name_kept_s: float = NAME_KEPT_S) -> None:
        self._connection_dead_s = connection_dead_s
        self._name_kept_s = name_kept_s
        self._asked: dict[tuple[str, int], asyncio.Future[list[Resolved]]] = {}
        """Questions to name servers that are open, and answers that still serve."""

    async def connect(self, host: str, port: int, timeout_s: float, order: Order = list) -> socket.socket:
        """A connected socket to the first address of `host`, in this order, that answers. Raises `OSError`
        (`TimeoutError` is one)."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        async with asyncio.timeout_at(give_up):
            addresses = order(await self._resolve(host, port))
        failure: OSError = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
        for position, (family, address) in enumerate(addresses):
            # An address that swallows everything must not eat the time of the next one.
            share = (give_up - loop.time()) / (len(addresses) - position)
            try:
                return await self._connect_one(family, address, share)
            except TimeoutError:
                failure = TimeoutError(errno.ETIMEDOUT, f"no answer within {share:.1f} s")
            except OSError as error:
                failure = error
        raise failure

    async def _connect_one(
        self, family: socket.AddressFamily, address: SocketAddress, timeout_s: float
    ) -> socket.socket:
        sock = sockets.make(family, self._connection_dead_s)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, address)
        except TimeoutError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            # asyncio's text repeats the address and leaves out what happened.
            raise OSError(error.errno, os.strerror(error.errno or 0)) from error
        except BaseException:  # Also when cancelled: this is the only reference to the socket.
            sock.close()
            raise
        return sock

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _resolve(self, host: str, port: int) -> list[Resolved]:
        try:
            return sockets.look_up(host, port, socket.AI_NUMERICHOST)
        except OSError:
            pass  # A name: it has to be asked for.
        answer = self._asked.get((host, port)) or self._ask(host, port)
        # A connection that is given up must not take the answer away from the others.
        return await asyncio.shield(answer)

    def _ask(self, host: str, port: int) -> "asyncio.Future[list[Resolved]]":
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Resolved]] = loop.create_future()
        # Looked at even if all that asked have given up: asyncio complains of a failure that is never looked at.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())

        def ask() -> None:
            addresses, failure = None, None
            try:
                addresses = sockets.look_up(host, port, 0)
            except OSError as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # The loop has ended: no dial waits for this any more.
                loop.call_soon_threadsafe(self._settle, (host, port), addresses, failure)

        # A daemon, not asyncio's executor: that one makes the interpreter's exit wait for a name server that is silent.
        try:
            threading.Thread(target=ask, name="pccl-resolve", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, f"no thread to ask for the address of {host}: {error}") from error
        self._asked[host, port] = answer
        return answer

    def _settle(self, name: tuple[str, int], addresses: list[Resolved] | None, failure: OSError | None) -> None:
        answer = self._asked[name]
        if addresses is None:
            del self._asked[name]
            answer.set_exception(failure or OSError(errno.EADDRNOTAVAIL, f"{name[0]} has no address"))
        else:
            asyncio.get_running_loop().call_later(self._name_kept_s, self._asked.pop, name)
            answer.set_result(addresses)
