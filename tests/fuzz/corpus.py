"""What is sent: messages of every kind with any values, and what chance makes of them.

Owns the drawing and the mutations. Must not know who reads them.
"""

import random
import struct
from typing import Any, get_args

from msgspec import inspect

from pccl.core.messages.lanes import Between
from pccl.core.messages.observers import ToObserver
from pccl.core.messages.to_master import ToMaster
from pccl.core.messages.to_peer import ToPeer
from pccl.wire.codec import encode

DIRECTIONS = {"to_master": ToMaster, "to_peer": ToPeer, "between": Between, "to_observer": ToObserver}
KINDS = {name: [inspect.type_info(kind) for kind in get_args(union)] for name, union in DIRECTIONS.items()}
WORDS = ("", "a", "\x1b[2J", "b\r\n", "\u202e", "😀" * 9, "x" * 64, "%s{0}", "\x00")
LISTED_MAX = 3

_INTERESTING = (
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\xdc\xff\xff",
    b"\xdb\x7f\xff\xff\xff",
)
_INTERESTING += (b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\x91" * 600, struct.pack("<I", 2**31), b"PCCL")
"""Lengths that are not true, values nested deeply, what no MessagePack has."""


def draw(info: inspect.Type, chance: random.Random) -> Any:
    """Any value of this type."""
    match info:
        case inspect.StructType():
            return info.cls(**{field.name: draw(field.type, chance) for field in info.fields})
        case inspect.EnumType():
            return chance.choice(list(info.cls))
        case inspect.UnionType(types=types):
            chosen = chance.choice(types)
            return None if isinstance(chosen, inspect.NoneType) else draw(chosen, chance)
        case inspect.LiteralType(values=values):
            return chance.choice(values)
        case inspect.BoolType():
            return chance.random() < 0.5
        case inspect.IntType():
            most = 2**63 - 1 if info.le is None else info.le
            return chance.choice((info.ge or 0, most, min(most, max(info.ge or 0, chance.randrange(100)))))
        case inspect.FloatType():
            return chance.choice((0.0, -1.0, 1e300, float("inf"), float("nan")))
        case inspect.StrType(pattern=None):
            return chance.choice(WORDS)[: info.max_length]
        case inspect.StrType():
            return chance.choice(("a", "b1", "0" * 8))[: info.max_length]
        case inspect.BytesType():
            return chance.randbytes(chance.choice((info.min_length or 0, info.max_length or 16)))
        case inspect.VarTupleType():
            most = min(info.max_length or LISTED_MAX, LISTED_MAX)
            return tuple(draw(info.item_type, chance) for _ in range(chance.randint(info.min_length or 0, most)))
    raise NotImplementedError(f"teach this about {info}")


def message(direction: str, chance: random.Random) -> Any:
    """Any message of this direction."""
    return draw(chance.choice(KINDS[direction]), chance)


def body(direction: str, chance: random.Random) -> bytes:
    """The same as bytes."""
    return encode(message(direction, chance))


def spoiled(data: bytes, chance: random.Random) -> bytes:
    """What chance makes of it: nothing, a few changes, or something else altogether."""
    kind = chance.random()
    if kind < 0.1:
        return data
    if kind < 0.15:
        return chance.randbytes(chance.randrange(200))
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        _change(changed, chance)
    return bytes(changed)


def _change(data: bytearray, chance: random.Random) -> None:
    place = chance.randrange(len(data) + 1)
    end = min(len(data), place + chance.choice((1, 2, 4, 16)))
    match chance.randrange(6):
        case 0:
            data[place:place] = chance.choice(_INTERESTING)
        case 1:
            data[place:end] = chance.choice(_INTERESTING)
        case 2:
            del data[place:end]
        case 3:
            del data[place:]
        case 4:
            data[place:place] = data[place:end]
        case _ if place < len(data):
            data[place] ^= 1 << chance.randrange(8)
        case _:
            data += b"\x00"
