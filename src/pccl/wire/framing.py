"""What every connection starts with, and how its bytes are cut into frames.

Owns the preamble, the refusal of another version, the length prefix and the limits on what is read. Does no input or
output, and must not know what is inside a frame.

The preamble (8 bytes), the length prefix and the refusal are the same in every version there will ever be: they are
what lets two versions tell each other apart and say so in words.

    preamble   4 bytes "PCCL" · version u16 · purpose u8 · reserved u8 = 0     both ends send one before anything else
    frame      length u32 · that many bytes                                    all numbers little endian
    refusal    preamble · one frame of UTF-8 text                              then the listener closes
"""

import struct
from enum import IntEnum

MAGIC = b"PCCL"
VERSION: int = 3
"""Both ends must have the same; any change to a message's meaning or to its required fields is a new one."""

PREAMBLE_BYTES = 8
HEADER_BYTES = 4
"""The length in front of each frame."""

HELLO_FRAME_MAX = 4096
"""First frame from a stranger: any sender on the internet can make us keep one. `Join`, `Resume`, `LaneHello` and
`LaneAnswer` take at most 3,000 bytes when every text in them is as long as it may be and of four-byte characters; the
rest is room to grow."""

REFUSAL_TEXT_MAX = 4096
"""Bytes of text in a refusal: a few sentences. Frozen with the refusal itself, so it is not tied to the limit above."""

TO_MASTER_FRAME_MAX = 65536
"""The largest is `ReportPart`, 59 KiB when every portion of it is full of the longest entries. A thousand peers that
all stop in the middle of a frame of this length make the master keep 64 MiB."""

TO_PEER_FRAME_MAX = 8 * 1024 * 1024
"""The largest is `Topology` or `Outcome` with 65,536 ids. An id of ours takes 34 bytes (2.1 MiB in all), the longest
allowed one of ASCII 66 (4.1 MiB). Only the master, which the peer chose to trust, can make a peer keep this much."""

_PREAMBLE = struct.Struct("<4sHBB")
_LENGTH = struct.Struct("<I")

_STRANGERS: tuple[tuple[bytes, str], ...] = (
    (b"GET ", "an HTTP request"),
    (b"HEAD ", "an HTTP request"),
    (b"POST ", "an HTTP request"),
    (b"PUT ", "an HTTP request"),
    (b"DELETE ", "an HTTP request"),
    (b"OPTIONS ", "an HTTP request"),
    (b"PATCH ", "an HTTP request"),
    (b"CONNECT ", "an HTTP proxy request"),
    (b"PRI * ", "HTTP/2 or gRPC"),
    (b"HTTP/", "an HTTP response"),
    (b"\x16\x03", "a TLS handshake"),
    (b"\x15\x03", "a TLS alert"),
    (b"SSH-", "SSH"),
    (b"PROXY ", "the PROXY header of a load balancer"),
    (b"\r\n\r\n\x00\r\nQ", "the PROXY header of a load balancer"),
)
"""What else is likely to meet our port: a wrong URL, a proxy in between, a scanner."""


class Purpose(IntEnum):
    """What the end that dialled wants of this connection; the listener answers with the same."""

    CONTROL = 1
    LANE = 2
    CONTROL_TLS = 3
    """Behind the preambles: a knock, then TLS."""
    SECURE_LANE = 4
    """Behind the preamble comes a knock, then TLS (`net/proving.py`)."""
    PROVED_LANE = 5
    """Behind the preamble comes a knock, then a proved hello; the bytes of the lane are plain."""
    REFUSAL = 6
    """Only from a listener: what follows are words, and then the end."""
    CONTROL_CERTIFIED = 7
    """Behind the preambles: TLS, in which both ends show certificates of one CA."""


class WireError(Exception):
    """Bytes that are no message; the text says what was wrong with them and is short whatever they were."""


class WrongVersion(WireError):
    """The other end speaks PCCL, but another version of it."""

    def __init__(self, theirs: int) -> None:
        super().__init__(
            f"the other end speaks version {theirs} of the PCCL protocol and this end version {VERSION}: "
            "run the same release of pccl on the master and on all peers"
        )
        self.theirs = theirs


def preamble(purpose: Purpose) -> bytes:
    """The first bytes of every connection, in both directions."""
    return _PREAMBLE.pack(MAGIC, VERSION, purpose, 0)


def parse_preamble(data: bytes) -> Purpose:
    """The purpose of a connection whose first `PREAMBLE_BYTES` bytes, or all bytes before it ended, are `data`."""
    if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
        raise WireError(f"the other end does not speak PCCL: {_looks_like(data)}")
    if len(data) != PREAMBLE_BYTES:
        raise WireError(f"a preamble of {len(data)} bytes instead of {PREAMBLE_BYTES}")
    _, version, purpose, reserved = _PREAMBLE.unpack(data)
    # Version first: what the bytes behind it mean is only known for our own.
    if version != VERSION:
        raise WrongVersion(version)
    if reserved != 0:
        raise WireError(f"the reserved byte of the preamble is {reserved} instead of 0")
    try:
        return Purpose(purpose)
    except ValueError:
        raise WireError(f"unknown purpose {purpose} in the preamble") from None


def _looks_like(data: bytes) -> str:
    if not data:
        return "it sent nothing"
    head = data[:PREAMBLE_BYTES]
    for start, name in _STRANGERS:
        # A connection that ended early still gives itself away by four bytes.
        if len(head) >= min(len(start), 4) and head.startswith(start[: len(head)]):
            return f"its first bytes look like {name}; check the address and port"
    # Hexadecimal: these bytes come from an unknown sender and end up on a terminal.
    return f"its first bytes are {head.hex(' ')}; check the address and port"


def refusal(reason: str) -> bytes:
    """What a listener sends to an end that it cannot serve before it closes: its own preamble and the reason in words.
    To an end of another version the purpose means nothing: it stops at the version."""
    text = reason.encode("utf-8", errors="replace")[:REFUSAL_TEXT_MAX]
    return preamble(Purpose.REFUSAL) + frame(text)


def parse_refusal(body: bytes) -> str:
    """The words of a refusal. Never fails: its writer is of an unknown version, and any words are better than none."""
    text = body[:REFUSAL_TEXT_MAX].decode("utf-8", errors="replace")
    return "".join(character if character.isprintable() else " " for character in text)


def frame(body: bytes) -> bytes:
    """One frame: its length and its bytes."""
    return _LENGTH.pack(len(body)) + body


def frame_length(header: bytes, limit: int) -> int:
    """The length that the `HEADER_BYTES` in front of a frame announce, or `WireError` when it is above the limit.

    For callers that must not read beyond the frame, such as the opening of a lane: what follows there is not ours."""
    length: int = _LENGTH.unpack(header)[0]
    if length > limit:
        raise WireError(f"a frame of {length} bytes where {limit} are allowed")
    return length


class FrameReader:
    """Cuts bytes that arrive in any portions into frames.

    Keeps nothing but the one frame that is incomplete, in memory that grows with what has arrived, not with what was
    announced, and what a caller that takes few frames at a time has left. After a `WireError` the place of the next
    frame is unknown: the reader is of no more use and says so."""

    def __init__(self, limit: int, then: int | None = None) -> None:
        self.limit = limit
        """Bytes that a frame may have. It holds for every frame whose length is read by `feed` from now on."""
        self._then = limit if then is None else then
        """The limit behind the first frame, which may arrive together with others."""
        self._header = bytearray()
        self._body = bytearray()
        self._length: int | None = None
        self._error: str | None = None
        self._left = b""

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete frame, length prefix included; not 0 at the end of a connection means it was cut."""
        return len(self._header) + len(self._body)

    @property
    def left(self) -> int:
        """Bytes that have come and were not looked at."""
        return len(self._left)

    def feed(self, data: bytes, most: int | None = None) -> list[bytes]:
        """The bodies of the frames that `data` completes, in order; with `most`, the first so many, and the others in
        the next calls.

        A wrong frame takes the ones before it in the same `data` with it: its sender is not worth hearing out."""
        if self._error is not None:
            raise WireError(self._error)
        frames: list[bytes] = []
        position = 0
        if self._left:
            data, self._left = self._left + data, b""
        with memoryview(data) as view:
            while True:
                if len(frames) == most:
                    self._left = bytes(view[position:])
                    return frames
                position = self._take_header(view, position)
                if self._length is None:
                    return frames
                end = position + self._length - len(self._body)
                # Appended portion by portion and taken out whole, so every byte is copied a constant number of times.
                self._body += view[position:end]
                if end > len(view):
                    return frames
                position = end
                frames.append(bytes(self._body))
                self.limit = self._then
                self._forget()

    def _take_header(self, view: memoryview, position: int) -> int:
        """Read the length prefix if it is still missing; the position behind it."""
        if self._length is not None:
            return position
        end = position + HEADER_BYTES - len(self._header)
        self._header += view[position:end]
        if end > len(view):
            return len(view)
        try:
            self._length = frame_length(bytes(self._header), self.limit)
        except WireError as error:
            self._error = str(error)
            self._forget()
            raise
        return end

    def _forget(self) -> None:
        self._header = bytearray()
        self._body = bytearray()
        self._length = None
