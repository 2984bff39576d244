"""Manifests: what two digests stand for, how layouts differ, what is wanted, and that no bytes do harm."""

import contextlib
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pccl.dataplane.state import manifest as module
from pccl.dataplane.state.digests import CHUNK_BYTES
from pccl.dataplane.state.manifest import BadManifest, Described, Manifest, decode, difference, take_manifest
from pccl.dataplane.state.transfer import Lane, LaneBroke
from pccl.errors import UsageError
from pccl.types import DataType
from tests.native.rings import connection
from tests.state.rig import Content, copied, holding, random_content

FLOATS = DataType.FLOAT


def contents():
    return [
        random_content("weight", 3 * CHUNK_BYTES + 4, 1, FLOATS),
        random_content("bias", 40, 2, FLOATS),
        random_content("noise", 2 * CHUNK_BYTES, 3, DataType.UINT8, free=True),
        Content("empty", np.empty(0, np.uint8)),
    ]


def described(*entries):
    return Manifest(tuple(Described(name, dtype, count, free, b"") for name, dtype, count, free in entries))


def test_what_the_two_digests_stand_for():
    state = contents()
    first = holding(state).manifest
    again = copied(state)
    assert holding(again).manifest == first
    again[2].array[0] ^= 1  # free
    free_changed = holding(again).manifest
    assert (free_changed.layout, free_changed.content) == (first.layout, first.content)
    again[1].array.view(np.uint8)[0] ^= 1
    changed = holding(again).manifest
    assert changed.layout == first.layout
    assert changed.content != first.content
    assert len(first.layout) == len(first.content) == 16


def test_names_and_counts_do_not_run_into_each_other():
    one = described(("ab", FLOATS, 1, False), ("c", FLOATS, 1, False))
    other = described(("a", FLOATS, 1, False), ("bc", FLOATS, 1, False))
    assert one.layout != other.layout


BASE = (("a", FLOATS, 4, False), ("b", FLOATS, 5, False), ("c", FLOATS, 6, True))
DIFFERENCES = {
    "missing here at the end": ((*BASE, ("d", FLOATS, 1, False)), "entry 'd' of the elected state is missing here"),
    "missing here in between": ((BASE[0], ("x", FLOATS, 1, False), *BASE[1:]), "entry 'x' of the elected state is mi"),
    "extra at the end": (BASE[:2], "entry 'c' is not in the elected state"),
    "extra in between": ((BASE[0], BASE[2]), "entry 'b' is not in the elected state"),
    "nothing elected": ((), "entry 'a' is not in the elected state"),
    "other order": ((BASE[1], BASE[0], BASE[2]), "entry 0 is 'a' here, 'b' in the elected state: another order"),
    "type": ((("a", DataType.DOUBLE, 4, False), *BASE[1:]), "entry 'a' is FLOAT here, DOUBLE in the elected state"),
    "count": ((BASE[0], ("b", FLOATS, 6, False), BASE[2]), "entry 'b' has 5 elements here, 6 in the elected state"),
    "not free": ((*BASE[:2], ("c", FLOATS, 6, False)), "entry 'c' may differ from peer to peer here, may not"),
    "free": ((("a", FLOATS, 4, True), *BASE[1:]), "entry 'a' may not differ from peer to peer here, may in"),
}


@pytest.mark.parametrize(("theirs", "sentence"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_names_the_first_entry(theirs, sentence):
    mine, theirs = described(*BASE), described(*theirs)
    assert difference(mine, theirs).startswith(sentence)
    assert mine.layout != theirs.layout
    assert difference(mine, mine) == difference(theirs, theirs) == ""


def test_a_name_made_to_spoil_a_terminal_does_not():
    sentence = difference(described(), described(("\x1b[2J" + "x" * 1000, FLOATS, 1, False)))
    assert sentence.isprintable()
    assert len(sentence) < 200


def test_what_no_peer_could_read_is_refused():
    array = np.zeros(3, np.uint8)
    wrong = {
        "two entries 'a'": [Content("a", array).entry, Content("a", array).entry],
        "too long": [Content("x" * (module.NAME_CHARACTERS_MAX + 1), array).entry],
        "UTF-8": [Content("\ud800", array).entry],
        "does not describe": [msgspec.structs.replace(Content("a", array).entry, count=4)],
    }
    for sentence, entries in wrong.items():
        with pytest.raises(UsageError, match=sentence):
            take_manifest(entries)


# ── decoding ─────────────────────────────────────────────────────────────────────────────────────────────────────────

HONEST = holding(contents()).manifest


def test_what_is_sent_is_what_comes():
    come = decode(HONEST.encoded)
    assert come == HONEST
    assert come.content == HONEST.content


def test_a_layout_fixes_the_length_of_the_manifest():
    other = copied(contents())
    for content in other[:3]:
        content.array[...] = 7
    assert len(holding(other).manifest.encoded) == len(HONEST.encoded)


def encoded(*entries):
    return msgspec.msgpack.encode(entries)


BAD = {
    "digests missing": encoded(("a", 0, 1, False, b"")),
    "too many digests": encoded(("a", 0, 1, False, bytes(32))),
    "half a digest": encoded(("a", 0, 1, False, bytes(8))),
    "negative": encoded(("a", 0, -1, False, b"")),
    "huge": encoded(("a", 0, module.COUNT_MAX + 1, False, b"")),
    "huge within bounds": encoded(("a", 7, module.COUNT_MAX, False, bytes(16))),
    "no such type": encoded(("a", 12, 1, False, bytes(16))),
    "long name": encoded(("a" * 1025, 0, 0, False, b"")),
    "text for bytes": encoded(("a", 0, 0, False, "")),
    "too short": encoded(("a", 0, 0, False)),
    "no list": msgspec.msgpack.encode({}),
    "no text": b"\x91\x95\xa1\xff\x00\x00\xc2\xc4\x00",
    "a claim of many": b"\xdd\xff\xff\xff\xff",
    "more than allowed": b"\xdd\x00\x10\x00\x01" + encoded(("a", 0, 0, False, b""))[1:] * 10,
    "nothing": b"",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_what_is_no_manifest_is_refused(body):
    with pytest.raises(BadManifest):
        decode(body)


def decoded_or_refused(body):
    try:
        come = decode(body)
    except BadManifest as error:
        sentence = str(error)
    else:
        sentence = difference(HONEST, come)
        assert decode(come.encoded) == come
        assert len(come.content) == 16
    assert sentence.isprintable()


@given(st.binary(max_size=300))
def test_any_bytes(body):
    decoded_or_refused(body)


@given(st.lists(st.tuples(st.integers(0, len(HONEST.encoded) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_manifest(damage):
    body = bytearray(HONEST.encoded)
    for place, value in damage:
        body[place] = value
    decoded_or_refused(bytes(body))


@given(st.integers(0, len(HONEST.encoded) - 1))
def test_a_manifest_cut_short(length):
    with pytest.raises(BadManifest):
        decode(HONEST.encoded[:length])


# ── types of elements that cannot be reduced ─────────────────────────────────────────────────────────────────────────


def test_other_types_go_by_their_name_and_count_bytes():
    masks = described(("mask", "bool", 8, False), ("table", "complex64", 16, False))
    assert [entry.nbytes for entry in masks.entries] == [8, 16]
    bare = [("mask", DataType.UINT8, 8, False), ("table", "complex64", 16, False)]
    assert masks.layout != described(*bare).layout
    assert "entry 'mask' is 'bool' here, UINT8 in the elected state" in difference(masks, described(*bare))
    longer = described(("mask", "bool", 9, False), ("table", "complex64", 16, False))
    assert difference(masks, longer) == "entry 'mask' has 8 bytes here, 9 in the elected state"


def test_the_name_of_a_type_does_not_run_into_the_next_entry():
    one = described(("a", "bool", 0, False), ("b", "half", 0, False))
    assert len({one.layout, described(("a", "boolx", 0, False), ("b", "half", 0, False)).layout}) == 2
    with pytest.raises(BadManifest):
        decode(msgspec.msgpack.encode([["a", "x" * 33, 0, False, b""]]))
    entry = msgspec.structs.replace(contents()[1].entry, dtype="x" * 33)
    with pytest.raises(UsageError, match="'bias' has elements of a type without a name, or with a long one"):
        take_manifest([entry])


def test_other_types_arrive_as_they_were_sent():
    mask = Content("mask", np.array([1, 0, 1], np.uint8)).entry
    sent = take_manifest([msgspec.structs.replace(mask, dtype="bool")])
    came = decode(sent.encoded)
    assert (came.layout, came.content, came.entries[0].dtype) == (sent.layout, sent.content, "bool")


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────

FACTOR = 20


def taken(work):
    """The most memory that this takes."""
    tracemalloc.start()
    try:
        with contextlib.suppress(BadManifest):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def examined(body):
    """As a pull looks at what came."""
    manifest = decode(body)
    return manifest.layout, manifest.content


@pytest.mark.parametrize(
    "entry",
    [
        ("", 0, 0, False, b""),
        ("x", "", 0, True, b""),
        ("x", 0, 300, True, bytes(16)),
        ("a" * 200 + "😀", 0, 0, False, b""),
    ],
    ids=["empty", "unnamed type", "short", "wide name"],
)
def test_a_manifest_takes_no_more_memory_than_its_page_says(entry):
    """Entries of seven bytes took 43 times as much."""
    body = msgspec.msgpack.encode([entry] * 40_000)
    assert taken(lambda: examined(body)) < FACTOR * len(body)


def test_as_many_entries_as_ours_are_always_read():
    """Also if they are empty and have short names."""
    body = msgspec.msgpack.encode([(chr(97 + place % 26), 0, 0, False, b"") for place in range(5000)])
    with pytest.raises(BadManifest, match="more than its length allows"):
        decode(body)
    assert len(decode(body, 5000).entries) == 5000
    with pytest.raises(BadManifest, match="more than its length allows"):
        decode(body, 4999)


def test_what_is_announced_is_not_allocated():
    """64 MiB were, for a header of 24 bytes."""
    near, far = connection()
    lane = Lane(1, 0, near, 0.2)
    far.send(bytes(1000))

    def receive():
        with pytest.raises(LaneBroke):
            lane.receive_growing(64 << 20, lambda: False)

    assert taken(receive) < 1 << 20
    near.close()
    far.close()
