"""Framing, preamble and codec on chosen bytes: each refusal in the words a person gets to read."""

import time
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest

from pccl.core.fields import Identity, KickKind
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.to_master import Failed, Join
from pccl.core.messages.to_peer import Kick, Welcome
from pccl.types import DataType
from pccl.wire.codec import decode_between, decode_to_master, decode_to_peer, encode
from pccl.wire.framing import (
    HEADER_BYTES,
    HELLO_FRAME_MAX,
    MAGIC,
    PREAMBLE_BYTES,
    REFUSAL_TEXT_MAX,
    TO_PEER_FRAME_MAX,
    VERSION,
    FrameReader,
    Purpose,
    WireError,
    WrongVersion,
    frame,
    frame_length,
    parse_preamble,
    parse_refusal,
    preamble,
    refusal,
)

pack = msgspec.msgpack.encode
ME = {"peer": "a" * 32, "group": 0, "host": "", "port": 1, "lanes": 0}
JOIN = {"type": "Join", "me": ME}


def packed_fields(*parts: bytes) -> bytes:
    """A map of the given encoded keys and values, which need not be sound."""
    return bytes([0x80 | (len(parts) // 2)]) + b"".join(parts)


# ── preamble and refusal ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_preamble_is_frozen() -> None:
    # Literal bytes on purpose: if these change, no released version can be told that ours is another one.
    assert preamble(Purpose.CONTROL)[:4] == b"PCCL"
    assert preamble(Purpose.LANE) == b"PCCL" + VERSION.to_bytes(2, "little") + b"\x02\x00"
    assert len(preamble(Purpose.CONTROL)) == PREAMBLE_BYTES == 8


@pytest.mark.parametrize("purpose", Purpose)
def test_preamble_round_trip(purpose: Purpose) -> None:
    assert parse_preamble(preamble(purpose)) is purpose


@pytest.mark.parametrize("theirs", [0, VERSION + 1, 256, 65535])
def test_another_version_is_told_by_name_whatever_else_the_preamble_says(theirs: int) -> None:
    with pytest.raises(WrongVersion) as caught:
        parse_preamble(MAGIC + theirs.to_bytes(2, "little") + b"\xee\xdd")
    assert caught.value.theirs == theirs
    assert f"version {theirs} " in str(caught.value)
    assert f"version {VERSION}:" in str(caught.value)


@pytest.mark.parametrize(
    ("first_bytes", "words"),
    [
        (b"GET / HT", "HTTP request"),
        (b"GET /", "HTTP request"),
        (b"POST /ap", "HTTP request"),
        (b"OPTIONS ", "HTTP request"),
        (b"CONNECT ", "HTTP proxy"),
        (b"PRI * HT", "HTTP/2 or gRPC"),
        (b"HTTP/1.1", "HTTP response"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS handshake"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "TLS alert"),
        (b"SSH-2.0-", "SSH"),
        (b"PROXY TC", "load balancer"),
        (b"\r\n\r\n\x00\r\nQUIT\n"[:8], "load balancer"),
        (b"\x00\x1b[31mAB", "00 1b 5b 33 31 6d 41 42"),
        (b"P", "a preamble of 1 bytes instead of 8"),
        (b"PCCL\x01", "a preamble of 5 bytes instead of 8"),
        (b"PCCX", "50 43 43 58"),
        (b"", "sent nothing"),
        (preamble(Purpose.LANE) + b"x", "a preamble of 9 bytes instead of 8"),
        (preamble(Purpose.LANE)[:6] + b"\x09\x00", "unknown purpose 9"),
        (preamble(Purpose.LANE)[:7] + b"\x07", "reserved byte of the preamble is 7"),
    ],
)
def test_a_stranger_is_recognised(first_bytes: bytes, words: str) -> None:
    with pytest.raises(WireError) as caught:
        parse_preamble(first_bytes)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_refusal_reaches_an_end_of_another_version() -> None:
    reason = "this master speaks version 1, you speak version 2: ask for the same release · así"
    sent = refusal(reason)
    assert sent[: len(MAGIC)] == MAGIC
    assert sent[PREAMBLE_BYTES:] == len(reason.encode()).to_bytes(4, "little") + reason.encode()
    (body,) = FrameReader(HELLO_FRAME_MAX).feed(sent[PREAMBLE_BYTES:])
    assert parse_refusal(body) == reason


def test_a_refusal_is_bounded_and_harmless_at_both_ends() -> None:
    (body,) = FrameReader(REFUSAL_TEXT_MAX).feed(refusal("ß" * 10_000 + "\ud800")[PREAMBLE_BYTES:])
    assert parse_refusal(body) == "ß" * (REFUSAL_TEXT_MAX // 2)
    assert parse_refusal(b"\x1b[31mred\xff\n") == " [31mred\N{REPLACEMENT CHARACTER} "
    assert len(parse_refusal(b"x" * 100_000)) == REFUSAL_TEXT_MAX
    assert parse_refusal(b"") == ""


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_frames_split_at_every_byte() -> None:
    bodies = [b"", b"a", b"bc" * 5, b"", b"def"]
    sent = b"".join(map(frame, bodies))
    for cut in range(len(sent) + 1):
        reader = FrameReader(limit=10)
        assert reader.feed(sent[:cut]) + reader.feed(sent[cut:]) == bodies
        assert reader.buffered == 0
    reader = FrameReader(limit=10)
    assert [body for byte in sent for body in reader.feed(bytes([byte]))] == bodies


def test_buffered_tells_a_cut_connection_from_a_closed_one() -> None:
    reader = FrameReader(limit=10)
    assert reader.buffered == 0
    reader.feed(frame(b"whole") + frame(b"half")[:2])
    assert reader.buffered == 2
    reader.feed(frame(b"half")[2:6])
    assert reader.buffered == 6
    assert reader.feed(frame(b"half")[6:]) == [b"half"]
    assert reader.buffered == 0


def test_a_frame_of_exactly_the_limit_passes_and_one_more_byte_does_not() -> None:
    assert FrameReader(limit=10).feed(frame(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(WireError, match="a frame of 11 bytes where 10 are allowed"):
        FrameReader(limit=10).feed(frame(b"x" * 11))


@pytest.mark.parametrize("together", [True, False])
def test_the_first_frame_may_have_a_limit_of_its_own(together: bool) -> None:
    sent = [frame(b"join"), frame(b"x" * 8)]
    reader = FrameReader(limit=4, then=8)
    assert [body for data in ([b"".join(sent)] if together else sent) for body in reader.feed(data)] == [
        b"join",
        b"x" * 8,
    ]
    with pytest.raises(WireError, match="a frame of 9 bytes where 8 are allowed"):
        reader.feed(frame(b"x" * 9))
    with pytest.raises(WireError, match="a frame of 8 bytes where 4 are allowed"):
        FrameReader(limit=4, then=8).feed(frame(b"x" * 8))


def test_a_reader_that_lost_its_place_stays_lost() -> None:
    reader = FrameReader(limit=4)
    with pytest.raises(WireError):
        reader.feed(b"GET / HTTP/1.1\r\n")
    assert reader.buffered == 0
    with pytest.raises(WireError, match="where 4 are allowed"):
        reader.feed(frame(b"ok"))


def test_frame_length_for_exact_reads() -> None:
    assert frame_length(frame(b"hello")[:HEADER_BYTES], limit=5) == 5
    with pytest.raises(WireError, match="a frame of 5 bytes where 4 are allowed"):
        frame_length(frame(b"hello")[:HEADER_BYTES], limit=4)


@pytest.mark.parametrize("announced", [TO_PEER_FRAME_MAX, TO_PEER_FRAME_MAX + 1, 2**32 - 1])
def test_an_announced_length_allocates_nothing(announced: int) -> None:
    readers = [FrameReader(TO_PEER_FRAME_MAX) for _ in range(10)]
    tracemalloc.start()
    try:
        for reader in readers:
            try:
                reader.feed(announced.to_bytes(4, "little") + b"x" * 100)
            except WireError:
                assert announced > TO_PEER_FRAME_MAX
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    "portions",
    [
        pytest.param(lambda: [b"x"] * 2**18, id="one byte at a time"),
        pytest.param(lambda: [frame(b"x") * 200_000], id="all at once"),
    ],
)
def test_reading_takes_linear_time(portions: Callable[[], list[bytes]]) -> None:
    # A reader that copies what remains for each frame or portion moves 30 GB or more here: many times the bound, which
    # in turn is many times what a linear one needs. Processor time, because the machine may be busy.
    reader = FrameReader(limit=2**20)
    data = portions()
    if len(data) > 1:
        reader.feed(frame(b"x" * 2**18)[:HEADER_BYTES])
    began = time.process_time()
    bodies = [body for portion in data for body in reader.feed(portion)]
    assert time.process_time() - began < 3.0
    assert sum(map(len, bodies)) in (2**18, 200_000)


# ── codec ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_encoding_is_a_map_with_the_name_of_the_message() -> None:
    join = Join(Identity(peer="a" * 32, group=0, host="", port=1, lanes=0))
    label = {"name": "", "machine": "", "pid": 0, "release": "", "process": ""}
    me = {
        **ME,
        "visits": False,
        "serves": True,
        "secret": "",
        "label": label,
        "pin": b"",
        "lane_tls": "",
        "lanes_max": 0,
        "threads": 1,
        "party": {"name": "", "size": 1, "key": b""},
    }
    assert msgspec.msgpack.decode(encode(join)) == {**JOIN, "me": me, "dial": 0}
    assert decode_to_master(encode(join)) == join


def test_each_direction_refuses_the_messages_of_the_others() -> None:
    hello = LaneHello(run="r", sender="a", receiver="b", link=1, lane=0)
    for decode, body in [
        (decode_to_master, encode(Welcome(run="r"))),
        (decode_to_master, encode(hello)),
        (decode_to_peer, encode(Join(Identity(**ME)))),  # type: ignore[arg-type]
        (decode_between, encode(Ping())),
    ]:
        with pytest.raises(WireError, match="none of those allowed"):
            decode(body)
    assert decode_to_master(encode(Pong())) == decode_to_peer(encode(Pong())) == Pong()


def test_an_unknown_field_is_skipped() -> None:
    assert decode_to_master(pack({**JOIN, "later": {"deep": [1, None, 2.5]}})) == decode_to_master(pack(JOIN))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(b"\xc1", "malformed", id="byte that MessagePack never uses"),
        pytest.param(pack({"type": "Ping"}) + b"\x00", "trailing", id="bytes behind the message"),
        pytest.param(pack({"type": "Ping"})[:-1], "truncated", id="cut"),
        pytest.param(pack(None), "Expected `object`", id="nil"),
        pytest.param(pack([1, 2]), "Expected `object`", id="array"),
        pytest.param(pack({}), "required field `type`", id="no type"),
        pytest.param(pack({"type": 5}), "$.type", id="type is a number"),
        pytest.param(pack({"type": "Join"}), "required field `me`", id="field missing"),
        pytest.param(pack({**JOIN, "me": {**ME, "port": 1.0}}), "$.me.port", id="float for int"),
        pytest.param(pack({**JOIN, "me": {**ME, "port": float("nan")}}), "$.me.port", id="nan for int"),
        pytest.param(pack({**JOIN, "me": {**ME, "port": True}}), "$.me.port", id="bool for int"),
        pytest.param(pack({**JOIN, "me": {**ME, "port": "1"}}), "$.me.port", id="text for int"),
        pytest.param(pack({**JOIN, "me": {**ME, "peer": b"a"}}), "$.me.peer", id="bytes for text"),
        pytest.param(packed_fields(pack("type"), b"\xa2\xff\xfe"), "not UTF-8", id="type not UTF-8"),
        pytest.param(
            pack({**JOIN, "me": {**ME, "peer": "abc"}}).replace(b"\xa3abc", b"\xa3\xed\xa0\x80"),
            "not UTF-8",
            id="surrogate as UTF-8",
        ),
        pytest.param(
            packed_fields(pack("type"), pack("Ping"), pack("x"), b"\x91" * 60_000), "nested", id="nested, type first"
        ),
        pytest.param(packed_fields(pack("x"), b"\x91" * 60_000), "nested", id="nested, type missing"),
        pytest.param(packed_fields(pack("x"), b"\xdd\xff\xff\xff\xff"), "truncated", id="huge array"),
        pytest.param(b"\xdf\xff\xff\xff\xff" + pack("type") + pack("Ping"), "truncated", id="huge map"),
        pytest.param(packed_fields(pack("type"), b"\xdb\xff\xff\xff\xff"), "truncated", id="huge text"),
        pytest.param(packed_fields(pack("x"), b"\xc9\xff\xff\xff\xff\x01"), "truncated", id="huge extension"),
        pytest.param(
            pack({"type": "Initiate", "tag": 1, "spec": {"count": 1, "dtype": len(DataType), "op": 0}}),
            "none of those allowed at `$.spec.dtype`",
            id="unknown dtype",
        ),
    ],
)
def test_bytes_that_are_no_message(body: bytes, words: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as caught:
            decode_to_master(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words in str(caught.value)
    assert peak < 1_000_000


def test_a_huge_ring_is_refused_before_it_is_allocated() -> None:
    body = packed_fields(pack("type"), pack("Topology"), pack("ring"), b"\xdd\xff\xff\xff\xff")
    with pytest.raises(WireError, match=r"length <= 65536 at `\$.ring`"):
        decode_to_peer(body)


def test_an_error_never_quotes_what_the_sender_wrote() -> None:
    for evil in ["\x1b[31m" * 5000, "x - at `$.evil`", "Expected - at evil"]:
        with pytest.raises(WireError) as caught:
            decode_to_master(pack({"type": evil}))
        assert "evil" not in str(caught.value)
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) <= 200
        assert caught.value.__cause__ is None


def test_a_text_of_4096_characters_passes_and_a_longer_one_of_our_own_does_not() -> None:
    # `encode` does not check: whoever builds a message must keep its texts this short.
    assert decode_to_peer(encode(Kick(KickKind.FULL, "😀" * 4096))) == Kick(KickKind.FULL, "😀" * 4096)
    with pytest.raises(WireError, match="length <= 4096"):
        decode_to_peer(encode(Kick(KickKind.FULL, "x" * 4097)))
    with pytest.raises(UnicodeEncodeError):
        encode(Failed(tag=1, attempt=1, cause="\ud800"))
