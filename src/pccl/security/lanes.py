"""TLS 1.3 on lanes by the standard library, for the reference plane; and where the native one finds its OpenSSL.

Owns the records of lanes in Python: the same wire as `native/tls.cpp`. Must not know what lanes carry, nor who
is welcome on them.
"""

import _ssl
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from typing import Generic, TypeVar

from pccl.security.authority import Authority, objection
from pccl.security.certificate import Certificate, pin_of
from pccl.security.renewing import Renewing
from pccl.security.tls import accepting_context, dialling_context

Made = TypeVar("Made")

SEALED_BYTES = 64 * 1024
"""Made into records at once, and handed to the kernel in one call."""

READ_BYTES = 64 * 1024
"""Taken from the kernel at once."""

RECORD_BYTES = 16 * 1024
RECORDS_MAX = 1 << 24
"""A key of AES-GCM is good for 2^24.5 records, and Python's `ssl` cannot replace it: a lane that has sent so many ends,
and its link is made again. That is 256 GB; the native plane replaces its keys and goes on."""

_SYSTEM = ("libssl.so.3", "libssl.so.1.1", "libssl.3.dylib")
"""What the loader finds where Python has OpenSSL inside, under names that only its own code can see."""


def openssl_files(named: str = "") -> tuple[str, ...]:
    """Where the native plane may find an OpenSSL: the one that Python has loaded first, so that there is one in the
    process. If one is named no other is tried."""
    if named:
        return (named,)
    loaded = getattr(_ssl, "__file__", None)
    return ((loaded,) if loaded else ()) + _SYSTEM


class StandardTls:
    """Secures the lanes of one peer."""

    def __init__(self, certificate: Certificate) -> None:
        self._accepting, self._dialling = accepting_context(certificate), dialling_context()

    def wrap(self, sock: socket.socket, dials: bool, first: bytes) -> "StandardLane":
        """TLS on a connected socket; `first` is sent in the clear, in one segment with the first records."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = self._dialling if dials else self._accepting
        return StandardLane(
            sock, context.wrap_bio(incoming, outgoing, server_side=not dials), incoming, outgoing, first
        )


class CertifiedStandardTls(StandardTls):
    """The same with certificates of an own CA: both ends show theirs."""

    def __init__(self, own: Authority) -> None:
        self._accepting, self._dialling = own.accepting(), own.dialling(names=False)


class CertifiedLanes(Generic[Made]):
    """What secures the lanes of a peer with a certificate of an own CA, as new as its files."""

    def __init__(self, own: Authority, make: Callable[[], Made]) -> None:
        """`make`: from the files as they are. Raises `UsageError`."""
        self._present = Renewing(own.files, lambda: (pin_of(own.der()), make()))

    def present(self) -> tuple[bytes, Made]:
        """The digest of our certificate, and what makes records with it."""
        return self._present.get()


class StandardLane:
    """One of them: behaves like a non-blocking socket (see `dataplane.connection`). Used by one thread at a time, but
    for `shutdown`. Not an `SSLSocket`: that one takes the socket away from its owner, and cannot peek."""

    def __init__(
        self, sock: socket.socket, end: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, first: bytes
    ) -> None:
        self._sock = sock
        self.fileno, self.shutdown, self.close = sock.fileno, sock.shutdown, sock.close
        self._tls = end
        self._incoming, self._outgoing = incoming, outgoing
        self._unsent = first
        """Of records, what the kernel has not taken."""
        self._sealed = 0
        """Plain bytes in them; not taken either, to our callers."""
        self._peeked = b""
        self._records = 0
        self._broken = ""
        """Why."""

    # ── the handshake ────────────────────────────────────────────────────────────────────────────────────────────────

    def hello(self) -> None:
        """Of the end that dials: send what comes first, and read nothing."""
        self._shake()

    def handshake(self) -> int:
        """Go on with it: 0 when it is over, else what to wait for. Raises `OSError`."""
        while True:
            shaken = self._shake()
            if shaken != EVENT_READ:
                return shaken
            try:
                self._take()
            except BlockingIOError:
                return shaken

    def certificate(self) -> bytes:
        """The one that the other end has shown, in DER; empty if none."""
        return self._tls.getpeercert(binary_form=True) or b""

    def _shake(self) -> int:
        shaken = 0
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            shaken = EVENT_READ
        except ssl.SSLError as error:
            with suppress(OSError):  # An alert, so that the other end knows; if it is gone, it needs none.
                self._flush()
            raise self._broke(error) from error
        try:
            self._flush()
        except BlockingIOError:
            return EVENT_WRITE
        return shaken

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def torn(self) -> bool:
        """A record was made that the kernel has not taken whole: nothing else can be sent before its rest."""
        return self._sealed > 0

    def send(self, data: bytes | bytearray | memoryview, /) -> int:
        """How many bytes the kernel has taken: all that were made into records. After `BlockingIOError` the same ones
        must be sent again."""
        self._check()
        if not self._sealed:
            self._seal(memoryview(data)[:SEALED_BYTES])
        self._flush()
        sealed, self._sealed = self._sealed, 0
        return sealed

    def _seal(self, data: memoryview) -> None:
        self._records += -(-len(data) // RECORD_BYTES)
        if self._records > RECORDS_MAX:
            raise ConnectionError(errno.ECONNABORTED, "its key has protected as many records as it may; link again")
        try:
            while data:
                sealed = self._tls.write(data)
                self._sealed += sealed
                data = data[sealed:]
        except ssl.SSLError as error:
            raise self._broke(error) from error

    def _flush(self) -> None:
        self._unsent += self._outgoing.read()
        while self._unsent:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def recv(self, count: int, flags: int = 0, /) -> bytes:
        """What has arrived, at most so much; empty at the end. `MSG_PEEK` is the only flag."""
        if flags & socket.MSG_PEEK:
            if not self._peeked:
                first = bytearray(1)
                self._peeked = bytes(first[: self._read(memoryview(first))])
            return self._peeked[:count]
        into = bytearray(count)
        return bytes(memoryview(into)[: self.recv_into(memoryview(into))])

    def recv_into(self, into: memoryview, /) -> int:
        """The same into memory of the caller; 0 at the end."""
        peeked, self._peeked = self._peeked, b""
        into[: len(peeked)] = peeked
        got = len(peeked)
        try:
            while got < len(into) and (portion := self._read(into[got:])):
                got += portion
        except BlockingIOError:
            if not got:
                raise
        return got

    def _read(self, into: memoryview) -> int:
        self._check()
        while True:
            try:
                return self._tls.read(len(into), into)  # type: ignore[return-value]
            except ssl.SSLWantReadError:
                if not self._take():
                    return 0
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0
            except ssl.SSLError as error:
                raise self._broke(error) from error

    def _take(self) -> bool:
        """Take records from the kernel; False at the end. Raises `BlockingIOError` if there are none now."""
        data = self._sock.recv(READ_BYTES)
        self._incoming.write(data)
        if not data:
            self._incoming.write_eof()
        return bool(data)

    def _broke(self, error: ssl.SSLError) -> ConnectionError:
        """`SSLError` is an `OSError`, but with numbers and words of its own. OpenSSL tells of a failure once; here it
        stays broken, like a socket."""
        reason = (error.reason or "no reason given").lower().replace("_", " ")
        words = "the other end closed it" if isinstance(error, ssl.SSLEOFError) else f"TLS: {reason}"
        if isinstance(error, ssl.SSLCertVerificationError):
            words = objection(error, "its")
        self._broken = self._broken or words
        return ConnectionError(errno.ECONNABORTED, self._broken)

    def _check(self) -> None:
        if self._broken:
            raise ConnectionError(errno.ECONNABORTED, self._broken)
