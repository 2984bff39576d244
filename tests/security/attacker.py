"""One end of a control connection or of a lane that keeps no rule, over real sockets; and a run that it attacks.

Owns how an attacker speaks: in the clear as a stranger, or behind a token. What it says is in the tests.
"""

import contextlib
import socket
import threading

from pccl import Communicator, MasterNode
from pccl.core.fields import Identity
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import Join
from pccl.security import identity, tokens
from pccl.security.control import PeerGuard
from pccl.types import PeerId
from pccl.wire.codec import decode_between, decode_to_peer, encode
from pccl.wire.framing import PREAMBLE_BYTES, TO_PEER_FRAME_MAX, FrameReader, Purpose, frame, preamble
from tests.e2e.test_api import free_port
from tests.patience import HANG_S

EVIL_HOST = "127.0.0.66"
"""Where attackers come from: an address of this machine that no honest peer has."""


class Gone(Exception):
    """The other end has closed the connection; what it said is in `heard`."""


class Attacker:
    """One connection to a master, in the clear or with a token."""

    def __init__(self, port, token="", host=EVIL_HOST):
        self._sock = socket.create_connection(("127.0.0.1", port), HANG_S, source_address=(host, 0))
        self._guard = PeerGuard(tokens.parse(token)) if token else None
        self._reader = FrameReader(TO_PEER_FRAME_MAX)
        self._head = b""
        self._waiting = []
        self.heard = []
        self._send(preamble(Purpose.CONTROL) if self._guard is None else self._guard.outgoing())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._sock.close()

    def say(self, *messages):
        data = b"".join(frame(encode(each)) for each in messages)
        if self._guard is None:
            self._send(data)
        else:
            self._guard.write(data)
            self._send(self._guard.outgoing())

    def hear(self, kind, answers_pings=True):
        """The next message of this kind. Raises `Gone`."""
        while True:
            while not self._waiting:
                self._waiting = [decode_to_peer(body) for body in self._bodies()]
            message = self._waiting.pop(0)
            self.heard.append(message)
            if isinstance(message, Ping) and answers_pings:
                self.say(Pong())
            if isinstance(message, kind):
                return message

    def pong_for_ever(self):
        """Answer pings and say nothing else, until the connection ends."""

        def answer():
            with contextlib.suppress(Gone, OSError, ValueError):
                self.hear(())

        threading.Thread(target=answer, daemon=True).start()

    def _bodies(self):
        try:
            data = self._sock.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            raise Gone(self.heard)
        missing = PREAMBLE_BYTES - len(self._head)
        self._head, data = self._head + data[:missing], data[missing:]
        if len(self._head) < PREAMBLE_BYTES:
            return []
        if self._guard is not None:
            data = self._guard.feed(data)
            self._send(self._guard.outgoing())
        elif self._head != preamble(Purpose.CONTROL):
            raise Gone("a refusal, in words")
        return list(self._reader.feed(data))

    def _send(self, data):
        with contextlib.suppress(ConnectionError):
            self._sock.sendall(data)


def join(number=1, group=0, **facts):
    """A greeting of a made-up peer, whose id belongs to its secret."""
    secret = f"{number:032x}"
    return Join(
        Identity(PeerId(identity._id_of(secret)), group, **{"host": "", "port": 9, "lanes": 0, **facts}, secret=secret),
        1,
    )


class LaneOffer:
    """A lane that is offered in the clear by a stranger."""

    def __init__(self, port, hello):
        self._sock = socket.create_connection(("127.0.0.1", port), HANG_S, source_address=(EVIL_HOST, 0))
        self._sock.sendall(preamble(Purpose.LANE) + frame(encode(hello)))
        self._heard = b""
        self.close = self._sock.close

    def accepted(self, timeout_s=HANG_S):
        """Whether the answer says so; None if none has come by then, or ever will."""
        self._sock.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while data := self._sock.recv(4096):
                self._heard += data
                bodies = list(FrameReader(4096).feed(self._heard[PREAMBLE_BYTES:]))
                if bodies:
                    return decode_between(bodies[0]).accepted
        return None


class Run:
    """A master with a secret or without, and honest peers of it."""

    def __init__(self, stack, secret="", follows=False, **limits):
        self._stack = stack
        port = free_port() if follows else 0
        self.limits, self.secret = {"newborn_s": 0.1, **limits}, secret
        self.master = stack.enter_context(MasterNode(f"127.0.0.1:{port}", secret=secret, **self.limits))
        self.port, self.token = self.master.port, self.master.token

    def peer(self, name, address="", **more):
        """One that is not connected."""
        given = {"listen": "127.0.0.1", "token": self.token or None, "name": name, **more}
        peer = Communicator(address or f"127.0.0.1:{self.port}", **given)
        self._stack.callback(peer.close)
        return peer

    def attacker(self, token="", host=EVIL_HOST):
        return self._stack.enter_context(Attacker(self.port, token, host))

    def restart(self):
        """Another master at the same port, with the same secret."""
        self.master.interrupt()
        self.master = MasterNode(f"127.0.0.1:{self.port}", secret=self.secret, **self.limits)
        self.master.run()
        self._stack.callback(self.master.interrupt)


def lane_port(peer):
    return peer._membership._shell._lanes._listener.port
