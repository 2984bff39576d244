"""What the kernel counts on a connection, and what it comes to on lanes while they were lent."""

import asyncio
import socket
import struct
import sys
from types import SimpleNamespace

import pytest

from pccl.core.fields import Flow
from pccl.core.messages.to_master import Done
from pccl.net import flows
from pccl.net.flows import Counters
from pccl.wire.codec import decode_to_master, encode
from tests.unit.scripted import two_peers, until

MSS = 1448
TCP_INFO = {
    "snd_mss": (16, "I", MSS),
    "unacked": (24, "I", 1),
    "retrans": (36, "I", 2),
    "rtt": (68, "I", 82_000),
    "rttvar": (72, "I", 3),
    "total_retrans": (100, "I", 4),
    "bytes_acked": (120, "Q", 64_000_000),
    "bytes_received": (128, "Q", 5),
    "notsent_bytes": (144, "I", 6),
    "min_rtt": (148, "I", 80_000),
    "delivery_rate": (160, "Q", 7),
    "busy_time": (168, "Q", 9_000_000),
    "rwnd_limited": (176, "Q", 200_000),
    "sndbuf_limited": (184, "Q", 30_000),
    "bytes_sent": (200, "Q", 8),
    "bytes_retrans": (208, "Q", 100 * MSS),
    "dsack_dups": (216, "I", 40),
    "reord_seen": (220, "I", 9),
}
"""Where Linux has each, as `linux/tcp.h` says, and what it is here: neighbours differ."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")


def info(length=224, **changes):
    told = bytearray(224)
    for name, (place, form, value) in TCP_INFO.items():
        struct.pack_into(f"={form}", told, place, changes.get(name, value))
    return bytes(told[:length])


class Told:
    """A socket whose kernel tells this."""

    def __init__(self, told):
        self.told = told

    def getsockopt(self, level, option, length):
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        if isinstance(self.told, OSError):
            raise self.told
        return self.told[:length]


@pytest.fixture
def on_linux(monkeypatch):
    monkeypatch.setattr(flows, "sys", SimpleNamespace(platform="linux"))
    monkeypatch.setattr(flows, "time", SimpleNamespace(monotonic=lambda: 50.0))
    if not hasattr(socket, "TCP_INFO"):
        monkeypatch.setattr(socket, "TCP_INFO", 11, raising=False)


@pytest.mark.usefixtures("on_linux")
def test_each_figure_is_read_where_the_kernel_has_it():
    assert flows.read(Told(info())) == Counters(
        at=50.0,
        acked=64_000_000,
        resent=60 * MSS,
        busy_us=9_000_000,
        limited_us=230_000,
        shortest_us=80_000,
        smoothed_us=82_000,
    )


@pytest.mark.usefixtures("on_linux")
def test_what_only_overtook_was_not_lost():
    """Packets that came in another order were sent again for nothing, as their receiver tells; never below none."""
    assert flows.read(Told(info(dsack_dups=100))).resent == 0
    assert flows.read(Told(info(dsack_dups=101))).resent == 0
    assert flows.read(Told(info(dsack_dups=0))).resent == 100 * MSS


@pytest.mark.usefixtures("on_linux")
@pytest.mark.parametrize("told", [OSError(9, "Bad file descriptor"), info(192), b"", info(min_rtt=(1 << 32) - 1)])
def test_a_kernel_that_does_not_tell_is_not_guessed_at(told):
    """Broken already, older than 4.19, or without a round trip yet."""
    assert flows.read(Told(told)) is None


def test_elsewhere_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(flows, "sys", SimpleNamespace(platform="darwin"))
    assert flows.read(None) is None


# ── of several lanes ─────────────────────────────────────────────────────────────────────────────────────────────────

LENT = Counters(100.0, 1_000, 500, 70_000, 9_000, 81_000, 99_000)
BACK = Counters(102.5, 6_000, 1_700, 2_270_000, 509_000, 80_000, 85_000)


def test_lanes_are_added_up_since_they_were_lent():
    one = Flow(5_000, 1_200, 2_500, 2_200, 500, 80_000, 85_000)
    assert flows.flow([(LENT, BACK)]) == one
    nearer = BACK._replace(shortest_us=79_000, smoothed_us=81_000)
    assert flows.flow([(LENT, BACK), (LENT, nearer)]) == Flow(10_000, 2_400, 5_000, 4_400, 1_000, 79_000, 83_000)


def test_fractions_of_milliseconds_add_up():
    """Many lanes were busy for little each."""
    after = LENT._replace(busy_us=LENT.busy_us + 600, limited_us=LENT.limited_us + 600, at=LENT.at + 0.0625)
    told = flows.flow([(LENT, after)] * 8)
    assert (told.busy_ms, told.limited_ms, told.held_ms) == (4, 4, 500)


def test_what_turned_out_not_to_be_lost_is_no_gain():
    """The receiver told only after the lane was lent that what was sent again before had arrived."""
    assert flows.flow([(LENT, BACK._replace(resent=100))]).resent == 0


def test_a_lane_of_which_one_end_is_unknown_does_not_count():
    assert flows.flow([(LENT, None), (None, BACK)]) == Flow()
    assert flows.flow([]) == Flow()
    assert flows.flow([(None, None), (LENT, BACK)]) == flows.flow([(LENT, BACK)])


def test_it_fits_a_message_however_long_it_was():
    """A lane that was lent for a year and carried all that a link of 100 Gbit/s does."""
    year = LENT._replace(at=LENT.at + 3.2e7, acked=1 << 58, resent=1 << 55, busy_us=int(3.2e13), limited_us=int(3e13))
    done = Done(0, 1, b"", flows.flow([(LENT, year)]))
    assert decode_to_master(encode(done)) == done


# ── of real connections ──────────────────────────────────────────────────────────────────────────────────────────────

NBYTES, LONG = 1 << 20, 32 << 20
"""The second is more than the buffers of both ends hold."""


async def send(lane, other, nbytes=NBYTES, read_when=lambda: True):
    loop = asyncio.get_running_loop()
    for sock in (lane, other):
        sock.setblocking(False)
    sending = loop.create_task(loop.sock_sendall(lane, bytes(nbytes)))
    await until(read_when)
    received = 0
    while received < nbytes:
        received += len(await loop.sock_recv(other, 1 << 16))
    await sending


class Lent:
    """Lanes between two peers, lent at both ends until the block is left."""

    def __init__(self, peers, count):
        self.peers, self.keys = peers, [(7, lane) for lane in range(count)]
        self.near, self.far = [], []

    async def __aenter__(self):
        for _, lane in self.keys:
            self.peers.dial(lane=lane)
        await until(lambda: len(self.peers.dialler_core.events) == len(self.keys))
        self.near, self.far = self.peers.dialler.lend(self.keys), self.peers.receiver.lend(self.keys)
        return self

    async def __aexit__(self, *raised):
        for end in (self.peers.dialler, self.peers.receiver):
            end.give_back(self.keys, self.keys)

    def flow(self):
        return self.peers.dialler.flow(self.keys)


@linux
def test_a_real_connection_is_counted():
    """It was held up by its receiver, which did not read for a while."""

    async def story(peers):
        async with Lent(peers, 1) as lent:
            (sock,), (other,) = lent.near, lent.far
            before = flows.read(sock)
            await send(sock, other, LONG, lambda: flows.read(sock).limited_us > before.limited_us)
            await until(lambda: flows.read(sock).acked >= before.acked + LONG)
            after = flows.read(sock)
            assert after.acked == before.acked + LONG
            assert before.limited_us < after.limited_us <= after.busy_us
            assert after.shortest_us > 0
            assert after.smoothed_us > 0
            assert flows.read(other).acked <= 1000, "what comes in is not what arrived of what was sent"

    two_peers(story)


@linux
def test_only_what_went_over_lanes_while_they_are_lent_is_told():
    async def story(peers):
        async with Lent(peers, 2) as lent:
            for sock, other in zip(lent.near, lent.far, strict=True):
                await send(sock, other)
            await until(lambda: lent.flow().sent == 2 * NBYTES)
            assert lent.flow().shortest_us > 0
            assert peers.receiver.flow(lent.keys).sent == 0
            peers.dialler.give_back(lent.keys, [])
            assert lent.flow() == Flow()
            peers.dialler.lend(lent.keys[:1])
            assert lent.flow().sent == 0, "what went before was told before"
            await send(lent.near[0], lent.far[0], 1000)
            await until(lambda: lent.flow().sent == 1000)

    two_peers(story)
