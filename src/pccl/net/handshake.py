"""The opening of a lane: preamble and hello from the end that dialled, preamble and answer back.

Reads not one byte beyond: what follows belongs to the data plane. Must not know who is welcome.
"""

import asyncio
import socket
from typing import NoReturn

from msgspec.structs import replace

from pccl.core.messages.lanes import LaneAnswer, LaneHello
from pccl.dataplane.connection import Connection
from pccl.wire.codec import decode_between, encode
from pccl.wire.framing import (
    HEADER_BYTES,
    HELLO_FRAME_MAX,
    PREAMBLE_BYTES,
    Purpose,
    WireError,
    WrongVersion,
    frame,
    frame_length,
    parse_preamble,
    parse_refusal,
    preamble,
    refusal,
)

_REASON_MAX = 500
"""Characters of a refusal's reason, which must fit into one frame of `HELLO_FRAME_MAX`."""


async def dial(sock: socket.socket, hello: LaneHello) -> LaneAnswer:
    """Offer a lane on a connected socket. Raises `OSError` or `WireError`."""
    await send_all(sock, preamble(Purpose.LANE) + frame(encode(hello)))
    if await read_preamble(sock) is not Purpose.LANE:
        raise WireError(f"the other end is not a peer that takes such lanes; it says: {await read_refusal(sock)}")
    return await read_answer(sock)


async def read_hello(sock: socket.socket) -> LaneHello:
    """The hello of the end that dialled us. Raises `OSError` or `WireError`; an end that a reason can help has got one
    by then."""
    purpose = await read_purpose(sock)
    if purpose in (Purpose.SECURE_LANE, Purpose.PROVED_LANE):
        words = "this peer takes part in a run without a secret, and has nothing to prove itself with"
        await say(sock, preamble(Purpose.LANE) + frame(words.encode()))
        raise WireError("a lane that wants proof, in a run without security")
    if purpose is not Purpose.LANE:
        await turn_away_control(sock, Purpose.LANE)
    return await read_lane_hello(sock)


def answer(connection: Connection, reply: LaneAnswer, head: bytes = b"") -> None:
    """Answer an offer. A few hundred bytes as the first ones of a connection always fit the kernel's buffer."""
    data = head + frame(encode(replace(reply, reason=reply.reason[:_REASON_MAX])))
    if connection.send(data) != len(data):
        raise ConnectionError("the kernel did not take a few hundred bytes")


# ── parts of it ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def read_preamble(sock: socket.socket) -> Purpose:
    """Of the end that was dialled. Raises `WireError`, with its words if it is of another version."""
    head = await read_exactly(sock, PREAMBLE_BYTES)
    try:
        return parse_preamble(head)
    except WrongVersion as error:
        raise WireError(f"{error}; it says: {await read_refusal(sock)}") from None


async def read_purpose(sock: socket.socket) -> Purpose:
    """Of the end that dialled; one of another version is told so. Raises `WireError`."""
    head = await read_exactly(sock, PREAMBLE_BYTES)
    try:
        return parse_preamble(head)
    except WrongVersion as error:
        await say(sock, refusal(f"the peer refuses this lane: seen from this peer, {error}"))
        raise


async def turn_away_control(sock: socket.socket, ours: Purpose) -> NoReturn:
    """What was dialled was meant for a master."""
    words = "this is the port of a peer, for lanes only: the master has another address"
    await say(sock, preamble(ours) + frame(words.encode()))
    raise WireError("a control connection to the port of a peer")


async def read_lane_hello(connection: Connection) -> LaneHello:
    """The first frame of the end that dialled."""
    hello = decode_between(await _read_frame(connection))
    if not isinstance(hello, LaneHello):
        raise WireError("the first message is not the hello of a lane")
    return hello


async def read_answer(connection: Connection) -> LaneAnswer:
    """The first frame of the end that was dialled."""
    reply = decode_between(await _read_frame(connection))
    if not isinstance(reply, LaneAnswer):
        raise WireError("the other end answered with something else than an answer to the offer of a lane")
    return reply


async def read_refusal(sock: socket.socket) -> str:
    """Why the other end does not go on, in its words."""
    return parse_refusal(await _read_frame(sock))


async def _read_frame(connection: Connection) -> bytes:
    header = await read_exactly(connection, HEADER_BYTES)
    return await read_exactly(connection, frame_length(header, HELLO_FRAME_MAX))


async def read_exactly(connection: Connection, count: int) -> bytes:
    """So many bytes. Raises `OSError`."""
    data = bytearray()
    while len(data) < count:
        try:
            portion = connection.recv(count - len(data))
        except (BlockingIOError, InterruptedError):
            await ready(connection, True)
            continue
        if not portion:
            raise ConnectionError(f"the connection was closed after {len(data)} of {count} bytes")
        data += portion
    return bytes(data)


async def send_all(connection: Connection, data: bytes) -> None:
    """All of it. Raises `OSError`."""
    while data:
        try:
            data = data[connection.send(data) :]
        except (BlockingIOError, InterruptedError):
            await ready(connection, False)


async def ready(connection: Connection, to_read: bool) -> None:
    """Until the descriptor can go on."""
    loop = asyncio.get_running_loop()
    change: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_reader, loop.remove_reader) if to_read else (loop.add_writer, loop.remove_writer)
    descriptor = connection.fileno()
    add(descriptor, lambda: None if change.done() else change.set_result(None))
    try:
        await change
    finally:
        remove(descriptor)


async def say(sock: socket.socket, data: bytes) -> None:
    """Last words: sent, and then the other end's turn to close, so that no reset overtakes them."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, data)
    sock.shutdown(socket.SHUT_WR)
    while await loop.sock_recv(sock, 4096):
        pass
