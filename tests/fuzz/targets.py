"""Everything that reads bytes from a socket, one function each: it takes chance, and raises if a promise is broken.

Owns which promise that is. `FAST` ones read from memory; `SLOW` ones are real ends of real sockets.
"""

import asyncio
import contextlib
import itertools
import random
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from pccl.core.effects.master import Close, Closed, Received
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.dataplane.native import NativePlane
from pccl.dataplane.ring.parcels import Damaged, Inbox, wrap
from pccl.dataplane.ring.segments import Header as Segment
from pccl.dataplane.state import transfer
from pccl.dataplane.state.manifest import BadManifest, Described, Manifest, decode, difference
from pccl.dataplane.state.transfer import Lane, LaneBroke, Stopped, goodbye
from pccl.net import handshake
from pccl.net.connection import MasterEnd, MasterSide
from pccl.net.peer_end import PeerEnd
from pccl.security import authority
from pccl.security.certificate import _sequence, _tagged
from pccl.security.tls import NotProven
from pccl.types import DataType, ReduceOp
from pccl.wire import codec
from pccl.wire.framing import (
    PREAMBLE_BYTES,
    TO_MASTER_FRAME_MAX,
    FrameReader,
    Purpose,
    WireError,
    frame,
    parse_preamble,
    parse_refusal,
    preamble,
)
from tests.fuzz.corpus import DIRECTIONS, WORDS, body, spoiled
from tests.fuzz.secured import CertifiedEnds, SealedEnds, SealedHello, token_text
from tests.native.oracle import TAG
from tests.native.rings import Rig, Work

Target = Callable[[random.Random], None]
DECODE = {name: getattr(codec, f"decode_{name}") for name in DIRECTIONS}


def check_words(error: Exception) -> None:
    assert str(error).isprintable(), repr(error)
    assert len(str(error)) < 1000


# ── before the proof ─────────────────────────────────────────────────────────────────────────────────────────────────


def opening(chance: random.Random) -> None:
    """The first bytes of a connection, and the words of a refusal."""
    data = spoiled(preamble(chance.choice(list(Purpose))), chance)
    try:
        parse_preamble(data[:PREAMBLE_BYTES])
    except WireError as error:
        check_words(error)
    assert parse_refusal(spoiled("".join(WORDS).encode(), chance)).isprintable()


def certificates(chance: random.Random) -> None:
    """What a certificate of an own CA says. TLS has verified it by then, so that its bytes are those of the CA."""
    names = _sequence(*(_tagged(0x86, name) for name in (b"pccl:peer", b"pccl:operator", b"spiffe://a/b")))
    extension = _sequence(bytes.fromhex("0603551d11"), _tagged(0x04, names))
    der = _sequence(_sequence(_tagged(0x02, b"1"), _tagged(0xA3, _sequence(extension))), b"")
    assert authority.read(der).roles == ("peer", "operator")
    try:
        found = authority.read(spoiled(der, chance))
        assert found.lacks("pccl:peer").isprintable()
        assert bool(found.rights) == bool({"peer", "operator"}.intersection(found.roles))
    except NotProven as error:
        check_words(error)


def frames(chance: random.Random) -> None:
    """Frames in any portions, a few at a time."""
    stream = spoiled(b"".join(frame(body("to_master", chance)) for _ in range(3)), chance)
    reader, most = FrameReader(300, then=600), chance.choice((None, 1, 2))
    with contextlib.suppress(WireError):
        while stream:
            portion = chance.randint(1, 100)
            given, stream = stream[:portion], stream[portion:]
            assert all(len(found) <= 600 for found in reader.feed(given, most))
            assert reader.buffered <= 604
            while reader.left:
                reader.feed(b"", most)


def messages(chance: random.Random) -> None:
    """One message, for each direction."""
    data = spoiled(body(chance.choice(list(DIRECTIONS)), chance), chance)
    for read in DECODE.values():
        try:
            message = read(data)
        except WireError as error:
            check_words(error)
        else:
            assert all(text.isprintable() for text in _texts(msgspec.to_builtins(message, builtin_types=(bytes,))))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else [value][: _is_text(value)]


def _is_text(value: Any) -> int:
    return int(isinstance(value, str))


class _Transport:
    """Takes what is written, and has a place for what is to come."""

    aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        pass

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


class Ends:
    """Both ends of a control connection, in a loop that the caller runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def __call__(self, chance: random.Random) -> None:
        self._loop.run_until_complete(self._play(chance))

    async def _play(self, chance: random.Random) -> None:
        at_master = chance.random() < 0.5
        if at_master:
            end: Any = MasterEnd(MasterSide(lambda data: chance.choice((0.0, 0.0, 1e-4)), lambda cause: None))
        else:
            end = PeerEnd(lambda data: None, lambda cause: None)
            end.greeted.add_done_callback(lambda done: done.cancelled() or done.exception())
        end.connection_made(_Transport())
        stream = preamble(Purpose.CONTROL) + b"".join(
            frame(body("to_master", chance)) for _ in range(chance.randrange(4))
        )
        stream = spoiled(stream, chance)
        while stream:
            portion = chance.randint(1, 200)
            end.data_received(stream[:portion])
            stream = stream[portion:]
        if at_master:
            assert end.kept_bytes <= TO_MASTER_FRAME_MAX + len(stream) + 4096
        end.connection_lost(None)

    def close(self) -> None:
        self._loop.close()


# ── behind the proof ─────────────────────────────────────────────────────────────────────────────────────────────────


class Core:
    """A master's core, and several connections that send it any message at any time."""

    LIVES = 300

    def __init__(self) -> None:
        self._age, self._now = 0, 0.0
        self._master = Master("run", MasterLimits())
        self._numbers = itertools.count(1)
        self._open = [next(self._numbers) for _ in range(6)]

    def __call__(self, chance: random.Random) -> None:
        self._age += 1
        if self._age % self.LIVES == 0:
            self._master, self._now = Master("run", MasterLimits(), follows=chance.random() < 0.5), 0.0
        self._now += chance.choice((0.0, 0.1, 1.0))
        connection = chance.choice(self._open)
        event: Any = Closed(connection, "closed")
        if chance.random() > 0.02:
            try:
                message = codec.decode_to_master(spoiled(body("to_master", chance), chance))
            except WireError:
                return
            event = Received(connection, message, "10.0.0.1")
        effects = self._master.handle(event, self._now)
        gone = {effect.connection for effect in effects if isinstance(effect, Close)}
        gone |= {connection} if isinstance(event, Closed) else set()
        # As in a shell: a connection that has ended is another one when it comes again.
        self._open = [next(self._numbers) if each in gone else each for each in self._open]
        assert all(sentence.isprintable() for sentence in self._master.explain())


def parcels(chance: random.Random) -> None:
    """What comes over an express lane."""
    inbox, check = Inbox(_check), _check
    contents = [chance.randbytes(chance.choice((1, 8, 100))) for _ in range(3)]
    stream = b"".join(wrap(1 + number, 1, each, check(each)) for number, each in enumerate(contents))
    stream = spoiled(stream, chance)
    with contextlib.suppress(Damaged):
        while stream:
            portion = chance.randint(1, 200)
            inbox.feed(stream[:portion])
            stream = stream[portion:]
    assert inbox.kept_bytes == sum(map(len, inbox.parcels.values())) <= 400


def _check(data: bytes) -> int:
    return _PLANE.check(data)


_PLANE = NativePlane(0.0)


def manifests(chance: random.Random) -> None:
    """What a holder reports that it holds."""
    entries = [Described(chance.choice(WORDS), DataType.FLOAT, 4, chance.random() < 0.5, bytes(16)) for _ in range(3)]
    mine = Manifest(tuple(entries))
    try:
        theirs = decode(spoiled(mine.encoded, chance), chance.choice((None, 3)))
    except BadManifest as error:
        check_words(error)
    else:
        assert difference(mine, theirs).isprintable()
        assert len(theirs.layout) == len(theirs.content) == 16


def headers(chance: random.Random) -> None:
    """Of segments and of a state transfer."""
    segment = Segment(TAG, 1, 0, 0, 100, 0, 0).sealed().pack()
    Segment.unpack(spoiled(segment, chance)[: len(segment)].ljust(len(segment), b"\0"))
    data = transfer.Header(transfer.Kind.CHUNK, length=7).pack()
    with contextlib.suppress(LaneBroke):
        transfer.Header.unpack(spoiled(data, chance)[: len(data)].ljust(len(data), b"\0"))


# ── real ends ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Hello:
    """The opening of a lane, at a real socket."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def __call__(self, chance: random.Random) -> None:
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        with near, far:
            far.send(spoiled(preamble(Purpose.LANE) + frame(body("between", chance)), chance) or b"\0")
            far.shutdown(socket.SHUT_WR)
            read = handshake.read_hello if chance.random() < 0.5 else self._answer
            try:
                self._loop.run_until_complete(asyncio.wait_for(read(near), 10.0))
            except TimeoutError:
                raise AssertionError("it waits for an end that is gone") from None
            except (OSError, WireError) as error:
                check_words(error)

    async def _answer(self, near: socket.socket) -> Any:
        hello = codec.decode_between(codec.encode(handshake.LaneHello("r", "a", "b", 1, 0)))  # type: ignore[arg-type]
        return await handshake.dial(near, hello)  # type: ignore[arg-type]

    def close(self) -> None:
        self._loop.close()


def served(chance: random.Random) -> None:
    """Requests of a state transfer, and the rest of earlier attempts, at a real socket."""
    near, far = socket.socketpair()
    near.setblocking(False)
    stale = Segment(TAG, 0, 0, 0, 50, 0, 0).sealed().pack() + bytes(50)
    requests = transfer.Header(transfer.Kind.CHUNK, length=7).pack() * 2
    with near, far:
        far.send(spoiled(stale + requests + goodbye(1), chance) or b"\0")
        far.shutdown(socket.SHUT_WR)
        lane = Lane(1, 0, near, 5.0)
        with contextlib.suppress(LaneBroke, Stopped):
            while lane.receive_header(lambda: False) is not None:
                pass


def ring(chance: random.Random) -> None:
    """Segments from the previous peer, in front of a native or a reference ring."""
    rig = Rig(2, 1)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 100, 64)
    array = np.ones(work.count, np.float32)
    rig.attempt = 2
    run = rig.start_one(0, chance.choice(("native", "reference")), work, (array, array), stall_s=20.0)
    lane = rig.sides(1)[0][0]
    stale = Segment(TAG, 1, 0, 0, 50, 0, 0).sealed().pack() + bytes(50)
    segments = b"".join(Segment(TAG, 2, 0, index, 64, 0, 0).sealed().pack() + bytes(64) for index in range(3))
    with contextlib.suppress(OSError):
        lane.send(spoiled(stale + segments, chance) or b"\0")
        lane.shutdown(socket.SHUT_WR)
    assert run.wait(), "it goes on although its neighbour is gone"
    assert run.cause.isprintable()
    run.restore()
    rig.close()
    assert np.all(array == 1)


FAST: tuple[Callable[[], Target], ...] = (
    lambda: opening,
    lambda: certificates,
    lambda: frames,
    lambda: messages,
    Ends,
    Core,
    lambda: parcels,
    lambda: manifests,
    lambda: headers,
    lambda: token_text,
)
SLOW: tuple[Callable[[], Target], ...] = (Hello, lambda: served, lambda: ring, SealedEnds, SealedHello, CertifiedEnds)
