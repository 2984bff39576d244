"""The other side of `floods.py`: connections that come from 127.0.0.2 without end, and go as far as they get.

Owns what each kind of flood sends.
"""

import contextlib
import secrets
import socket
import time
from collections import deque

from pccl.core.fields import Identity
from pccl.core.messages.both import Ping
from pccl.core.messages.to_master import Join
from pccl.security import control, identity, proofs, tls, tokens
from pccl.security.control import PeerGuard
from pccl.security.tokens import CLAIM_BYTES, Claim, Role, Token
from pccl.types import PeerId
from pccl.wire.codec import encode
from pccl.wire.framing import Purpose, frame, preamble

KEPT = 4000
"""Connections of the flood that stay open, at most: four times as many as a master keeps."""
FLOOD_ADDRESS = "127.0.0.2"


def needs_a_token(how: str) -> bool:
    """A stranger gets no further than the knock; and at a peer a token does not help."""
    return how in ("tls", "finished", "pings")


def flood(port: int, kind: tuple[str, str], token: str, rate: float, seconds: float) -> None:
    """Of a kind at a master or a peer, in a process of its own; prints how many connections, or pings, there were in a
    second."""
    at, how = kind
    parsed = tokens.parse(token) if token else None
    if how == "pings":
        print(_ping(port, parsed, seconds), flush=True)
        return
    began, made, kept = time.monotonic(), 0, deque[socket.socket]()
    half = _Half(kept)
    while (elapsed := time.monotonic() - began) < seconds:
        if made > rate * elapsed:
            half.go_on()
            time.sleep(0.002)
            continue
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((FLOOD_ADDRESS, 0))
        with contextlib.suppress(BlockingIOError):
            sock.connect(("127.0.0.1", port))
        made += 1
        kept.append(sock)
        if how == "finished" and parsed is not None:
            half.begin(sock, parsed)
        else:
            with contextlib.suppress(OSError):
                sock.send(_first_bytes(how, parsed) if at == "master" else _first_of_lane(how, parsed))
        if len(kept) > KEPT:
            kept.popleft().close()
    print(made / seconds, flush=True)


def _first_bytes(how: str, token: Token | None) -> bytes:
    head = preamble(Purpose.CONTROL if token is None else Purpose.CONTROL_TLS)
    match how:
        case "half":
            return head + b"\xff\x0f\x00\x00half"
        case "knock":
            claim = Claim(Role.PEER, secrets.token_bytes(6))
            return head + claim.pack() + secrets.token_bytes(control.KNOCK_BYTES - CLAIM_BYTES) + _CLIENT_HELLO
        case "tls" if token is not None:
            return head + control.knock(token.claim, token.key, secrets.token_bytes(16)) + _CLIENT_HELLO
    return b""


def _first_of_lane(how: str, token: Token | None) -> bytes:
    """What a stranger sends to the port of a peer, where lanes are offered. A token does not help there."""
    head = preamble(Purpose.LANE if token is None else Purpose.SECURE_LANE)
    knock = proofs.knock(secrets.token_bytes(32), head, secrets.randbelow(64)).pack()
    match how:
        case "half":
            return head + (b"\xff\x0f\x00\x00half" if token is None else knock[: len(knock) // 2])
        case "knock":
            return head + knock + _CLIENT_HELLO
    return b""


def _client_hello() -> bytes:
    return tls.Pipe(tls.dialling_context(), accepts=False).outgoing()


_CLIENT_HELLO = _client_hello()
"""The same for all: whoever floods need not compute."""


class _Half:
    """Connections in the middle of a handshake, which is finished; the proof is never sent."""

    def __init__(self, kept: deque[socket.socket]) -> None:
        self._kept = kept
        self._open: list[tuple[socket.socket, tls.Pipe]] = []

    def begin(self, sock: socket.socket, token: Token) -> None:
        pipe = tls.Pipe(tls.dialling_context(), accepts=False)
        head = preamble(Purpose.CONTROL_TLS) + control.knock(token.claim, token.key, secrets.token_bytes(16))
        with contextlib.suppress(OSError):
            sock.send(head + pipe.outgoing())
        self._open.append((sock, pipe))

    def go_on(self) -> None:
        waiting, self._open = self._open, []
        for sock, pipe in waiting:
            try:
                data = sock.recv(4096)
                pipe.feed(data[8:])
                sock.send(pipe.outgoing())
            except BlockingIOError:
                self._open.append((sock, pipe))
            except (OSError, tls.NotProven):
                continue


def _ping(port: int, token: Token | None, seconds: float) -> float:
    """Eight connections that join, and ping for as long as they are let. How many pings in a second."""
    burst = frame(encode(Ping())) * 1000
    ends = [_Pinger(port, token) for _ in range(8)]
    until_s, sent = time.monotonic() + seconds, 0
    while time.monotonic() < until_s:
        sent += sum(end.send(burst) for end in ends)
        time.sleep(0.001)
    return sent * 1000 / seconds


class _Pinger:
    """One of them."""

    def __init__(self, port: int, token: Token | None) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), source_address=(FLOOD_ADDRESS, 0))
        peer, secret = identity.draw()
        security = {"pin": bytes(32), "lane_tls": "on"} if token is not None else {}
        join = frame(encode(Join(Identity(PeerId(peer), 0, "", 1234, 0, secret=secret, **security), 1)))  # type: ignore[arg-type]
        self._guard = PeerGuard(token) if token is not None else None
        self._waiting = preamble(Purpose.CONTROL) if self._guard is None else b""
        self._seal(join)
        self._sock.setblocking(False)
        self._opened = self._guard is None
        self._greeted = 0

    def _seal(self, data: bytes) -> None:
        if self._guard is None:
            self._waiting += data
        else:
            self._guard.write(data)
            self._waiting += self._guard.outgoing()

    def send(self, burst: bytes) -> bool:
        """True if another burst was begun."""
        with contextlib.suppress(OSError, tls.NotProven):
            data = self._sock.recv(65536)
            if self._guard is not None and data:
                missing = max(0, 8 - self._greeted)
                self._greeted += len(data)
                self._guard.feed(data[missing:])
                self._waiting += self._guard.outgoing()
                self._opened = self._guard.open
        begun = self._opened and not self._waiting
        if begun:
            self._seal(burst)
        with contextlib.suppress(OSError):
            self._waiting = self._waiting[self._sock.send(self._waiting) :]
        return begun
