"""What the two ends of a control connection prove to each other where there is an own CA.

Owns the order of the proofs. Must not know messages, nor what a right is good for.

    peer     preamble · TLS with its certificate, inside which: frames
    master   preamble · TLS with its certificate, inside which: an empty frame · frames      or a frame with a refusal

In TLS 1.3 the end that dials is through before its own certificate was looked at: the first frame of the master says
that it was, and what came of it. There is no token to knock with, so a stranger reaches OpenSSL: see `net/turns.py`.
"""

import ssl

from pccl.errors import UsageError
from pccl.security import authority
from pccl.security.audit import Audit
from pccl.security.authority import Authority, objection, refusal_of_ours
from pccl.security.control import AcceptingEnd, Bearer, Doorway
from pccl.security.renewing import Renewing
from pccl.security.tls import NotProven, Pipe
from pccl.wire.framing import HEADER_BYTES, REFUSAL_TEXT_MAX, Purpose, frame, frame_length, parse_refusal, preamble

FIRST_BYTES = 8192
"""Of our messages, sent before the master has let us in: the first one, in the segment of our certificate. What follows
it may be a report of any length, and a master keeps little for those that it does not know."""


class CertifiedPeerGuard:
    """The end that dials, with a certificate."""

    purpose = Purpose.CONTROL_CERTIFIED

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._pipe = Pipe(context, False, host, lambda error: _of_master(error, host))
        self._first = preamble(self.purpose)
        self._waiting: list[bytes] = []
        self._credit = FIRST_BYTES
        self._verdict = bytearray()
        self._judged = False
        self.open = False

    def feed(self, data: bytes) -> bytes:
        """See `Guard`."""
        plain = self._pipe.feed(data)
        if self._pipe.established and not self._judged:
            self._judged = True
            certified = authority.read(self._pipe.shown)
            if authority.MASTER not in certified.uris:
                raise NotProven(f"it is no master: its certificate {certified.lacks(authority.MASTER)}")
            self._send_waiting()
        return plain if self.open else self._take_verdict(plain)

    def _take_verdict(self, plain: bytes) -> bytes:
        """Of the master on our certificate; the bytes behind it."""
        self._verdict += plain
        if len(self._verdict) < HEADER_BYTES:
            return b""
        end = HEADER_BYTES + frame_length(bytes(self._verdict[:HEADER_BYTES]), REFUSAL_TEXT_MAX)
        if len(self._verdict) < end:
            return b""
        if end > HEADER_BYTES:
            words = parse_refusal(bytes(self._verdict[HEADER_BYTES:end]))
            raise NotProven(f"it refuses our certificate, cert (PCCL_CERT): {words}")
        self.open = True
        self._send_waiting()
        return bytes(self._verdict[end:])

    def write(self, plain: bytes) -> None:
        """See `Guard`."""
        self._waiting.append(plain)
        if self._judged:
            self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting and (self.open or len(self._waiting[0]) <= self._credit):
            plain = self._waiting.pop(0)
            self._credit -= len(plain)
            self._pipe.write(plain)

    def outgoing(self) -> bytes:
        """See `Guard`."""
        first, self._first = self._first, b""
        return first + self._pipe.outgoing()


class CertifiedDoor(Doorway):
    """That of a master with a certificate: those with one of the same CA that names a role are let in."""

    def __init__(self, own: Authority, audit: Audit) -> None:
        """Raises `UsageError`."""
        super().__init__(audit, own.derive("ticket"))
        certified = authority.read(own.der())
        if authority.MASTER not in certified.uris:
            raise UsageError(
                f"cert (PCCL_CERT) must be that of a master, got one that {certified.lacks(authority.MASTER)}"
            )
        self._context = Renewing(own.files, own.accepting)

    def guard(self) -> "CertifiedGuard":
        """See `Doorway`."""
        return CertifiedGuard(self)

    def pipe(self) -> Pipe:
        """For a connection whose turn it is."""
        return Pipe(self._context.get(), True, explain=lambda error: objection(error, "its"))


class CertifiedGuard(AcceptingEnd):
    """The end that accepts certificates."""

    purpose = Purpose.CONTROL_CERTIFIED
    wants = (
        "this master wants a certificate of its CA: set ca, cert and key (PCCL_CA, PCCL_CERT, PCCL_KEY), and no token"
    )

    def __init__(self, door: CertifiedDoor) -> None:
        super().__init__()
        self._door = door

    @property
    def rationed(self) -> bool:
        """See `AcceptingGuard`. Their certificate, which follows our answer, takes as long to check."""
        return not self.open

    def greet(self, data: bytes) -> bytes:
        """See `AcceptingGuard`. There is nothing before TLS."""
        return data

    def feed(self, data: bytes) -> bytes:
        """See `Guard`."""
        if self._pipe is None:
            self._pipe, self._first = self._door.pipe(), preamble(self.purpose)
        plain = self._pipe.feed(data)
        if self._pipe.established and not self.open:
            self._judge(self._pipe)
        return plain

    def _judge(self, pipe: Pipe) -> None:
        certified = authority.read(pipe.shown)
        if not certified.rights:
            words = certified.lacks("pccl:peer")
            pipe.write(frame(f"it {words}".encode()))
            raise NotProven(f"its certificate {certified.name} {words}")
        self.bearer = Bearer("certificate", certified.name, "+".join(certified.roles), certified.rights)
        pipe.write(frame(b""))
        self.open = True


def _of_master(error: ssl.SSLError, host: str) -> str:
    """What went wrong, seen from the end that dials."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return objection(error, "the master's", host)
    return refusal_of_ours(error)
