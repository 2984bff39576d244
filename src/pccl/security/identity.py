"""Who a peer is: its id follows from its secret, so any master can check who comes back, also one that knows nothing.

Owns that rule. The secret is told to masters only.
"""

import contextlib
import hashlib
import secrets
from pathlib import Path

from pccl.core.fields import Identity
from pccl.security.tokens import same
from pccl.types import PeerId

ID_DIGITS = 32
"""128 bits: no other secret with the same id will be found."""

_BOOT_IDS = (Path("/proc/sys/kernel/random/boot_id"),)
"""Where Linux has it."""


def draw() -> tuple[PeerId, str]:
    """A new id and its secret."""
    secret = secrets.token_hex(16)
    return _id_of(secret), secret


def party_of(name: str, pin: bytes) -> bytes:
    """The key of a party: the same for all processes of this machine that have the same master (`pin`, if there is a
    token) and party, and unknown elsewhere. It follows from what the kernel has drawn for this start of the machine and
    shows to its own processes alone; empty if it has not."""
    boot = _boot()
    return hashlib.sha256(b"pccl party" + pin + boot + name.encode()).digest() if boot else b""


def _boot() -> bytes:
    for file in _BOOT_IDS:
        with contextlib.suppress(OSError):
            return file.read_bytes().strip()
    return b""


def fits(me: Identity) -> bool:
    """This id belongs to this secret."""
    return same(me.peer.encode(), _id_of(me.secret).encode())


def _id_of(secret: str) -> PeerId:
    return PeerId(hashlib.sha256(b"pccl id" + secret.encode()).hexdigest()[:ID_DIGITS])
