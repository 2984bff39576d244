"""What reads bytes in a run with a secret: before the proof, in the middle of it, and behind it.

Owns which promise is looked at: strangers are refused in printable words, nothing opens without the key, and none of
it raises anything else. TLS itself is OpenSSL's; here its bytes are spoiled on the way.
"""

import asyncio
import atexit
import contextlib
import functools
import random
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pccl.core.messages.lanes import LaneHello
from pccl.credentials import CertificateFiles
from pccl.errors import UsageError
from pccl.net import proving
from pccl.net.connection import MasterEnd, MasterSide
from pccl.net.peer_end import PeerEnd
from pccl.net.proving import Keys, LaneSecurity
from pccl.security import certificate, control, proofs, tokens
from pccl.security.audit import Audit
from pccl.security.authority import Authority
from pccl.security.certified import CertifiedDoor, CertifiedPeerGuard
from pccl.security.control import AcceptingGuard, Door, Guard, PeerGuard
from pccl.security.lanes import StandardTls
from pccl.security.ledger import Ledger
from pccl.security.secret import MasterSecret
from pccl.wire.codec import encode
from pccl.wire.framing import Purpose, WireError, frame, preamble
from tests.fuzz.corpus import body, spoiled
from tests.security.own_ca import OwnCA

LINK, KEY = 7, b"k" * 32


def check_words(error: Exception | str) -> None:
    assert str(error).isprintable(), repr(error)
    assert len(str(error)) < 1000


@functools.cache
def door() -> Door:
    folder = Path(tempfile.mkdtemp(prefix="pccl-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Door(MasterSecret(bytes(range(32))), Ledger(folder / "t"), Audit(folder / "a"))


def token_text(chance: random.Random) -> None:
    """What a user pastes, or something else."""
    text = door().first_token().text()
    given = spoiled(text.encode(), chance).decode("utf-8", errors="replace")
    try:
        tokens.parse(given)
    except UsageError as error:
        assert len(given) < 20 or given not in str(error)
        check_words(str(error).replace("\n", " "))


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.aborted = False

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += data

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    def taken(self) -> bytes:
        sent, self.sent = bytes(self.sent), bytearray()
        return sent


class SealedEnds:
    """A peer and a master that talk to each other, over a way that spoils bytes from some turn on; or one of them lacks
    the right token; or what is spoiled are the messages behind the proof."""

    TURNS = 6

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stranger = tokens.mint(MasterSecret(bytes(32)), door().first_token().claim, door().pin)

    def _guards(self, honest: bool, chance: random.Random) -> tuple[AcceptingGuard, Guard]:
        """Of the master, and of a peer or a stranger."""
        return door().guard(), PeerGuard(door().first_token() if honest else self._stranger)

    def __call__(self, chance: random.Random) -> None:
        self._loop.run_until_complete(self._play(chance))

    async def _play(self, chance: random.Random) -> None:
        frames: list[bytes] = []
        causes: list[str] = []
        honest = chance.random() < 0.7
        guards = self._guards(honest, chance)
        steps: list[Callable[[], None]] = []
        taken, turn_of = frames.append, chance.choice((steps.append, lambda step: step()))
        side = MasterSide(lambda data: taken(data) or 0.0, causes.append, turn=turn_of)  # type: ignore[func-returns-value]
        master = MasterEnd(side, guards[0])
        peer = PeerEnd(lambda data: None, causes.append, guards[1])
        peer.greeted.add_done_callback(lambda done: done.cancelled() or done.exception())
        up, down = Wire(), Wire()
        master.connection_made(down)  # type: ignore[arg-type]
        peer.connection_made(up)  # type: ignore[arg-type]
        spoils_from = chance.randrange(self.TURNS + 2)
        for turn in range(self.TURNS):
            if turn == 3:
                peer.send(spoiled(body("to_master", chance), chance))
                with contextlib.suppress(control.NotProven):  # A master does not speak first.
                    master.send(spoiled(body("to_peer", chance), chance))
            self._pass_on(up, master, turn >= spoils_from, chance)
            while steps:  # It is its turn now; what came meanwhile was held.
                steps.pop(0)()
            self._pass_on(down, peer, turn >= spoils_from, chance)
        opened = master._guard is not None and master._guard.open
        assert honest or not (opened or frames), "a stranger was let in"
        assert opened or not frames
        assert opened or not honest or spoils_from < self.TURNS, "a peer was not let in"
        for end in (master, peer):
            end.connection_lost(None)
        for cause in causes:
            check_words(cause)

    @staticmethod
    def _pass_on(wire: Wire, to: Any, spoils: bool, chance: random.Random) -> None:
        data = wire.taken()
        data = spoiled(data, chance) if spoils and chance.random() < 0.5 else data
        while data:
            portion = chance.choice((1, 50, 5000))
            to.data_received(data[:portion])
            data = data[portion:]

    def close(self) -> None:
        self._loop.close()


class CertifiedEnds(SealedEnds):
    """The same with certificates of an own CA. A stranger's is of another one, or names no role."""

    def __init__(self) -> None:
        super().__init__()
        folder = Path(tempfile.mkdtemp(prefix="pccl-fuzz-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        ours, foreign = OwnCA(folder / "ours"), OwnCA(folder / "foreign")
        self._door = CertifiedDoor(_authority(ours.master()), Audit(folder / "audit"))
        self._honest = _authority(ours.peer()).dialling(names=True)
        nameless = ours.issue("nameless", "DNS:printer.example.org")._asdict()
        strangers = (nameless, foreign.peer() | {"ca": ours.ca})
        self._strangers = [_authority(files).dialling(names=True) for files in strangers]

    def _guards(self, honest: bool, chance: random.Random) -> tuple[AcceptingGuard, Guard]:
        context = self._honest if honest else chance.choice(self._strangers)
        return self._door.guard(), CertifiedPeerGuard(context, "127.0.0.1")


def _authority(files: dict[str, Path]) -> Authority:
    return Authority(CertificateFiles(**files))


class SealedHello:
    """The opening of a lane at a real socket, sealed or not: the knock, and what a holder of the key sends after it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        own = certificate.make(bytes(32))
        self._modes = [LaneSecurity(own.pin, StandardTls(own)), LaneSecurity(own.pin, None)]

    def __call__(self, chance: random.Random) -> None:
        security = chance.choice(self._modes)
        near, far = socket.socketpair()
        for end in (near, far):
            end.setblocking(False)
        with near, far:
            far.send(self._opening(security, chance) or b"\0")
            far.shutdown(socket.SHUT_WR)
            try:
                self._loop.run_until_complete(asyncio.wait_for(self._read(near, security), 10.0))
            except (OSError, WireError) as error:
                check_words(error)
            else:
                raise AssertionError("a lane opened without a proof")

    @staticmethod
    async def _read(near: socket.socket, security: LaneSecurity) -> Any:
        keys = Keys()
        keys.expect(LINK, KEY)
        reading = asyncio.create_task(proving.read_hello(near, keys, security))
        done, _ = await asyncio.wait([reading], timeout=0.05)
        if not done:  # A knock for a link to come waits for it: `listening` ends that.
            reading.cancel()
            raise WireError("it waits")
        return reading.result()

    @staticmethod
    def _opening(security: LaneSecurity, chance: random.Random) -> bytes:
        head = preamble(chance.choice((security.purpose, security.purpose, Purpose.LANE, Purpose.CONTROL_TLS)))
        knock = proofs.knock(chance.choice((KEY, KEY, bytes(32))), head, LINK).pack()
        hello = frame(encode(LaneHello("run", "a", "b", LINK, 0, chance.randbytes(32))))
        behind = chance.choice((hello, frame(body("between", chance)), b"\x16\x03\x01\x00\x05" + chance.randbytes(60)))
        return (
            spoiled(head + knock, chance) + behind if chance.random() < 0.5 else head + knock + spoiled(behind, chance)
        )

    def close(self) -> None:
        self._loop.close()
