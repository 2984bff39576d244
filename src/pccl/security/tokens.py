"""Tokens: the one string that a user pastes. It admits its holder, and pins the key of the master.

Owns their form and what each role may do. A token is complete in itself: the master recomputes its key from its claim
and the secret, and keeps no list of those that are valid.

    token    base64url of: format 1 · claim 11 · key 16 · pin 32         80 characters
    claim    role 1 · id 6 · expires u32, seconds since 1970, 0: never   big endian
"""

import base64
import binascii
import hmac
import struct
from dataclasses import dataclass, field
from enum import IntEnum

from pccl.core.rights import Rights
from pccl.errors import UsageError
from pccl.security.certificate import PIN_BYTES
from pccl.security.secret import MasterSecret

FORMAT = 1
KEY_BYTES = 16
ID_BYTES = 6
CLAIM_BYTES = 11
_CLAIM = struct.Struct(">B6sI")
_BRINGS = 0x80
"""In the byte of the role: see `Rights.BRING_STATE`."""


class Role(IntEnum):
    """Whose token it is."""

    PEER = 1
    OBSERVER = 2
    OPERATOR = 3


_RIGHTS = {
    Role.PEER: Rights.JOIN | Rights.OBSERVE,
    Role.OBSERVER: Rights.OBSERVE,
    Role.OPERATOR: Rights.OBSERVE | Rights.OPERATE,
}


class BadToken(ValueError):
    """A text that is no token, or bytes that are no claim; what it is stands nowhere in the text of this."""


@dataclass(frozen=True)
class Claim:
    """What a token says of its holder. No secret: it is sent in the clear."""

    role: Role
    id: bytes
    expires_unix_s: int = 0
    brings_state: bool = False

    @property
    def rights(self) -> Rights:
        """What its holder may do."""
        return _RIGHTS[self.role] | (Rights.BRING_STATE if self.brings_state else Rights.NONE)

    @property
    def name(self) -> str:
        """For logs and commands."""
        return self.id.hex()

    def pack(self) -> bytes:
        """As it is sent."""
        return _CLAIM.pack(self.role | (_BRINGS if self.brings_state else 0), self.id, self.expires_unix_s)

    @classmethod
    def unpack(cls, data: bytes) -> "Claim":
        """Raises `BadToken`."""
        try:
            role, identity, expires = _CLAIM.unpack(data)
            return cls(Role(role & ~_BRINGS), identity, expires, bool(role & _BRINGS))
        except (struct.error, ValueError):
            raise BadToken("it has a claim that this release does not know") from None


@dataclass(frozen=True)
class Token:
    """One of them, as its holder has it. Its key shows in no `repr`."""

    claim: Claim
    key: bytes = field(repr=False)
    pin: bytes = field(repr=False)
    """Of the master's certificate."""

    def text(self) -> str:
        """What is pasted."""
        data = bytes((FORMAT,)) + self.claim.pack() + self.key + self.pin
        return base64.urlsafe_b64encode(data).decode().rstrip("=")


def key_of(secret: MasterSecret, claim: Claim) -> bytes:
    """What makes a token of a claim."""
    return secret.derive("token", claim.pack())[:KEY_BYTES]


def mint(secret: MasterSecret, claim: Claim, pin: bytes) -> Token:
    """The token of this claim."""
    return Token(claim, key_of(secret, claim), pin)


def first_claim(secret: MasterSecret) -> Claim:
    """That of the token which a master prints: the same at every start, for ever, and with the right to bring a state,
    since its holder is the one who started the run."""
    return Claim(Role.PEER, secret.derive("first token")[:ID_BYTES], brings_state=True)


def parse(text: str, setting: str = "token (PCCL_TOKEN)") -> Token:
    """Raises `UsageError`, which does not repeat the text."""
    stripped = text.strip()
    try:
        data = base64.b64decode(stripped + "=" * (-len(stripped) % 4), altchars=b"-_", validate=True)
        if len(data) != 1 + CLAIM_BYTES + KEY_BYTES + PIN_BYTES:
            raise BadToken(f"it has {len(stripped)} characters")
        if data[0] != FORMAT:
            raise BadToken(f"it has format {data[0]}: it was made by another release")
        claim = Claim.unpack(data[1 : 1 + CLAIM_BYTES])
    except (binascii.Error, ValueError) as error:
        cause = str(error) if isinstance(error, BadToken) else "it has other characters"
        raise UsageError(
            f"{setting} must be what `pccl master` or `pccl token new` printed, got something else ({cause}); "
            "copy the whole of it, from pccl:// to the end of the line"
        ) from None
    return Token(claim, data[1 + CLAIM_BYTES : -PIN_BYTES], data[-PIN_BYTES:])


def same(first: bytes, second: bytes) -> bool:
    """Compared in a time that does not depend on where they differ."""
    return hmac.compare_digest(first, second)
