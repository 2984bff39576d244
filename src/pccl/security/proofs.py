"""What the two ends of a lane prove to each other: pure functions of the key of their link and of what both know.

Owns knock and proofs, byte by byte. Must not know connections, nor who is welcome.

The key is fresh for every link, and the master gives it to both ends and to no other peer. The **knock** shows before
anything is computed that the other end has it; it can be recorded and sent again, so it opens nothing by itself. The
**proofs** count: they are bound to the run, the link, the lane, both peers and what only this connection has, which is
the listener's certificate under TLS, and without TLS a nonce of each end.
"""

import hmac
import secrets
import struct
from typing import NamedTuple

from pccl.core.messages.lanes import LaneHello
from pccl.security.tokens import same

KEY_BYTES = 32
NONCE_BYTES = 16
_MAC_BYTES = 16
"""Of a knock, which a stranger may try again and again, once a connection: half of a digest is far out of reach."""

_KNOCK = struct.Struct(f"<Q{NONCE_BYTES}s{_MAC_BYTES}s")
KNOCK_BYTES = _KNOCK.size


class Knock(NamedTuple):
    """What the end that dials sends first, behind its preamble."""

    link: int
    """Which key is meant; no secret."""
    nonce: bytes
    mac: bytes

    def pack(self) -> bytes:
        """As it goes over the wire."""
        return _KNOCK.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> "Knock":
        """As it came: `KNOCK_BYTES` of anything."""
        return cls(*_KNOCK.unpack(data))

    def fits(self, key: bytes, preamble: bytes) -> bool:
        """It was made with this key, for a connection with this preamble."""
        return same(self.mac, _knock_mac(key, preamble, self.link, self.nonce))


def knock(key: bytes, preamble: bytes, link: int) -> Knock:
    """A fresh one, for a connection with this preamble."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return Knock(link, nonce, _knock_mac(key, preamble, link, nonce))


def proof_of_dialler(key: bytes, hello: LaneHello, bound: bytes) -> bytes:
    """`LaneHello.proof`. `bound`: what only this connection has."""
    return _proof(b"pccl lane dialler", key, hello, bound)


def proof_of_listener(key: bytes, hello: LaneHello, bound: bytes) -> bytes:
    """`LaneAnswer.proof`: the answer to this hello."""
    return _proof(b"pccl lane listener", key, hello, bound)


def bound_by_nonces(dialler: bytes, listener: bytes, pin: bytes) -> bytes:
    """What only this connection has, without TLS: the nonces of both ends; and whose it is meant to be."""
    return _joined(dialler, listener, pin)


def _knock_mac(key: bytes, preamble: bytes, link: int, nonce: bytes) -> bytes:
    return hmac.digest(key, _joined(b"pccl lane knock", preamble, _number(link), nonce), "sha256")[:_MAC_BYTES]


def _proof(label: bytes, key: bytes, hello: LaneHello, bound: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"the key of a link must have {KEY_BYTES} bytes, got {len(key)}")
    ends = hello.run.encode(), _number(hello.link), _number(hello.lane), hello.sender.encode(), hello.receiver.encode()
    return hmac.digest(key, _joined(label, *ends, bound), "sha256")


def _joined(*parts: bytes) -> bytes:
    """Each behind its length: no two lists of parts have the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")
