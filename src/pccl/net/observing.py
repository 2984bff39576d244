"""Asking a master as an observer: one question, one connection, one answer.

Owns the connection and what went wrong with it, by phase. Must not know what the answer is for.
"""

import asyncio
import socket

from pccl.config import Address
from pccl.core.messages.observers import ToObserver
from pccl.core.messages.to_master import FromObserver
from pccl.core.messages.to_peer import Kick
from pccl.net.dialling import Dialler
from pccl.net.peer_end import PeerEnd
from pccl.net.sockets import in_words
from pccl.security.control import MakeGuard
from pccl.wire.codec import decode_to_observer, encode
from pccl.wire.framing import WireError


class Unreachable(Exception):
    """There was no answer."""

    def __init__(self, phase: str, cause: str) -> None:
        super().__init__(cause)
        self.phase = phase
        """`resolve`: the name has no address; `connect`: no program takes the connection; `answer`: one did, and no
        answer came; `door`: what answers does not let us in, or has not proved to be the master; `protocol`: it is no
        master of this release; `refused`: it is, and does not answer."""


async def resolve(address: Address, timeout_s: float) -> list[str]:
    """The addresses behind a name."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise Unreachable("resolve", f"no name server answered within {timeout_s:g} s") from None
    except OSError as error:
        raise Unreachable("resolve", in_words(error)) from error
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def ask(
    address: Address, question: FromObserver, timeout_s: float, make_guard: MakeGuard | None = None
) -> ToObserver:
    """The master's answer. Raises `Unreachable`."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + timeout_s
    try:
        sock = await Dialler(timeout_s).connect(address.host, address.port, timeout_s)
    except socket.gaierror as error:
        raise Unreachable("resolve", in_words(error)) from error
    except OSError as error:
        raise Unreachable("connect", in_words(error) or f"no answer within {timeout_s:g} s") from error
    body: asyncio.Future[bytes] = loop.create_future()

    def closed(cause: str) -> None:
        if not body.done():
            body.set_exception(ConnectionError(cause))

    try:
        guard = make_guard(address.host) if make_guard is not None else None
    except BaseException:
        sock.close()
        raise
    end = PeerEnd(lambda each: None if body.done() else body.set_result(each), closed, guard)
    body.add_done_callback(lambda done: done.cancelled() or done.exception())
    end.greeted.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        async with asyncio.timeout_at(give_up):
            await loop.create_connection(lambda: end, sock=sock)
            end.send(encode(question))
            refusal = await end.greeted
            if refusal:
                raise Unreachable("door", refusal)
            answer = decode_to_observer(await body)
    except TimeoutError:
        raise Unreachable("answer", f"it took the connection, and sent nothing within {timeout_s:g} s") from None
    except OSError as error:
        raise Unreachable("answer", in_words(error) or str(error)) from error
    except WireError as error:
        raise Unreachable("protocol", str(error)) from error
    finally:
        end.fail("done")
        if not end.alive:
            sock.close()
    if isinstance(answer, Kick):
        raise Unreachable("refused", answer.reason)
    return answer
