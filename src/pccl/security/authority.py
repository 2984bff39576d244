"""Certificates of an own CA: the files, what a certificate says of its holder, and why one is refused.

Owns how a role is written into a certificate, and the words when something is wrong with one. Must not know
connections.

A role is a URI among a certificate's alternative names: `pccl:master`, `pccl:peer`, `pccl:peer+state` (may also bring a
state), `pccl:observer`, `pccl:operator`; several are the sum of their rights. Alternative names are what a CA vouches
for: it is asked for them by name, and can be told which it may sign, while the fields of a subject are free text that
many CAs take over from the request. A certificate without such a name, which each machine of a company has, opens
nothing here.
"""

import hashlib
import hmac
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from pccl.core.names import clean
from pccl.core.rights import Rights
from pccl.credentials import CertificateFiles
from pccl.errors import UsageError
from pccl.security import tls
from pccl.security.certificate import pin_of
from pccl.security.tls import NotProven

MASTER = "pccl:master"
_RIGHTS = {
    "pccl:peer": Rights.JOIN | Rights.OBSERVE,
    "pccl:peer+state": Rights.JOIN | Rights.OBSERVE | Rights.BRING_STATE,
    "pccl:observer": Rights.OBSERVE,
    "pccl:operator": Rights.OBSERVE | Rights.OPERATE,
}

_FOREIGN = (2, 18, 19, 20, 21)
"""X509_V_ERR_…: no issuer to be found, or one that is not among those that we believe."""
_ALERTS = {
    "CERTIFICATE_EXPIRED": "it has expired; renew it",
    "UNKNOWN_CA": "it is not of the CA that the master believes; have it issued by that one",
    "CERTIFICATE_REQUIRED": "it did not arrive",
    "UNSUPPORTED_CERTIFICATE": "it may not be used by a client; issue it with extendedKeyUsage=clientAuth,serverAuth",
    "CERTIFICATE_REVOKED": "it was revoked; have another one issued",
}
"""What the end that accepts says of ours, in the words of TLS."""


@dataclass(frozen=True)
class Certified:
    """What a certificate says, which TLS has found to be of our CA."""

    name: str
    """For logs."""
    uris: tuple[str, ...]
    """As they are: one that only looks like a role when it is cleaned is none. In words only roles occur."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Those that are known here, without what is the same in all."""
        return tuple(uri.partition(":")[2] for uri in self.uris if uri in _RIGHTS or uri == MASTER)

    @property
    def rights(self) -> Rights:
        """The sum of those of its roles."""
        total = Rights.NONE
        for uri in self.uris:
            total |= _RIGHTS.get(uri, Rights.NONE)
        return total

    def lacks(self, wanted: str) -> str:
        """What to do about a role that it does not have."""
        return f"names the roles {', '.join(self.roles) or '(none)'}; issue it with subjectAltName=URI:{wanted}"


def read(der: bytes) -> Certified:
    """What is in a certificate that TLS has verified. Raises `NotProven`."""
    try:
        uris = tuple(_uris(der))
    except (IndexError, ValueError):
        raise NotProven("its certificate cannot be read") from None
    return Certified(pin_of(der).hex()[:12], uris)


def no_peer(der: bytes) -> str:
    """Why the holder of this certificate takes part in no lane; empty if it does. Raises `NotProven`."""
    certified = read(der)
    return "" if Rights.JOIN in certified.rights else f"its certificate {certified.lacks('pccl:peer')}"


class Authority:
    """The files of one end, read whenever they are asked for: certificates are renewed in place, often each day."""

    def __init__(self, files: CertificateFiles) -> None:
        """Raises `UsageError` if they are of no use."""
        self.files = files
        self.accepting()

    def accepting(self) -> ssl.SSLContext:
        """For the end that accepts: the other one must show a certificate of our CA. Raises `UsageError`."""
        context = tls.context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        context.verify_mode = ssl.CERT_REQUIRED
        return self._load(context)

    def dialling(self, *, names: bool) -> ssl.SSLContext:
        """For the end that dials; with `names` the certificate at the other one must be for the host that is dialled.
        Raises `UsageError`."""
        context = tls.context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = names
        return self._load(context)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        ca, cert, key = self.files
        text = _text("ca (PCCL_CA)", ca)
        if "BEGIN X509 CRL" in text:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        _text("cert (PCCL_CERT)", cert)
        _check_mode(key)
        try:
            context.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"ca (PCCL_CA) must be certificates in PEM, got something else in {ca}") from error
        try:
            context.load_cert_chain(cert, key, _locked)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(
                f"cert (PCCL_CERT) and key (PCCL_KEY) must be a certificate in PEM and its own key, got {cert} and "
                f"{key}: {tls.words(error) if isinstance(error, ssl.SSLError) else error.strerror}"
            ) from error
        return context

    def der(self) -> bytes:
        """Our own certificate. Raises `UsageError`."""
        text = _text("cert (PCCL_CERT)", self.files.cert)
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        first = text.partition(begin)[2].partition(end)[0]
        try:
            return ssl.PEM_cert_to_DER_cert(f"{begin}{first}{end}\n")
        except ValueError as error:
            raise UsageError(f"cert (PCCL_CERT) must be a certificate in PEM, got {self.files.cert}") from error

    def derive(self, purpose: str) -> bytes:
        """32 bytes for one purpose, which follow from the private key. Raises `UsageError`."""
        material = hashlib.sha256(_text("key (PCCL_KEY)", self.files.key).strip().encode()).digest()
        return hmac.digest(material, f"pccl {purpose}".encode(), "sha256")


def _text(setting: str, path: os.PathLike[str]) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{setting} must be a file that can be read, got {path}: {error.strerror}") from error


def _check_mode(key: os.PathLike[str]) -> None:
    """A group may read it: that is how an orchestrator hands keys to a process of another user."""
    try:
        with open(key, "rb") as file:  # What is looked at is what can be read: it may be replaced at any moment.
            mode = os.fstat(file.fileno()).st_mode & 0o777
    except OSError as error:
        raise UsageError(f"key (PCCL_KEY) must be a file that can be read, got {key}: {error.strerror}") from error
    if mode & 0o007:
        raise UsageError(f"key (PCCL_KEY) must not be open to all users, got mode {mode:04o}; chmod 600 {key}")


def _locked() -> str:
    """What OpenSSL would ask on a terminal."""
    raise UsageError("key (PCCL_KEY) must not be encrypted: a peer runs alone; write it with openssl pkey -in … -out …")


# ── what is wrong ────────────────────────────────────────────────────────────────────────────────────────────────────


def objection(error: ssl.SSLError, whose: str, host: str = "") -> str:
    """Why a certificate, or the other end's handshake, is refused, and what to do."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return f"the TLS handshake failed: {tls.words(error)}"
    match error.verify_code:
        case 9:
            return f"{whose} certificate is not valid yet; compare the clocks of both machines"
        case 10:
            return f"{whose} certificate has expired; renew it, and compare the clocks of both machines"
        case 23:
            return f"{whose} certificate was revoked; have another one issued"
        case 26:
            return f"{whose} certificate is for another use; issue it with extendedKeyUsage=serverAuth,clientAuth"
        case 62 | 64:
            return (
                f"{whose} certificate is not for {host!r}; issue it with that name as subjectAltName (DNS: or IP:), or "
                "dial the name that it has"
            )
        case code if code in _FOREIGN:
            return (
                f"{whose} certificate is not of our CA; put its CA into the file of ca (PCCL_CA), or check the address"
            )
    return f"{whose} certificate is refused: {clean(error.verify_message)}"


def refusal_of_ours(error: ssl.SSLError) -> str:
    """What the other end has found wrong with our certificate."""
    reason = error.reason or ""
    for alert, meaning in _ALERTS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return f"it refuses our certificate, cert (PCCL_CERT): {meaning}"
    return f"TLS broke: {tls.words(error)}"


# ── DER ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

_ALTERNATIVE_NAMES = bytes.fromhex("0603551d11")
"""2.5.29.17, whole."""


def _uris(der: bytes) -> list[str]:
    """Of the alternative names of a certificate. Raises `IndexError` or `ValueError`."""
    found: list[str] = []
    content = _within(_within(der))
    for extensions in [_within(part) for tag, part in _parts(content) if tag == 0xA3]:
        for _, extension in _parts(extensions):
            if extension.startswith(_ALTERNATIVE_NAMES):
                names = [_within(body) for tag, body in _parts(extension) if tag == 0x04]
                found += [name.decode("ascii") for each in names for kind, name in _parts(each) if kind == 0x86]
    return found


def _within(data: bytes) -> bytes:
    """The content of the first element."""
    for _, content in _parts(data):
        return content
    raise ValueError("there is none")


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each element of a sequence: its tag and its content. Raises `IndexError` or `ValueError`."""
    place = 0
    while place < len(data):
        tag, length = data[place], data[place + 1]
        place += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[place : place + size], "big")
            place += size
        if place + length > len(data):
            raise ValueError("an element is longer than what is around it")
        yield tag, data[place : place + length]
        place += length
