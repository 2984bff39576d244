"""What a peer holds, told without the contents: names, types, counts and digests.

Owns the manifest, its form on the wire and the comparison of two of them. Nothing that came over the wire is trusted:
decoding raises `BadManifest` and nothing else. Must not know lanes or elections.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

from msgspec import DecodeError, Meta, Struct, ValidationError
from msgspec.msgpack import Decoder, Encoder

from pccl.dataplane.state.digests import CHUNK_BYTES, DIGEST_BYTES, Progress, chunk_bytes, chunks, content_digests
from pccl.dataplane.state.digests import digest as digest_of
from pccl.dataplane.tensors.buffers import Tensor
from pccl.dataplane.tensors.device import Remote
from pccl.dataplane.tensors.elements import Element
from pccl.errors import UsageError
from pccl.types import DataType, Result

ENTRIES_MAX = 1 << 20
"""The largest models have some 10,000 tensors, with the optimizer's state 30,000."""
NAME_CHARACTERS_MAX = 1024
COUNT_MAX = 1 << 56
"""Elements of one entry: no machine has more, and eight times as many bytes fit a signed 64-bit number."""
FOREIGN_BYTES_MIN, FOREIGN_BYTES_FACTOR = 1 << 20, 2
"""Of a manifest that is read only to say how its layout differs from ours: so much, and twice as much as ours takes.
One whose layout is ours has a length that we know, however long."""

ENTRY_BYTES_MIN = 24
"""What an entry that has any content takes in a manifest, with a name of one letter."""
SMALL_ENTRIES_MAX = 1024
"""Entries of a foreign manifest that may be shorter, such as empty ones. Together these bound what is made of a
manifest: an entry takes some 250 bytes in memory, a dozen times as much as that, however short it was on the wire."""

ELEMENT_CHARACTERS_MAX = 32
"""Of the name of a type of elements: torch's longest has 15."""

_OTHER = 255
"""Stands for a type of elements that has no number."""
_NAME_SHOWN_MAX = 80
_LAYOUT = f"pccl layout 1, chunks of {CHUNK_BYTES}".encode()
_ENTRY = struct.Struct("<IBBQ")


class Entry(Struct, frozen=True):
    """One tensor of the shared state."""

    name: str
    dtype: Element
    count: int
    """Of bytes, if it has the name of a type that cannot be reduced."""
    free: bool
    """Its content may differ from peer to peer; only a newcomer is given a holder's."""
    tensor: Tensor | Remote


class Described(Struct, frozen=True, array_like=True):
    """An entry without its content."""

    name: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    dtype: DataType | Annotated[str, Meta(max_length=ELEMENT_CHARACTERS_MAX)]
    count: Annotated[int, Meta(ge=0, le=COUNT_MAX)]
    free: bool
    digests: bytes
    """Of its chunks, one after the other."""

    @property
    def nbytes(self) -> int:
        return self.count * (1 if isinstance(self.dtype, str) else self.dtype.itemsize)


class Chunk(NamedTuple):
    """A place in the state."""

    entry: int
    number: int
    """Of the chunk in its entry."""


class BadManifest(Exception):
    """What came is no manifest; the sentence says why."""


_Entries = Annotated[tuple[Described, ...], Meta(max_length=ENTRIES_MAX)]
_encoder = Encoder()
_decoder: Decoder[_Entries] = Decoder(_Entries)


@dataclass(frozen=True)
class Manifest:
    """All entries of a peer, in its order, and the two digests that peers compare."""

    entries: tuple[Described, ...]

    @cached_property
    def layout(self) -> bytes:
        """16 bytes that stand for names, types, counts and flags, in order."""
        parts = [_LAYOUT]
        for entry in self.entries:
            name, other = entry.name.encode(), isinstance(entry.dtype, str)
            parts += [_ENTRY.pack(len(name), _OTHER if other else entry.dtype, entry.free, entry.count), name]
            if isinstance(entry.dtype, str):
                parts.append(entry.dtype.encode().ljust(4 * ELEMENT_CHARACTERS_MAX, b"\0"))
        return digest_of(b"".join(parts))

    @cached_property
    def content(self) -> bytes:
        """16 bytes that stand for the layout and for every byte of the entries that are not free."""
        return digest_of(self.layout + b"".join(entry.digests for entry in self.entries if not entry.free))

    @cached_property
    def encoded(self) -> bytes:
        """As it goes over a lane. Manifests of one layout are equally long."""
        return _encoder.encode(self.entries)

    def chunk_bytes(self, chunk: Chunk) -> int:
        """The length of a chunk."""
        return chunk_bytes(self.entries[chunk.entry].nbytes, chunk.number)

    def has(self, chunk: Chunk) -> bool:
        """Whether there is such a place."""
        return 0 <= chunk.entry < len(self.entries) and 0 <= chunk.number < chunks(self.entries[chunk.entry].nbytes)


class Holding(NamedTuple):
    """A peer's state: where it lies, and what is known of it."""

    entries: Sequence[Entry]
    manifest: Manifest


def take_manifest(entries: Sequence[Entry], progress: Progress | None = None) -> Manifest:
    """Hash everything. The contents must not change meanwhile."""
    _examine(entries)
    digests = content_digests([entry.tensor for entry in entries], progress)
    return Manifest(
        tuple(
            Described(entry.name, entry.dtype, entry.count, entry.free, found)
            for entry, found in zip(entries, digests, strict=True)
        )
    )


def _examine(entries: Sequence[Entry]) -> None:
    """Refuse what no other peer could read or tell apart."""
    if len(entries) > ENTRIES_MAX:
        raise _wrong(f"{len(entries)} entries are too many; at most {ENTRIES_MAX}")
    names: set[str] = set()
    for entry in entries:
        if len(entry.name) > NAME_CHARACTERS_MAX:
            raise _wrong(f"the name {shown(entry.name)} is too long; at most {NAME_CHARACTERS_MAX} characters")
        if not entry.name.isascii() and not _encodable(entry.name):
            raise _wrong(f"the name {shown(entry.name)} cannot be written as UTF-8")
        if entry.name in names:
            raise _wrong(f"there are two entries {shown(entry.name)}")
        if isinstance(entry.dtype, str) and not (entry.dtype and len(entry.dtype) <= ELEMENT_CHARACTERS_MAX):
            raise _wrong(f"entry {shown(entry.name)} has elements of a type without a name, or with a long one")
        dtype = DataType.UINT8 if isinstance(entry.dtype, str) else entry.dtype
        if (entry.tensor.count, entry.tensor.dtype) != (entry.count, dtype):
            raise _wrong(f"entry {shown(entry.name)} does not describe its tensor")
        names.add(entry.name)


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(why: str) -> UsageError:
    return UsageError(f"shared state: {why}", Result.INVALID_ARGUMENT)


def foreign_bytes_max(own: Manifest) -> int:
    """How long a manifest of another layout than this may be, so that it is read at all."""
    return FOREIGN_BYTES_MIN + FOREIGN_BYTES_FACTOR * len(own.encoded)


def decode(body: bytes | bytearray | memoryview, entries: int | None = None) -> Manifest:
    """What another peer reports that it holds: so many entries, or unknown ones, whose number their bytes limit. The
    length of `body` is the caller's to bound; what is made of it takes some twenty times as much memory at worst.
    Raises `BadManifest`."""
    announced = _announced_entries(body)
    most = SMALL_ENTRIES_MAX + len(body) // ENTRY_BYTES_MIN if entries is None else entries
    if announced > most:
        raise BadManifest(f"no manifest: it announces {announced} entries, more than its length allows")
    try:
        found = _decoder.decode(body)
    except (ValidationError, DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadManifest(f"no manifest ({type(error).__name__})") from None
    for place, entry in enumerate(found):
        if len(entry.digests) != chunks(entry.nbytes) * DIGEST_BYTES:
            raise BadManifest(f"no manifest: entry {place} has not as many digests as chunks")
    return Manifest(found)


def _announced_entries(body: bytes | bytearray | memoryview) -> int:
    """How many entries the head of the array says that there are; 0 if it is none, which decoding finds out."""
    head = bytes(body[:5])
    if head[:1] == b"\xdd":
        return int.from_bytes(head[1:], "big")
    return int.from_bytes(head[1:3], "big") if head[:1] == b"\xdc" else 0


def shown(name: str) -> str:
    """A name for a sentence: it may be another peer's, and made to spoil a terminal."""
    return ascii(name if len(name) <= _NAME_SHOWN_MAX else name[:_NAME_SHOWN_MAX] + "...")


def shown_element(dtype: Element) -> str:
    """A type of elements for a sentence."""
    return shown(dtype) if isinstance(dtype, str) else dtype.name


def difference(mine: Manifest, theirs: Manifest) -> str:
    """A sentence that names the first entry in which two layouts differ, and how; empty if they do not."""
    for place, (own, other) in enumerate(zip(mine.entries, theirs.entries, strict=False)):
        if own.name != other.name:
            return _other_name(place, mine, theirs)
        if own.dtype != other.dtype:
            here, there = shown_element(own.dtype), shown_element(other.dtype)
            return f"entry {shown(own.name)} is {here} here, {there} in the elected state"
        if own.count != other.count:
            unit = "bytes" if isinstance(own.dtype, str) else "elements"
            return f"entry {shown(own.name)} has {own.count} {unit} here, {other.count} in the elected state"
        if own.free is not other.free:
            here, there = ("may", "may not") if own.free else ("may not", "may")
            return f"entry {shown(own.name)} {here} differ from peer to peer here, {there} in the elected state"
    if len(mine.entries) > len(theirs.entries):
        return _extra(mine.entries[len(theirs.entries)].name)
    if len(mine.entries) < len(theirs.entries):
        return _missing(theirs.entries[len(mine.entries)].name)
    return ""


def _other_name(place: int, mine: Manifest, theirs: Manifest) -> str:
    own, other = mine.entries[place].name, theirs.entries[place].name
    if other not in {entry.name for entry in mine.entries}:
        return _missing(other)
    if own not in {entry.name for entry in theirs.entries}:
        return _extra(own)
    return f"entry {place} is {shown(own)} here, {shown(other)} in the elected state: another order"


def _missing(name: str) -> str:
    return f"entry {shown(name)} of the elected state is missing here"


def _extra(name: str) -> str:
    return f"entry {shown(name)} is not in the elected state"
