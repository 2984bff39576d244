"""A self-signed certificate from a seed: the same bytes from the same seed, whenever and wherever it is made.

Owns the DER. The certificate carries a key and nothing else that counts: it is trusted by its digest (the pin), not by
its names or dates.
"""

import hashlib
from dataclasses import dataclass, field

from pccl.security import ed25519

PIN_BYTES = 32

_ED25519 = bytes.fromhex("300506032b6570")
"""AlgorithmIdentifier of 1.3.101.112."""
_NAME = bytes.fromhex("300f310d300b06035504030c04") + b"pccl"
"""Issuer and subject: CN=pccl."""
_VALID = b"".join(
    bytes((tag, len(text))) + text for tag, text in ((0x17, b"200101000000Z"), (0x18, b"99991231235959Z"))
)
"""For ever, in the words of RFC 5280, section 4.1.2.5: what ends is a token."""


@dataclass(frozen=True)
class Certificate:
    """One of them, with its private key, which shows in no `repr`."""

    der: bytes
    key_der: bytes = field(repr=False)
    """PKCS #8."""

    @property
    def pin(self) -> bytes:
        """What the other end of a connection compares."""
        return pin_of(self.der)


def pin_of(der: bytes) -> bytes:
    """The digest by which a certificate is known."""
    return hashlib.sha256(der).digest()


def make(seed: bytes) -> Certificate:
    """The certificate of this seed of 32 secret bytes."""
    if len(seed) != 32:
        raise ValueError(f"the seed of a certificate must have 32 bytes, got {len(seed)}")
    public = ed25519.public_key(seed)
    serial = hashlib.sha256(b"pccl serial" + public).digest()[:15]
    content = _sequence(
        bytes.fromhex("a003020102"),  # version 3
        _tagged(0x02, b"\x01" + serial),  # a positive number, whatever the digest begins with
        _ED25519,
        _NAME,
        _sequence(_VALID),
        _NAME,
        _sequence(_ED25519, _bits(public)),
    )
    der = _sequence(content, _ED25519, _bits(ed25519.sign(seed, content)))
    key_der = _sequence(bytes.fromhex("020100"), _ED25519, _tagged(0x04, _tagged(0x04, seed)))
    return Certificate(der, key_der)


def _tagged(tag: int, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:
        return bytes((tag, length)) + content
    size = (length.bit_length() + 7) // 8
    return bytes((tag, 0x80 | size)) + length.to_bytes(size, "big") + content


def _sequence(*parts: bytes) -> bytes:
    return _tagged(0x30, b"".join(parts))


def _bits(content: bytes) -> bytes:
    return _tagged(0x03, b"\0" + content)
