"""TLS 1.3 by the standard library: contexts, and a pipe between the bytes of a connection and what they mean.

Owns what is negotiated: one version, no tickets, no resumption, no early data, no key log. Must not know sockets.
"""

import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pccl.security.certificate import Certificate, pin_of
from pccl.security.tokens import same

READ_BYTES = 256 * 1024
"""Taken out of a pipe at once."""


class NotProven(Exception):
    """The other end is not who it must be, or what it sends is no TLS; the text says which."""


def accepting_context(certificate: Certificate) -> ssl.SSLContext:
    """For the end that accepts: it shows this certificate and asks for none."""
    made = context(ssl.PROTOCOL_TLS_SERVER)
    made.num_tickets = 0
    with _in_file(certificate) as path:
        made.load_cert_chain(path)
    return made


def dialling_context() -> ssl.SSLContext:
    """For the end that dials. It takes any certificate, and compares its digest with the pin afterwards: names and
    chains of it mean nothing."""
    made = context(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def context(protocol: "ssl._SSLMethod") -> ssl.SSLContext:
    """What both ends have in common, without certificates."""
    # Not `create_default_context`: that one writes keys to where SSLKEYLOGFILE says.
    made = ssl.SSLContext(protocol)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    return made


@contextmanager
def _in_file(certificate: Certificate) -> Iterator[str]:
    """OpenSSL's binding reads keys from files only. This one has no name where the system can do that."""
    text = ssl.DER_cert_to_PEM_cert(certificate.der) + _pem_of_key(certificate.key_der)
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pccl", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.TemporaryDirectory() as folder:  # mode 0700
        path = Path(folder) / "key.pem"
        path.write_text(text)
        yield str(path)


def _pem_of_key(der: bytes) -> str:
    pem = ssl.DER_cert_to_PEM_cert(der)
    return pem.replace("BEGIN CERTIFICATE", "BEGIN PRIVATE KEY").replace("END CERTIFICATE", "END PRIVATE KEY")


class Pipe:
    """One end of a TLS connection without a socket: bytes of the wire in, plain bytes out, and the other way round."""

    def __init__(
        self,
        context: ssl.SSLContext,
        accepts: bool,
        host: str = "",
        explain: Callable[[ssl.SSLError], str] | None = None,
    ) -> None:
        """`host`: whom the certificate at the other end must be for, if the context looks at that. `explain`: what a
        failure is called."""
        self._explain = explain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        # asyncio's own transport keeps 256 KiB for each connection; this keeps 16.
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=accepts, server_hostname=host or None
        )
        self._waiting: list[bytes] = []
        """Plain bytes that wait for the end of the handshake."""
        self.established = False
        self._shake()

    def feed(self, data: bytes) -> bytes:
        """Bytes have come; the plain ones that they complete. Raises `NotProven`."""
        self._incoming.write(data)
        if not self.established:
            self._shake()
        return self._read() if self.established else b""

    def write(self, plain: bytes) -> None:
        """Plain bytes to be sent; they leave with `outgoing`, once the handshake is over."""
        if self.established:
            self._object.write(plain)
        else:
            self._waiting.append(plain)

    def outgoing(self) -> bytes:
        """What is to be sent now."""
        return self._outgoing.read()

    @property
    def shown(self) -> bytes:
        """The other end's certificate in DER; empty if it has shown none."""
        return self._object.getpeercert(binary_form=True) or b""

    def check_pin(self, pin: bytes) -> None:
        """Of the other end's certificate. Raises `NotProven`."""
        if not same(pin_of(self.shown), pin):
            raise NotProven("it shows another key than the one that the token pins")

    def take_waiting(self) -> list[bytes]:
        """What waited for the handshake, which the caller writes again after its proof."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def _shake(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise self._failure(error, "the TLS handshake failed") from error
        self.established = True

    def _read(self) -> bytes:
        parts: list[bytes] = []
        try:
            while part := self._object.read(READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise self._failure(error, "TLS broke") from error
        return b"".join(parts)

    def _failure(self, error: ssl.SSLError, what: str) -> NotProven:
        return NotProven(self._explain(error) if self._explain is not None else f"{what}: {words(error)}")


def words(error: ssl.SSLError) -> str:
    """What went wrong, as OpenSSL calls it."""
    return (error.reason or "no reason given").lower().replace("_", " ")
