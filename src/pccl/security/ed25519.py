"""Ed25519 signatures (RFC 8032), as far as one certificate needs them: a public key and one signature.

Slow (5 ms) and not in constant time, which is why it signs nothing but the certificate of its own key, once per
process, where no other party can measure it. Signatures in handshakes are OpenSSL's.
"""

import hashlib

_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202
_BASE_Y = 4 * pow(5, -1, _P) % _P

_Point = tuple[int, int, int, int]
"""Extended coordinates (X, Y, Z, T): x = X / Z, y = Y / Z, x · y = T / Z."""

_BASE: _Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)
_NEUTRAL: _Point = (0, 1, 1, 0)


def public_key(seed: bytes) -> bytes:
    """The 32 bytes that belong to this private seed of 32 bytes."""
    return _encoded(_times(_scalar(seed)[0], _BASE))


def sign(seed: bytes, message: bytes) -> bytes:
    """The signature of a message, 64 bytes; the same whenever it is made."""
    scalar, prefix = _scalar(seed)
    own = public_key(seed)
    nonce = _number(prefix + message)
    commitment = _encoded(_times(nonce, _BASE))
    challenge = _number(commitment + own + message)
    return commitment + ((nonce + challenge * scalar) % _ORDER).to_bytes(32, "little")


def _scalar(seed: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    return scalar, digest[32:]


def _number(data: bytes) -> int:
    return int.from_bytes(hashlib.sha512(data).digest(), "little") % _ORDER


def _times(scalar: int, point: _Point) -> _Point:
    product = _NEUTRAL
    while scalar:
        if scalar & 1:
            product = _sum(product, point)
        point = _sum(point, point)
        scalar >>= 1
    return product


def _sum(first: _Point, second: _Point) -> _Point:
    a = (first[1] - first[0]) * (second[1] - second[0]) % _P
    b = (first[1] + first[0]) * (second[1] + second[0]) % _P
    c = 2 * first[3] * second[3] * _D % _P
    d = 2 * first[2] * second[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _encoded(point: _Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")
