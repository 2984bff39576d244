"""The opening of a lane where there is an own CA: both ends show certificates of peers, and are bound to them."""

import asyncio
import contextlib
import itertools
import socket

import pytest

from pccl.api.lane_security import make_lane_security
from pccl.core.effects.peer_events import LaneClosed, LaneDialled
from pccl.credentials import CertificateFiles
from pccl.net import handshake, proving
from pccl.net.bounds import Bounds
from pccl.security.authority import Authority
from pccl.security.proofs import KNOCK_BYTES
from pccl.wire.framing import PREAMBLE_BYTES, Purpose, frame, preamble
from tests.security.ends import KINDS
from tests.security.own_ca import OwnCA
from tests.security.test_proving import ProvedPeers
from tests.unit.scripted import TwoPeers, run, until


def security(files, plane="native"):
    return make_lane_security(plane, True, Authority(CertificateFiles(**files)))


class CertifiedPeers(ProvedPeers):
    """Anna dials Bert, each with what it is given."""

    def __init__(self, anna, bert):
        TwoPeers.__init__(self, Bounds())
        self.pin = bert.pin
        for lanes, each in ((self.dialler, anna), (self.receiver, bert)):
            lanes.secure(each)


def outcome(anna, bert, port=None):
    """What becomes of a lane between these two; dialled at another port if one is given."""

    async def scene():
        peers = CertifiedPeers(anna, bert)
        middle = None
        try:
            peers.expect()
            if port is not None:
                middle, peers.port = await port(peers.port)
            peers.dial(pin=peers.pin)
            event = await peers.ended()
            if isinstance(event, LaneDialled):
                await until(lambda: peers.offered)
            else:
                assert not peers.offered, "the core of a listener hears of nothing that is not proved"
            return event
        finally:
            if middle is not None:
                middle.close()
            peers.stop()
            await asyncio.sleep(0)

    return run(scene())


@pytest.mark.parametrize("planes", [*itertools.product(KINDS, repeat=2)], ids="-".join)
def test_both_ends_show_a_certificate(ours, planes):
    anna, bert = (security(ours.peer(name), plane) for name, plane in zip(("anna", "bert"), planes, strict=True))
    assert isinstance(outcome(anna, bert), LaneDialled)


@pytest.mark.parametrize("planes", [*itertools.product(KINDS, repeat=2)], ids="-".join)
def test_a_certificate_is_renewed_after_it_was_announced(ours, planes):
    """The pin that the master has told is that of the old one."""
    anna, bert = (security(ours.peer(name), plane) for name, plane in zip(("anna", "bert"), planes, strict=True))
    bert = type(bert)(bytes(32), bert.tls, bert.certified)
    assert isinstance(outcome(anna, bert), LaneDialled)


@pytest.mark.parametrize("plane", KINDS)
@pytest.mark.parametrize("who", ["anna", "bert"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("foreign", ("not of our CA", "unable to get local issuer", "unknown ca")),
        ("expired", ("has expired", "certificate expired")),
        ("observer", ("only a peer may have a lane", "closed")),
    ],
)
def test_one_end_is_turned_away(ours, foreign, plane, who, wrong, words):
    files = {
        "foreign": foreign.peer() | {"ca": ours.ca},
        "expired": ours.peer("late", days=-1),
        "observer": ours.peer("olga", "observer"),
    }[wrong]
    good, bad = security(ours.peer("bert"), plane), security(files, plane)
    event = outcome(*((bad, good) if who == "anna" else (good, bad)))
    assert isinstance(event, LaneClosed)
    assert any(each in event.cause for each in words), event.cause


@pytest.mark.parametrize("plane", KINDS)
@pytest.mark.parametrize("who", ["anna", "bert"])
def test_a_revoked_certificate_opens_no_lane(tmp_path, plane, who):
    """The list lies behind the CA's certificate at one end. That of another peer is good as before."""
    own = OwnCA(tmp_path / "own")
    thief, good = own.peer("thief"), own.peer("good") | {"ca": tmp_path / "ca.pem"}
    with good["ca"].open("w") as file:
        file.write(own.ca.read_text() + own.revoked("thief"))
    here, there, other = (security(each, plane) for each in (good, thief, own.peer("other")))
    event = outcome(*((there, here) if who == "anna" else (here, there)))
    assert isinstance(event, LaneClosed)
    assert "revoked" in event.cause
    assert isinstance(outcome(here, other), LaneDialled)


def test_a_peer_in_the_middle_passes_on_nothing(ours):
    """Mallory is a peer of the same CA, and sits on the way: her certificate is good, and the proofs are not of it."""
    mallory = security(ours.peer("mallory"), "reference")

    async def between(port):
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)

        async def relay():
            near, _ = await loop.sock_accept(listener)
            near.setblocking(False)
            far = socket.socket()
            far.setblocking(False)
            with near, far, contextlib.suppress(OSError):
                await loop.sock_connect(far, ("127.0.0.1", port))
                first = await handshake.read_exactly(near, PREAMBLE_BYTES + KNOCK_BYTES)
                to_bert, _ = mallory.seal(far, mallory.tls, True, first)
                to_bert.hello()
                assert await handshake.read_preamble(far) is Purpose.SECURE_LANE
                to_anna, _ = mallory.seal(near, mallory.tls, False, preamble(Purpose.SECURE_LANE))
                await proving._shake(to_anna)
                await proving._shake(to_bert)
                await handshake.send_all(to_bert, frame(await handshake._read_frame(to_anna)))
                await handshake.send_all(to_anna, frame(await handshake._read_frame(to_bert)))

        task = loop.create_task(relay())
        task.add_done_callback(lambda done: listener.close())
        return listener, listener.getsockname()[1]

    event = outcome(security(ours.peer("anna")), security(ours.peer("bert")), between)
    assert isinstance(event, LaneClosed)
    assert "closed" in event.cause
