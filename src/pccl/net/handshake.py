"""The opening of a lane: preamble and hello from the end that dialled, preamble and answer back.

Reads not one byte beyond: what follows belongs to the data plane. Must not know who is welcome.
"""

import asyncio
import socket

from pccl.core.messages.lanes import LaneAnswer, LaneHello
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
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, preamble(Purpose.LANE) + frame(encode(hello)))
    head = await _read_exactly(sock, PREAMBLE_BYTES)
    try:
        purpose = parse_preamble(head)
    except WrongVersion as error:
        words = parse_refusal(await _read_frame(sock))
        raise WireError(f"{error}; it says: {words}") from None
    if purpose is not Purpose.LANE:
        raise WireError(f"the other end is not a peer; it says: {parse_refusal(await _read_frame(sock))}")
    reply = decode_between(await _read_frame(sock))
    if not isinstance(reply, LaneAnswer):
        raise WireError("the other end answered with something else than an answer to the offer of a lane")
    return reply


async def read_hello(sock: socket.socket) -> LaneHello:
    """The hello of the end that dialled us. Raises `OSError` or `WireError`; an end that a reason can help has got one
    by then."""
    head = await _read_exactly(sock, PREAMBLE_BYTES)
    try:
        purpose = parse_preamble(head)
    except WrongVersion as error:
        await _say(sock, refusal(f"the peer refuses this lane: seen from this peer, {error}"))
        raise
    if purpose is not Purpose.LANE:
        words = "this is the port of a peer, for lanes only: the master has another address"
        await _say(sock, preamble(Purpose.LANE) + frame(words.encode()))
        raise WireError("a control connection to the port of a peer")
    hello = decode_between(await _read_frame(sock))
    if not isinstance(hello, LaneHello):
        raise WireError("the first message is not the hello of a lane")
    return hello


def answer(sock: socket.socket, reply: LaneAnswer) -> None:
    """Answer an offer. A few hundred bytes as the first ones of a connection always fit the kernel's buffer."""
    reply = LaneAnswer(reply.accepted, reply.reason[:_REASON_MAX])
    data = preamble(Purpose.LANE) + frame(encode(reply))
    if sock.send(data) != len(data):
        raise ConnectionError("the kernel did not take a few hundred bytes")


async def _read_frame(sock: socket.socket) -> bytes:
    header = await _read_exactly(sock, HEADER_BYTES)
    return await _read_exactly(sock, frame_length(header, HELLO_FRAME_MAX))


async def _read_exactly(sock: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < count:
        portion = await loop.sock_recv(sock, count - len(data))
        if not portion:
            raise ConnectionError(f"the connection was closed after {len(data)} of {count} bytes")
        data += portion
    return bytes(data)


async def _say(sock: socket.socket, data: bytes) -> None:
    """Last words: sent, and then the other end's turn to close, so that no reset overtakes them."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, data)
    sock.shutdown(socket.SHUT_WR)
    while await loop.sock_recv(sock, 4096):
        pass
