"""The wire against every message there is and against bytes that are none.

What messages look like is read from their structs, so a new message or field is covered without a change here.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from msgspec import inspect

from pccl.core.messages import both, lanes, observers, report, to_master, to_peer
from pccl.core.messages.lanes import Between, LaneAnswer, LaneHello
from pccl.core.messages.observers import AskProbe, AskStatus, ToObserver
from pccl.core.messages.to_master import Join, Resume, ToMaster
from pccl.core.messages.to_peer import ToPeer
from pccl.wire import framing
from pccl.wire.codec import decode_between, decode_to_master, decode_to_observer, decode_to_peer, encode
from pccl.wire.framing import FrameReader, WireError, frame, parse_preamble, parse_refusal

Decode = Callable[[bytes], Any]
DIRECTIONS: dict[Decode, tuple[type, ...]] = {
    decode_to_master: get_args(ToMaster),
    decode_to_peer: get_args(ToPeer),
    decode_between: get_args(Between),
    decode_to_observer: get_args(ToObserver),
}
EVERY = [
    pytest.param(decode, kind, id=f"{decode.__name__}-{kind.__name__}")
    for decode, kinds in DIRECTIONS.items()
    for kind in kinds
]
PRINTABLE = st.characters(exclude_categories=("C", "Z")) | st.just(" ")
"""What texts are made of when they have come in."""
LISTED_MAX = 20
"""Elements per generated tuple: the bounds themselves are tested apart, and large ones only make the search slow."""


def struct_of(kind: type) -> inspect.StructType:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return info


def highest(info: inspect.IntType) -> int:
    """Msgspec has no bounds above 2^63 - 1; a number without one is a tag, and ends where MessagePack's do."""
    return 2**64 - 1 if info.le is None else info.le


def values(info: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may hold."""
    match info:
        case inspect.StructType():
            return st.builds(info.cls, **{field.name: values(field.type) for field in info.fields})
        case inspect.EnumType():
            return st.sampled_from(info.cls)
        case inspect.UnionType(types=(one, inspect.NoneType())):
            return st.none() | values(one)
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return st.integers(info.ge, highest(info))
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern, fullmatch=True).filter(lambda text: len(text) <= (info.max_length or 0))
        case inspect.StrType():
            return st.text(PRINTABLE, min_size=info.min_length or 0, max_size=info.max_length)
        case inspect.BytesType(min_length=None, max_length=32):  # a pin or a key, which is whole or not there
            return st.just(b"") | st.binary(min_size=32, max_size=32)
        case inspect.BytesType():
            return st.binary(min_size=info.min_length or 0, max_size=info.max_length)
        case inspect.VarTupleType():
            most = min(info.max_length or LISTED_MAX, LISTED_MAX)
            return st.lists(values(info.item_type), min_size=info.min_length or 0, max_size=most).map(tuple)
    raise NotImplementedError(f"teach this test about {info}")


def plain(value: Any) -> Any:
    """The value as MessagePack holds it: maps, arrays and scalars."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def largest(info: inspect.Type, character: str) -> Any:
    """The value of this type that takes the most bytes, its texts made of this character."""
    match info:
        case inspect.StructType():
            return info.cls(**{field.name: largest(field.type, character) for field in info.fields})
        case inspect.EnumType():
            return max(info.cls, key=lambda member: member.value)
        case inspect.UnionType(types=(one, inspect.NoneType())):
            return largest(one, character)
        case inspect.LiteralType():
            return max(info.values, key=len)
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return highest(info)
        case inspect.FloatType():
            return 1.0
        case inspect.StrType(pattern=str()):
            return "x" * (info.max_length or 0)
        case inspect.StrType():
            return character * (info.max_length or 0)
        case inspect.BytesType():
            return b"x" * (info.max_length or 0)
        case inspect.VarTupleType():
            return (largest(info.item_type, character),) * (info.max_length or 0)
    raise NotImplementedError(f"teach this test about {info}")


def wrong(info: inspect.Type) -> Iterator[Any]:
    """Plain values just outside what this type allows, in each way it limits them."""
    if isinstance(info, inspect.UnionType):
        yield from (value for value in wrong(info.types[0]) if value is not None)
        return
    yield None
    match info:
        case inspect.StructType():
            for field in info.fields:
                sound = plain(largest(info, "x"))
                for value in wrong(field.type):
                    yield {**sound, field.name: value}
        case inspect.EnumType():
            numbers = [member.value for member in info.cls]
            yield from (max(numbers) + 1, min(numbers) - 1)
        case inspect.LiteralType():
            yield from ("none of these", 1)
        case inspect.BoolType():
            yield 1
        case inspect.IntType():
            assert info.ge is not None, "a number without lower bound"
            yield from (info.ge - 1, 1.5, float(info.ge))
            if info.le is not None:
                yield info.le + 1
        case inspect.FloatType():
            yield "1.0"
        case inspect.StrType() | inspect.BytesType():
            assert info.max_length is not None, "a text without bound"
            kind = "x" if isinstance(info, inspect.StrType) else b"x"
            yield kind * (info.max_length + 1)
            if info.min_length:
                yield kind * (info.min_length - 1)
            if isinstance(info, inspect.StrType) and info.pattern:
                yield from (text for text in ("", "\x1b[2J", "a\n", "é") if not re.search(info.pattern, text))
        case inspect.VarTupleType():
            assert info.max_length is not None, "a tuple without bound"
            sound = plain(largest(info.item_type, "x"))
            yield [sound] * (info.max_length + 1)
            if info.min_length:
                yield [sound] * (info.min_length - 1)
            yield from ([value] for value in wrong(info.item_type))


def all_messages(decode: Decode) -> st.SearchStrategy[Any]:
    return st.one_of([values(struct_of(kind)) for kind in DIRECTIONS[decode]])


def refused(call: Callable[[], Any]) -> WireError | None:
    """The `WireError` of this call, if it ends in one; anything else it raises fails the test."""
    try:
        call()
    except WireError as error:
        return error
    return None


def decode_or_refuse(decode: Decode, body: bytes) -> None:
    """Whatever the bytes: a message of this direction that survives another trip, or a short printable `WireError`."""
    error = refused(lambda: decode(body))
    if error is not None:
        assert 0 < len(str(error)) <= 200
        assert str(error).isprintable()
    else:
        message = decode(body)
        assert type(message) in DIRECTIONS[decode]
        assert decode(encode(message)) == message


# ── every message ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_message_has_a_direction() -> None:
    tagged = {
        kind
        for module in (to_master, report, to_peer, both, lanes, observers)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag is not None
    }
    assert tagged == {kind for kinds in DIRECTIONS.values() for kind in kinds}


@pytest.mark.parametrize(("decode", "kind"), EVERY)
@settings(max_examples=25)
@given(data=st.data())
def test_every_message_survives_the_trip(decode: Decode, kind: type, data: st.DataObject) -> None:
    message = data.draw(values(struct_of(kind)))
    arrived = decode(encode(message))
    assert arrived == message
    assert type(arrived) is kind


@pytest.mark.parametrize(("decode", "kind"), EVERY)
def test_every_bound_of_every_field_is_enforced(decode: Decode, kind: type) -> None:
    fields = struct_of(kind).fields
    sound = plain(largest(struct_of(kind), "x"))
    assert decode(msgspec.msgpack.encode(sound)) == largest(struct_of(kind), "x")
    for field in fields:
        for value in wrong(field.type):
            with pytest.raises(WireError, match=rf"\$\.{field.name}\b"):
                decode(msgspec.msgpack.encode({**sound, field.name: value}))
        if field.required:
            with pytest.raises(WireError, match=f"missing required field `{field.name}`"):
                decode(msgspec.msgpack.encode({name: value for name, value in sound.items() if name != field.name}))


@pytest.mark.parametrize(
    ("limit", "kinds", "character"),
    [
        pytest.param(
            framing.HELLO_FRAME_MAX, (Join, Resume, AskStatus, AskProbe, LaneHello, LaneAnswer), "😀", id="hello"
        ),
        pytest.param(framing.TO_MASTER_FRAME_MAX, get_args(ToMaster), "😀", id="to master"),
        # Ids are hexadecimal and host names ASCII: only a master that is none of ours sends wider ones.
        pytest.param(framing.TO_PEER_FRAME_MAX, get_args(ToPeer), "x", id="to peer"),
        pytest.param(framing.TO_PEER_FRAME_MAX, get_args(ToObserver), "x", id="to observer"),
    ],
)
def test_the_largest_message_fits_its_frame(limit: int, kinds: tuple[type, ...], character: str) -> None:
    for kind in kinds:
        body = encode(largest(struct_of(kind), character))
        assert FrameReader(limit).feed(frame(body)) == [body], kind.__name__


# ── bytes that are none ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("decode", DIRECTIONS, ids=lambda decode: decode.__name__)
@given(body=st.binary(max_size=200))
def test_garbage_is_refused(decode: Decode, body: bytes) -> None:
    decode_or_refuse(decode, body)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize("decode", DIRECTIONS, ids=lambda decode: decode.__name__)
@given(data=st.data())
def test_sound_messagepack_with_the_wrong_things_in_it(decode: Decode, data: st.DataObject) -> None:
    message = plain(data.draw(all_messages(decode)))
    for name in data.draw(st.sets(st.sampled_from(sorted(message)))):
        message[name] = data.draw(anything)
    message.update(data.draw(st.dictionaries(st.text(max_size=8), anything, max_size=2)))
    decode_or_refuse(decode, msgspec.msgpack.encode(message))


@pytest.mark.parametrize("decode", DIRECTIONS, ids=lambda decode: decode.__name__)
@given(data=st.data())
def test_damaged_messages(decode: Decode, data: st.DataObject) -> None:
    body = bytearray(encode(data.draw(all_messages(decode))))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(body)))
        removed = data.draw(st.integers(0, 3))
        body[place : place + removed] = data.draw(st.binary(max_size=3))
    decode_or_refuse(decode, bytes(body))


@given(data=st.binary(max_size=16))
def test_any_first_bytes_are_a_purpose_or_a_printable_refusal(data: bytes) -> None:
    error = refused(lambda: parse_preamble(data))
    if error is not None:
        assert str(error).isprintable()
        assert len(str(error)) <= 200
    else:
        assert framing.preamble(parse_preamble(data)) == data
    assert all(character.isprintable() for character in parse_refusal(data))


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def portions_of(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


cuts = st.lists(st.integers(0, 10_000), max_size=20)


@given(bodies=st.lists(st.binary(max_size=50), max_size=10), cuts=cuts)
def test_frames_split_anywhere(bodies: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader(limit=50)
    arrived = [body for part in portions_of(b"".join(map(frame, bodies)), cuts) for body in reader.feed(part)]
    assert arrived == bodies
    assert reader.buffered == 0


@given(
    data=st.lists(st.binary(max_size=80) | st.binary(max_size=40).map(frame), max_size=6).map(b"".join),
    cuts=cuts,
    limit=st.integers(0, 60),
)
def test_a_reader_never_keeps_more_than_one_frame(data: bytes, cuts: list[int], limit: int) -> None:
    reader = FrameReader(limit)
    bodies: list[bytes] = []
    for part in portions_of(data, cuts):
        error = refused(lambda part=part: bodies.extend(reader.feed(part)))  # type: ignore[misc]
        assert error is None or f"where {limit} are allowed" in str(error)
        assert error is None or reader.buffered == 0
        assert reader.buffered < limit + 4
    assert all(len(body) <= limit for body in bodies)
