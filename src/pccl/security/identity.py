"""Who a peer is: its id follows from its secret, so any master can check who comes back, also one that knows nothing.

Owns that rule. The secret is told to masters only.
"""

import hashlib
import secrets

from pccl.core.fields import Identity
from pccl.security.tokens import same
from pccl.types import PeerId

ID_DIGITS = 32
"""128 bits: no other secret with the same id will be found."""


def draw() -> tuple[PeerId, str]:
    """A new id and its secret."""
    secret = secrets.token_hex(16)
    return _id_of(secret), secret


def fits(me: Identity) -> bool:
    """This id belongs to this secret."""
    return same(me.peer.encode(), _id_of(me.secret).encode())


def _id_of(secret: str) -> PeerId:
    return PeerId(hashlib.sha256(b"pccl id" + secret.encode()).hexdigest()[:ID_DIGITS])
