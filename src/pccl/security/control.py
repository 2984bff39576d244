"""What the two ends of a control connection prove to each other, and in which order.

Owns knock and proof. Must not know messages, nor what a right is good for.

    peer     preamble · knock · TLS, inside which: proof · frames
    master   preamble · TLS, inside which: frames                   or a refusal, in the clear

The knock shows that the dialling end has a token before anything is kept or computed for it: without one a stranger
costs two HMACs. It opens once, so that a recording costs no more. The proof inside TLS counts, which the pinned master
alone reads: a master that was restarted has forgotten who knocked before.
"""

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pccl.core.rights import Rights
from pccl.errors import UsageError
from pccl.security import tls, tokens
from pccl.security.audit import Audit
from pccl.security.certificate import make
from pccl.security.ledger import Ledger
from pccl.security.secret import MasterSecret
from pccl.security.tls import NotProven, Pipe
from pccl.security.tokens import CLAIM_BYTES, BadToken, Claim, Token
from pccl.wire.framing import Purpose, preamble

NONCE_BYTES = 16
MAC_BYTES = 16
KNOCK_BYTES = CLAIM_BYTES + NONCE_BYTES + MAC_BYTES
PROOF_BYTES = 32

NONCES_MAX = 65_536
"""Knocks that a master remembers, some 8 MB: each is one of a token holder, so no stranger pushes others out."""


@dataclass(frozen=True)
class Bearer:
    """Whose connection it is, as it has proved."""

    kind: str
    """Of what it has proved: `token` or `certificate`."""
    name: str
    """For logs and commands."""
    role: str
    rights: Rights


class Refused(Exception):
    """The knock was wrong; the text may be sent back in the clear."""


class Guard(Protocol):
    """One end of a secured connection. It writes its own preamble, and reads what is behind that of the other end."""

    purpose: Purpose
    """Of the connections that it is for."""

    @property
    def open(self) -> bool:
        """The other end has proved itself."""

    def feed(self, data: bytes) -> bytes:
        """Bytes have come; the plain ones behind every proof. Raises `Refused` or `NotProven`."""

    def write(self, plain: bytes) -> None:
        """Plain bytes to be sent; they leave with `outgoing`."""

    def outgoing(self) -> bytes:
        """What is to be sent now."""


class AcceptingGuard(Guard, Protocol):
    """That of a master."""

    wants: str
    """What to do, for those that come with something else."""

    @property
    def rationed(self) -> bool:
        """What comes next makes it compute for an end that has proved too little: it must wait for its turn."""

    def greet(self, data: bytes) -> bytes:
        """Bytes have come. What is before TLS is looked at now, and costs nothing worth a turn; the bytes behind it,
        which `feed` takes. Raises `Refused`."""

    @property
    def bearer(self) -> Bearer | None:
        """Who has proved what; worth nothing until `open`."""


MakeGuard = Callable[[str], Guard]
"""What lets a process in, for a connection that is dialled to this host."""


class PeerGuard:
    """The end that dials, with a token."""

    purpose = Purpose.CONTROL_TLS

    def __init__(self, token: Token) -> None:
        self._token = token
        self._pipe = Pipe(tls.dialling_context(), accepts=False)
        knocked = knock(token.claim, token.key, secrets.token_bytes(NONCE_BYTES))
        self._first: bytes = preamble(Purpose.CONTROL_TLS) + knocked
        self.open = False

    def feed(self, data: bytes) -> bytes:
        """See `Guard`."""
        plain = self._pipe.feed(data)
        if self._pipe.established and not self.open:
            self._pipe.check_pin(self._token.pin)
            self.open = True
            waiting = self._pipe.take_waiting()
            self._pipe.write(proof(self._token.key, self._token.pin))
            for each in waiting:
                self._pipe.write(each)
        return plain

    def write(self, plain: bytes) -> None:
        """See `Guard`."""
        self._pipe.write(plain)

    def outgoing(self) -> bytes:
        """See `Guard`."""
        first, self._first = self._first, b""
        return first + self._pipe.outgoing()


class Doorway:
    """A master's: which connections are let in, and with which rights."""

    def __init__(self, audit: Audit, ticket_key: bytes) -> None:
        """`ticket_key`: the same at every start with the same secret or certificate."""
        self.audit = audit
        self._ticket_key = ticket_key
        self._link_secret = secrets.token_bytes(32)

    def link_key(self, number: int) -> bytes:
        """Of the link of this number: both its ends get it. Another process of the master gives others."""
        return hmac.digest(self._link_secret, number.to_bytes(8, "big"), "sha256")

    def sign(self, statement: bytes) -> bytes:
        """What the core says of its roster, so that the next master can know it again."""
        return hmac.digest(self._ticket_key, statement, "sha256")[:MAC_BYTES]

    def guard(self) -> AcceptingGuard:
        """For a connection that was accepted."""
        raise NotImplementedError

    def ended(self, bearer: Bearer) -> str:
        """Why a connection of this one must end, though it stands; empty if it need not."""
        return ""


class Door(Doorway):
    """That of a master with a secret: those with a token of it are let in."""

    def __init__(
        self, secret: MasterSecret, ledger: Ledger, audit: Audit, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(audit, secret.derive("ticket"))
        certificate = make(certificate_seed(secret))
        self.pin = certificate.pin
        self._secret = secret
        self._ledger = ledger
        self._clock = clock
        self._context = tls.accepting_context(certificate)
        self._nonces: OrderedDict[bytes, None] = OrderedDict()
        """Of the knocks that there were, the latest last."""

    def first_token(self) -> Token:
        """The one that is printed."""
        return tokens.mint(self._secret, tokens.first_claim(self._secret), self.pin)

    def guard(self) -> "MasterGuard":
        """For a connection that was accepted."""
        return MasterGuard(self)

    def pipe(self) -> Pipe:
        """For one that has knocked."""
        return Pipe(self._context, accepts=True)

    def admit(self, knocked: bytes) -> tuple[Claim, bytes]:
        """Whose knock it is, and the key of that token. Raises `Refused`."""
        try:
            claim = Claim.unpack(knocked[:CLAIM_BYTES])
        except BadToken as error:
            raise Refused(f"the token is of no use here: {error}") from None
        key = tokens.key_of(self._secret, claim)
        nonce = knocked[CLAIM_BYTES : CLAIM_BYTES + NONCE_BYTES]
        if not tokens.same(knock(claim, key, nonce), knocked):
            raise Refused("the token is of no use here: it was made with another secret; ask for the present one")
        try:
            why = self.refuses(claim)
        except UsageError:  # In the log already: the ledger is looked at every moment for those that are here.
            raise Refused("the master cannot read at the moment which tokens are revoked; its log says why") from None
        if why:
            raise Refused(f"the token {claim.name} {why}; ask for another one")
        if nonce in self._nonces:
            raise Refused("this connection has knocked before: its bytes are a recording")
        self._nonces[nonce] = None
        if len(self._nonces) > NONCES_MAX:
            self._nonces.popitem(last=False)
        return claim, key

    def ended(self, bearer: Bearer) -> str:
        """See `Doorway`: its token must not be used any more, not even by a connection that stands."""
        return f"its token {bearer.name} was revoked" if bearer.name in self._ledger.revoked else ""

    def refuses(self, claim: Claim) -> str:
        """Why this token admits no connection any more; empty if it does. One that was made before it expired stays."""
        if 0 < claim.expires_unix_s <= self._clock():
            return "has expired"
        return "was revoked" if claim.name in self._ledger.revoked else ""


class AcceptingEnd:
    """What the guards of a master share: the pipe, which is made once the other end may have one."""

    def __init__(self) -> None:
        self._pipe: Pipe | None = None
        self._first = b""
        self._answered = False
        """Our part of the handshake is made, which is most of what it costs."""
        self.bearer: Bearer | None = None
        """What the other end shows; worth nothing until `open`."""
        self.open = False

    def write(self, plain: bytes) -> None:
        """See `Guard`. Nothing is sent to an end that has proved nothing."""
        if self._pipe is None or not self.open:
            raise NotProven("nothing can be sent to an end that has proved nothing")
        self._pipe.write(plain)

    def outgoing(self) -> bytes:
        """See `Guard`."""
        first, self._first = self._first, b""
        sealed = self._pipe.outgoing() if self._pipe is not None else b""
        self._answered = self._answered or bool(sealed)
        return first + sealed


class MasterGuard(AcceptingEnd):
    """The end that accepts tokens."""

    purpose = Purpose.CONTROL_TLS
    wants = "this master wants a token: use the address that it printed, pccl://host:port#token"

    def __init__(self, door: Door) -> None:
        super().__init__()
        self._door = door
        self._key = b""
        self._head = bytearray()

    @property
    def rationed(self) -> bool:
        """See `AcceptingGuard`. What follows our answer is the proof, and a report of any length may come with it."""
        return not self._answered

    def greet(self, data: bytes) -> bytes:
        """See `AcceptingGuard`."""
        if self.bearer is not None:
            return data
        missing = KNOCK_BYTES - len(self._head)
        self._head += data[:missing]
        if len(self._head) < KNOCK_BYTES:
            return b""
        claim, self._key = self._door.admit(bytes(self._head))
        self.bearer = Bearer("token", claim.name, claim.role.name.lower(), claim.rights)
        self._head, self._first = bytearray(), preamble(self.purpose)
        return data[missing:]

    def feed(self, data: bytes) -> bytes:
        """See `Guard`."""
        data = self.greet(data)
        if self.bearer is None:
            return b""
        if self._pipe is None:
            self._pipe = self._door.pipe()
        plain = self._pipe.feed(data)
        return plain if self.open else self._take_proof(plain)

    def _take_proof(self, plain: bytes) -> bytes:
        missing = PROOF_BYTES - len(self._head)
        self._head += plain[:missing]
        if len(self._head) < PROOF_BYTES:
            return b""
        if not tokens.same(bytes(self._head), proof(self._key, self._door.pin)):
            raise NotProven("it has knocked with a token that it does not have")
        self.open = True
        return plain[missing:]


def certificate_seed(secret: MasterSecret) -> bytes:
    """Of the master's certificate: the same at every restart."""
    return secret.derive("certificate")


def knock(claim: Claim, key: bytes, nonce: bytes) -> bytes:
    """The first bytes behind the preamble."""
    packed = claim.pack()
    return packed + nonce + hmac.digest(key, b"pccl knock" + packed + nonce, "sha256")[:MAC_BYTES]


def proof(key: bytes, pin: bytes) -> bytes:
    """The first bytes inside TLS: bound to the master whose certificate was seen."""
    return hmac.digest(key, b"pccl proof" + pin, "sha256")
