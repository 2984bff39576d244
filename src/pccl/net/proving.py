"""The opening of a lane in a run with security: both ends prove that the master has sent them, under TLS or without.

Reads not one byte beyond, and never falls back to less, whatever the other end says. Must not know who is welcome: the
keys come from the core.

    dialler    preamble · knock · TLS                            listener   preamble · TLS
               … · hello with its proof                                     answer with its proof

With certificates of an own CA (`security/authority.py`) both ends show theirs in the handshake, each must be one of a
peer, and the proofs are bound to both; with tokens the listener shows one that it has made itself and announced.

With `lane_tls="off"` nonces take the place of the handshake, and what follows the answer is plain:

    dialler    preamble · knock                                  listener   preamble · nonce
               hello with its proof                                         answer with its proof
"""

import asyncio
import secrets
import socket
from dataclasses import dataclass
from selectors import EVENT_READ
from typing import NamedTuple

from msgspec.structs import replace

from pccl.core.effects.peer_effects import Dial
from pccl.core.fields import LaneTls
from pccl.core.messages.lanes import LaneAnswer, LaneHello
from pccl.dataplane.connection import Connection, Secured, Tls
from pccl.net import handshake
from pccl.security import proofs
from pccl.security.authority import no_peer
from pccl.security.certificate import pin_of
from pccl.security.lanes import CertifiedLanes
from pccl.security.proofs import KNOCK_BYTES, NONCE_BYTES, Knock
from pccl.security.tls import NotProven
from pccl.security.tokens import same
from pccl.wire.codec import encode
from pccl.wire.framing import Purpose, WireError, frame, preamble

NONCES_MAX = 4096
"""Knocks that a link remembers: four times the lanes that it may have. Who knocks more often has recorded some."""

_SETTING = {Purpose.SECURE_LANE: "'on'", Purpose.PROVED_LANE: "'off'"}


@dataclass(frozen=True)
class LaneSecurity:
    """What a peer proves itself with on its lanes."""

    pin: bytes
    """Of its certificate, which it has announced to the master."""
    tls: Tls | None
    """None: `lane_tls="off"`, for private networks."""
    certified: CertifiedLanes[Tls] | None = None
    """With an own CA, what takes the place of `tls`."""

    @property
    def lane_tls(self) -> LaneTls:
        """The setting, which must be the same on all peers."""
        return "off" if self.tls is None else "on"

    @property
    def purpose(self) -> Purpose:
        """Of its lanes."""
        return Purpose.PROVED_LANE if self.tls is None else Purpose.SECURE_LANE

    def seal(self, sock: socket.socket, tls: Tls, dials: bool, first: bytes) -> tuple[Secured, bytes]:
        """TLS on a connected socket, and the pin of the certificate that we show on it. Raises `OSError`."""
        own, present = (self.pin, tls) if self.certified is None else self.certified.present()
        return present.wrap(sock, dials, first), own

    def bound(self, listener: bytes, dialler: bytes) -> bytes:
        """What only a connection between these two has, by the pins of what they have shown."""
        return listener if self.certified is None else listener + dialler

    def judge(self, connection: Secured) -> bytes:
        """The pin of what the other end has shown. Raises `WireError` if our CA does not call it a peer."""
        shown = connection.certificate()
        if self.certified is not None:
            try:
                why = no_peer(shown)
            except NotProven as error:
                why = str(error)
            if why:
                raise WireError(f"only a peer may have a lane: {why}")
        return pin_of(shown)


class Offer(NamedTuple):
    """A lane that waits for an answer."""

    sock: socket.socket
    connection: Connection
    hello: LaneHello
    proof: bytes = b""
    """For the answer."""


class Keys:
    """Of the links on which others dial us. Lives in one event loop."""

    def __init__(self) -> None:
        self._keys: dict[int, bytes] = {}
        self._nonces: dict[int, set[bytes]] = {}
        """Of the knocks that there were: each opens once."""
        self._changed = asyncio.Event()

    def expect(self, link: int, key: bytes) -> None:
        """Lanes of this link must prove this key from now on; there are none any more if it is empty."""
        self._keys.pop(link, None)
        self._nonces.pop(link, None)
        if key:
            self._keys[link], self._nonces[link] = key, set()
        self._changed.set()
        self._changed = asyncio.Event()

    async def opened_by(self, knock: Knock, head: bytes) -> bytes:
        """The key that this knock was made with, once it is known: the other end may have been told of the link before
        us. Waits until it is cancelled, like that of any connection that has not said who it is. Raises `WireError`."""
        while knock.link not in self._keys:
            await self._changed.wait()
        key, nonces = self._keys[knock.link], self._nonces[knock.link]
        if not knock.fits(key, head):
            raise WireError("it does not know the key of the link that it names")
        if knock.nonce in nonces or len(nonces) >= NONCES_MAX:
            raise WireError("it has knocked before: these bytes are a recording")
        nonces.add(knock.nonce)
        return key


# ── the end that dials ───────────────────────────────────────────────────────────────────────────────────────────────


async def dial(sock: socket.socket, effect: Dial, security: LaneSecurity) -> tuple[Connection, LaneAnswer]:
    """Offer a lane on a connected socket. Raises `OSError` or `WireError`."""
    if not effect.key or not effect.pin:
        raise WireError("the master has given no key or pin for this link: it has no secret, or the other peer none")
    head = preamble(security.purpose)
    knock = proofs.knock(effect.key, head, effect.hello.link)
    if security.tls is None:
        connection, bound = await _exchange_nonces(sock, head, knock, effect.pin)
    else:
        connection, bound = await _connect(sock, security, security.tls, head + knock.pack(), effect.pin)
    hello = replace(effect.hello, proof=proofs.proof_of_dialler(effect.key, effect.hello, bound))
    await handshake.send_all(connection, frame(encode(hello)))
    reply = await handshake.read_answer(connection)
    if not same(reply.proof, proofs.proof_of_listener(effect.key, hello, bound)):
        raise WireError("its answer does not prove that it knows the key of this link")
    return connection, reply


async def _connect(
    sock: socket.socket, security: LaneSecurity, tls: Tls, first: bytes, pin: bytes
) -> tuple[Connection, bytes]:
    connection, own = security.seal(sock, tls, True, first)
    connection.hello()
    await _read_preamble(sock, Purpose.SECURE_LANE)
    await _shake(connection)
    shown = security.judge(connection)
    # A certificate of a CA may have been renewed since it was announced; the proof in the answer is bound to this one.
    if security.certified is None and not same(shown, pin):
        raise WireError("it shows another certificate than the peer that is meant: it is another one")
    return connection, security.bound(shown, own)


async def _exchange_nonces(sock: socket.socket, head: bytes, knock: Knock, pin: bytes) -> tuple[Connection, bytes]:
    await handshake.send_all(sock, head + knock.pack())
    await _read_preamble(sock, Purpose.PROVED_LANE)
    nonce = await handshake.read_exactly(sock, NONCE_BYTES)
    return sock, proofs.bound_by_nonces(knock.nonce, nonce, pin)


async def _read_preamble(sock: socket.socket, ours: Purpose) -> None:
    theirs = await handshake.read_preamble(sock)
    if theirs is not ours:
        words = await handshake.read_refusal(sock)
        raise WireError(f"it takes no lanes like ours (lane_tls={_SETTING[ours]} here); it says, unproved: {words}")


# ── the end that is dialled ──────────────────────────────────────────────────────────────────────────────────────────


async def read_hello(sock: socket.socket, keys: Keys, security: LaneSecurity) -> Offer:
    """The hello of the end that dialled us, which has proved itself. Raises `OSError` or `WireError`; an end that a
    reason can help has got one by then. A stranger gets none, and not one computation of TLS."""
    purpose = await handshake.read_purpose(sock)
    if purpose is not security.purpose:
        await _turn_away(sock, purpose, security.purpose)
    head = preamble(purpose)
    knock = Knock.unpack(await handshake.read_exactly(sock, KNOCK_BYTES))
    key = await keys.opened_by(knock, head)
    connection: Connection = sock
    if security.tls is None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        await handshake.send_all(sock, head + nonce)
        bound = proofs.bound_by_nonces(knock.nonce, nonce, security.pin)
    else:
        secured, own = security.seal(sock, security.tls, False, head)
        connection = secured
        await _shake(secured)
        bound = security.bound(own, security.judge(secured))
    hello = await handshake.read_lane_hello(connection)
    if hello.link != knock.link or not same(hello.proof, proofs.proof_of_dialler(key, hello, bound)):
        raise WireError("its hello does not prove that it knows the key of this link")
    return Offer(sock, connection, hello, proofs.proof_of_listener(key, hello, bound))


async def _turn_away(sock: socket.socket, theirs: Purpose, ours: Purpose) -> None:
    if theirs is Purpose.LANE:
        reason = "this peer takes part in a run with a secret, and takes no lanes without proof; connect with its token"
        await handshake.say(sock, preamble(Purpose.LANE) + frame(encode(LaneAnswer(False, reason))))
        raise WireError("a lane without proof")
    if theirs not in _SETTING:
        await handshake.turn_away_control(sock, ours)
    reason = f"this peer has lane_tls={_SETTING[ours]} and yours {_SETTING[theirs]}; set the same on all peers"
    await handshake.say(sock, preamble(ours) + frame(reason.encode()))
    raise WireError(reason)


async def _shake(connection: Secured) -> None:
    while wants := connection.handshake():
        await handshake.ready(connection, wants == EVENT_READ)
