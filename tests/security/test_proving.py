"""The opening of a lane in a run with security: who gets in, who does not, and what each is told."""

import asyncio
import contextlib
import itertools
import re
import secrets
import socket

import pytest

from pccl.core.effects.peer_effects import Dial
from pccl.core.effects.peer_events import LaneClosed, LaneDialled, LaneOffered
from pccl.core.messages.lanes import LaneAnswer, LaneHello
from pccl.net import listening
from pccl.net.bounds import Bounds
from pccl.net.proving import LaneSecurity
from pccl.security import proofs
from pccl.wire.codec import decode_between, encode
from pccl.wire.framing import Purpose, frame, preamble
from tests.security.ends import CERTIFICATES, KINDS, Wiretap, close_all, tls
from tests.unit.scripted import TwoPeers, run, until

KEY, LINK = b"k" * 32, 7
HELLO = LaneHello("run", "a", "b", LINK, 0)
MODES = ("native", "reference", "off")


def security(mode, owner="bert"):
    certificate = CERTIFICATES[owner]
    return LaneSecurity(certificate.pin, None if mode == "off" else tls(mode, certificate))


@pytest.fixture(autouse=True)
def closed():
    yield
    close_all()


class ProvedPeers(TwoPeers):
    """Anna dials Bert."""

    def __init__(self, modes):
        super().__init__(Bounds())
        for lanes, mode, owner in zip((self.dialler, self.receiver), modes, CERTIFICATES, strict=True):
            if mode is not None:
                lanes.secure(security(mode, owner))

    def dial(self, lane=0, pin=CERTIFICATES["bert"].pin, key=KEY, timeout_s=30.0):
        hello = LaneHello("run", "a", "b", LINK, lane)
        self.dialler.dial(Dial(hello, "127.0.0.1", self.port, timeout_s, pin, key))

    def expect(self, key=KEY):
        self.receiver.expect(LINK, key)

    async def ended(self):
        """What the dialler's core was told of it."""
        await until(lambda: self.dialler_core.events)
        return self.dialler_core.events[0]

    async def refusal(self):
        event = await self.ended()
        assert isinstance(event, LaneClosed)
        assert not self.offered, "the core of a listener hears of nothing that is not proved"
        return event.cause

    @property
    def offered(self):
        return [event for event in self.receiver_core.events if isinstance(event, LaneOffered)]

    def lent(self):
        return self.dialler.lend([(LINK, 0)])[0], self.receiver.lend([(LINK, 0)])[0]


def play(story, modes=("native", "native")):
    async def scene():
        peers = ProvedPeers(modes)
        try:
            await story(peers)
        finally:
            peers.stop()
            await asyncio.sleep(0)

    run(scene())


async def read(sock, count=4096):
    return await asyncio.get_running_loop().sock_recv(sock, count)


async def all_of(sock):
    data = b""
    with contextlib.suppress(ConnectionResetError):  # closed with bytes of ours unread
        while portion := await read(sock):
            data += portion
    return data


async def stranger(peers, data):
    """A connection of ours that sends this."""
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", peers.port))
    await asyncio.get_running_loop().sock_sendall(sock, data)
    return sock


# ── who is meant ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("modes", [*itertools.product(KINDS, repeat=2), ("off", "off")], ids="-".join)
def test_a_lane_stands_and_carries_bytes_both_ways(modes):
    async def story(peers):
        peers.expect()
        peers.dial()
        assert isinstance(await peers.ended(), LaneDialled)
        assert [event.hello.sender for event in peers.offered] == ["a"]
        near, far = peers.lent()
        for one, other in ((near, far), (far, near)):
            one.send(b"hello")
            await until(lambda other=other: _has(other))
            assert other.recv(100) == b"hello"
        for lanes in (peers.dialler, peers.receiver):
            lanes.give_back([(LINK, 0)], [])

    play(story, modes)


def _has(connection):
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


@pytest.mark.parametrize("mode", MODES)
def test_a_listener_that_is_told_later_takes_the_lane_then(mode):
    async def story(peers):
        peers.dial()
        await asyncio.sleep(0.05)
        assert not peers.dialler_core.events
        peers.expect()
        assert isinstance(await peers.ended(), LaneDialled)

    play(story, (mode, mode))


def test_a_secured_lane_that_is_closed_is_noticed_at_the_other_end():
    async def story(peers):
        peers.expect()
        peers.dial()
        await peers.ended()
        peers.dialler.close((LINK, 0))
        await until(lambda: len(peers.receiver_core.events) == 2)
        assert isinstance(peers.receiver_core.events[1], LaneClosed)

    play(story)


# ── who is not ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_another_certificate_than_the_pinned_one_is_not_talked_to(kind):
    async def story(peers):
        peers.expect()
        peers.dial(pin=CERTIFICATES["anna"].pin)
        assert "another certificate" in await peers.refusal()

    play(story, (kind, kind))


@pytest.mark.parametrize("mode", MODES)
def test_another_key_does_not_open(mode):
    async def story(peers):
        peers.expect()
        peers.dial(key=b"x" * 32)
        assert re.search("closed|reset", await peers.refusal())

    play(story, (mode, mode))


def test_without_tls_the_pin_is_part_of_the_proof():
    async def story(peers):
        peers.expect()
        peers.dial(pin=CERTIFICATES["anna"].pin)
        assert re.search("closed|reset", await peers.refusal())

    play(story, ("off", "off"))


@pytest.mark.parametrize("missing", [{"key": b""}, {"pin": b""}])
def test_a_link_without_key_or_pin_is_not_dialled(missing):
    async def story(peers):
        peers.dial(**missing)
        assert "no key or pin" in await peers.refusal()

    play(story)


@pytest.mark.parametrize(
    ("modes", "told"),
    [
        ((None, "native"), "takes no lanes without proof"),
        ((None, "off"), "takes no lanes without proof"),
        (("native", None), "run without a secret"),
        (("off", None), "run without a secret"),
        (("native", "off"), "lane_tls='on' here); it says, unproved: this peer has lane_tls='off' and yours 'on'"),
        (
            ("off", "reference"),
            "lane_tls='off' here); it says, unproved: this peer has lane_tls='on' and yours 'off'",
        ),
    ],
)
def test_ends_of_different_settings_say_so_and_neither_falls_back(modes, told):
    async def story(peers):
        peers.expect()
        peers.dial()
        assert told in await peers.refusal()

    play(story, modes)


@pytest.mark.parametrize("mode", MODES)
def test_a_hello_without_proof_gets_no_further_than_the_knock(mode):
    """A stranger that knows everything but the key: not one byte of TLS, and no certificate."""

    async def story(peers):
        peers.expect()
        knock = proofs.Knock(LINK, bytes(16), bytes(16)).pack()
        sock = await stranger(peers, preamble(security(mode).purpose) + knock + secrets.token_bytes(300))
        with sock, pytest.raises((ConnectionResetError, AssertionError)):
            assert await all_of(sock), "closed without a word"
        assert not peers.offered

    play(story, (mode, mode))


def test_a_wrong_proof_behind_a_right_knock_is_refused():
    """Without TLS, where a test can write it: the key knocks, but the hello is of another lane than its proof."""

    async def story(peers):
        peers.expect()
        head = preamble(Purpose.PROVED_LANE)
        knock = proofs.knock(KEY, head, LINK)
        sock = await stranger(peers, head + knock.pack())
        with sock:
            nonce = (await read(sock))[8:]
            bound = proofs.bound_by_nonces(knock.nonce, nonce, CERTIFICATES["bert"].pin)
            proof = proofs.proof_of_dialler(KEY, LaneHello("run", "a", "b", LINK, 1), bound)
            hello = LaneHello("run", "a", "b", LINK, 0, proof)
            await asyncio.get_running_loop().sock_sendall(sock, frame(encode(hello)))
            assert await all_of(sock) == b""
        assert not peers.offered

    play(story, ("off", "off"))


@pytest.mark.parametrize("mode", MODES)
def test_what_was_recorded_opens_nothing(mode):
    """All bytes of a dialler once more: they have knocked before. And where the first never came: the rest is bound to
    what the listener says afresh."""

    async def story(peers):
        peers.expect()
        recorded = await record(peers)
        assert len(peers.offered) == 1
        for forgotten in (False, True):
            if forgotten:
                peers.expect()  # the same key, but no memory of knocks
            with await stranger(peers, recorded) as sock:
                heard = await all_of(sock)
            assert bool(heard) == forgotten, "a knock opens once"
        assert len(peers.offered) == 1

    play(story, (mode, mode))


async def record(peers):
    """What a dialler sends, by way of a proxy."""
    tap = Wiretap()
    port, peers.port = peers.port, tap.before(peers.port)
    peers.dial()
    assert isinstance(await peers.ended(), LaneDialled)
    peers.port = port
    peers.dialler.close((LINK, 0))
    await until(lambda: any(isinstance(event, LaneClosed) for event in peers.receiver_core.events))
    await asyncio.to_thread(tap.close)
    return bytes(tap.dialled)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sent", ["nothing", "preamble", "half a knock", "a knock for a link to come", "half a hello"])
def test_half_a_handshake_ends_at_the_deadline(mode, sent, monkeypatch):
    monkeypatch.setattr(listening.Strangers.__init__, "__defaults__", (128, 0.2))

    async def story(peers):
        peers.receiver._strangers = listening.Strangers()
        peers.expect()
        head = preamble(security(mode).purpose)
        data = {
            "nothing": b"",
            "preamble": head,
            "half a knock": head + bytes(20),
            "a knock for a link to come": head + proofs.knock(KEY, head, LINK + 1).pack(),
            "half a hello": head + proofs.knock(KEY, head, LINK).pack() + b"\x16\x03\x01",
        }[sent]
        with await stranger(peers, data) as sock:
            await all_of(sock)  # it ends, or `run` complains
        assert not peers.offered
        assert len(peers.receiver._strangers) == 0

    play(story, (mode, mode))


@pytest.mark.parametrize("kind", KINDS)
def test_a_dialler_gives_up_a_listener_that_goes_silent(kind):
    async def story(peers):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            peers.port = silent.getsockname()[1]
            peers.dial(timeout_s=0.2)
            assert "did not answer within 0.2 s" in await peers.refusal()

    play(story, (kind, kind))


def test_a_plain_answer_to_a_secured_dialler_is_no_answer():
    """A false peer that accepts everything, in the clear: its words are shown as such, and nothing is sent to it."""

    async def story(peers):
        async def connected(reader, writer):
            await reader.read(4096)
            writer.write(preamble(Purpose.LANE) + frame(encode(LaneAnswer(True))))
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        peers.port = server.sockets[0].getsockname()[1]
        peers.dial()
        assert "takes no lanes like ours" in await peers.refusal()
        server.close()

    play(story)


def test_a_plain_hello_is_refused_in_words():
    async def story(peers):
        peers.expect()
        sock = await stranger(peers, preamble(Purpose.LANE) + frame(encode(HELLO)))
        with sock:
            assert await read(sock, 8) == preamble(Purpose.LANE)
            body = (await read(sock))[4:]
        answer = decode_between(body)
        assert not answer.accepted
        assert "takes no lanes without proof" in answer.reason
        assert not peers.offered

    play(story)
