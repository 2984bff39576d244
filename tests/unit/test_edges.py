"""What strangers, candidates and members can take of a master, tried over real sockets by those who want too much."""

import asyncio
import contextlib
import resource
import socket

import pytest

from pccl.core.effects.master import Closed, Exceeded, Received, Send
from pccl.core.fields import Identity
from pccl.core.messages.both import Ping
from pccl.core.messages.to_master import Join, Leave
from pccl.core.messages.to_peer import Kick, Welcome
from pccl.core.rights import origin_of
from pccl.net import budgets, connection, rates
from pccl.net.bounds import Bounds, raise_descriptor_limit
from pccl.net.budgets import Budgets, Kept
from pccl.net.listening import Strangers
from pccl.net.master_shell import MasterShell
from pccl.net.rates import BURST, EXCESS_S, MESSAGES_PER_S, PING_COST, Allowance
from pccl.wire.codec import encode
from pccl.wire.framing import TO_MASTER_FRAME_MAX, Purpose, frame, preamble
from tests.unit.scripted import PATIENCE_S, ScriptedCore, run, two_peers, until
from tests.unit.test_broadcast_root import messages, three_accepted

JOIN = preamble(Purpose.CONTROL) + frame(encode(Join(Identity("a" * 32, 0, "", 1234, 0))))
PING = frame(encode(Ping()))
HONEST, FLOOD = "127.0.0.3", "127.0.0.2"


@contextlib.asynccontextmanager
async def serving(core, strangers_max=64):
    shell = MasterShell(core, Bounds(strangers_max=strangers_max), None, pytest.fail)
    shell.open("127.0.0.1", 0)
    try:
        yield shell
    finally:
        shell.stop()
        await asyncio.sleep(0)


async def knock(port, host=HONEST, said=b""):
    """A connection from this address of this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write(said)
    return reader, writer


def received(core, kind):
    return [event for event in core.events if isinstance(event, kind)]


# ── strangers ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("said", [b"", JOIN[:20]], ids=["silent", "half a hello"])
def test_a_flood_does_not_push_out_a_peer_that_is_far_away(said):
    """Its first message takes its time: it was the oldest stranger, and gone, after as many connections as there may
    be."""

    async def story():
        core = ScriptedCore()
        async with serving(core) as shell:
            _, honest = await knock(shell.port)
            flood = [await knock(shell.port, FLOOD, said) for _ in range(200)]
            honest.write(JOIN)
            await until(lambda: received(core, Received) or honest.is_closing())
            assert [event.host for event in received(core, Received)] == [HONEST]
            for _, writer in (*flood, (None, honest)):
                writer.close()

    run(story())


def test_a_flood_does_not_push_out_a_neighbour_that_is_far_away():
    async def story(peers):
        sock = socket.socket()
        sock.bind((HONEST, 0))
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", peers.port))
        flood = [await knock(peers.port, FLOOD) for _ in range(200)]
        strangers = peers.receiver._strangers
        await until(lambda: len(strangers) == 33)
        assert sock.fileno() >= 0
        with pytest.raises(BlockingIOError):
            sock.recv(1)
        sock.close()
        for _, writer in flood:
            writer.close()

    two_peers(story, Bounds(strangers_max=64))


def test_one_address_has_half_of_the_room_and_gives_way_first():
    async def story():
        ended = []
        strangers = Strangers(limit=8, timeout_s=60.0)

        def add(number, host):
            strangers.add(number, lambda cause: ended.append(number), host)

        for number in range(6):
            add(number, "10.0.0.1")
        assert ended == [0, 1], "no more than half"
        for number in range(10, 14):
            add(number, f"10.0.1.{number}")
        add(20, "10.0.2.1")
        assert ended == [0, 1, 2], "the oldest of those that have most, not the oldest of all"
        strangers.expel_all("over")
        assert len(strangers) == 0

    run(story())


def test_what_counts_as_one_address():
    assert origin_of("10.0.0.1") != origin_of("10.0.0.2")
    assert origin_of("2001:db8::1") == origin_of("2001:db8::ffff:1")
    assert origin_of("2001:db8:0:1::1") != origin_of("2001:db8:0:2::1")
    assert origin_of("fe80::1%lo") == origin_of("fe80::2")


# ── half a frame ─────────────────────────────────────────────────────────────────────────────────────────────────────

HALF = TO_MASTER_FRAME_MAX.to_bytes(4, "little") + bytes(TO_MASTER_FRAME_MAX // 2)


def test_half_a_frame_of_one_that_has_joined_ends(monkeypatch):
    monkeypatch.setattr(connection, "FRAME_TIMEOUT_S", 0.1)

    async def story():
        core = ScriptedCore()
        async with serving(core) as shell:
            _, writer = await knock(shell.port, said=JOIN + HALF)
            await until(lambda: received(core, Closed))
            assert "not the rest within 0.1 s" in received(core, Closed)[0].cause
            writer.close()

    run(story())


def test_whole_frames_that_never_pause_do_not(monkeypatch):
    """There is always half a frame, and always another one. What the timer does is done here, after each frame."""
    monkeypatch.setattr(connection, "FRAME_TIMEOUT_S", PATIENCE_S)

    async def story():
        core = ScriptedCore()
        async with serving(core) as shell:
            _, writer = await knock(shell.port, said=JOIN + PING[:3])
            await until(lambda: len(received(core, Received)) == 1)
            (guest,) = shell._guests.values()
            for count in range(2, 12):
                before = guest.end._frames
                writer.write(PING[3:] + PING[:3])
                await until(lambda count=count: len(received(core, Received)) == count)
                guest.end._judge_frame(before)
            assert not received(core, Closed)
            guest.end._judge_frame(guest.end._frames)
            await until(lambda: received(core, Closed))
            writer.close()

    run(story())


# ── turns and rates ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_that_sends_without_end_leaves_others_their_turn():
    """All that one read has brought was handled in one turn: 16,000 pings before the next vote."""

    async def story():
        core = ScriptedCore()
        async with serving(core) as shell:
            leave = frame(encode(Leave()))
            _, flood = await knock(shell.port, FLOOD, JOIN)
            _, honest = await knock(shell.port, HONEST, JOIN)
            await until(lambda: len(core.events) == 2)
            flood.write(leave * 10_000)
            honest.write(leave)
            await until(lambda: any(event.host == HONEST for event in core.events[2:]))
            place = next(place for place, event in enumerate(core.events[2:]) if event.host == HONEST)
            assert place < 1000
            await until(lambda: len(core.events) == 10_003)  # Late, and not lost.
            for writer in (flood, honest):
                writer.close()

    run(story())


def test_pings_without_end_are_held_up_then_an_offence(monkeypatch):
    monkeypatch.setattr(rates, "EXCESS_S", 0.2)

    async def story():
        core = ScriptedCore()
        async with serving(core) as shell:
            loop = asyncio.get_running_loop()
            _, writer = await knock(shell.port, said=JOIN)
            await until(lambda: core.events)
            began = loop.time()
            writer.write(PING * 20_000)
            await until(lambda: received(core, Exceeded))
            pings = len(received(core, Received))
            assert pings <= BURST / PING_COST + rates.FRAMES_PER_TURN + (loop.time() - began) * 110
            assert "pings a second" in received(core, Exceeded)[0].how
            writer.close()

    run(story())


def test_an_allowance_is_what_its_page_says():
    allowance = Allowance(0.0)
    assert all(allowance.spend(Leave(), 0.0) == 0.0 for _ in range(BURST))
    assert allowance.spend(Leave(), 0.0) == 1 / MESSAGES_PER_S
    assert not allowance.exceeded(EXCESS_S - 0.01)
    assert "messages" in allowance.exceeded(EXCESS_S)
    assert allowance.spend(Leave(), 0.6) == 0.0
    assert not allowance.exceeded(EXCESS_S), "it paused"
    assert sum(allowance.spend(Ping(), 100.0) == 0.0 for _ in range(200)) == BURST // PING_COST


def test_a_member_that_exceeds_is_kicked_and_named():
    master, _ = three_accepted()
    assert master.is_member(1)
    effects = master.handle(Exceeded(1, "sent too much"), 5.0)
    assert ["sent too much" in kick.reason for _, kick in messages(effects, Kick)] == [True]
    assert not master.is_member(1)
    assert messages(master.handle(Exceeded(99, "sent too much"), 5.0), Kick) == []


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def unread(members):
    """How many bytes are sent to one that does not read before it is closed."""

    async def story():
        core = ScriptedCore()
        async with serving(core) as shell:
            reader, writer = await knock(shell.port, said=JOIN)
            reader._transport.pause_reading()
            await until(lambda: core.events)
            core.members = members
            core.answer = lambda event: [Send((1,), Welcome("r" * 64))] * 2000 if event == "flood" else []
            most = 0
            while not received(core, Closed):
                shell._driver.post("flood")
                if 1 in shell._guests:
                    most = max(most, shell._guests[1].end.kept_bytes)
                await asyncio.sleep(0)
            assert "does not read" in received(core, Closed)[0].cause
            writer.close()
            return most

    return run(story())


def test_candidates_have_less_room_than_members():
    assert unread({1}) > budgets.MEMBER_BACKLOG_MAX * 0.9
    assert unread(set()) <= budgets.CANDIDATE_BACKLOG_MAX + 1000


def test_those_that_keep_most_of_their_kind_go():
    kept = [Kept(1, False, 20), Kept(2, False, 15), Kept(3, True, 100), Kept(4, False, 1)]
    assert Budgets().excess(kept) == []
    many = [Kept(number, False, budgets.CANDIDATES_MAX // 4) for number in range(6)]
    assert len(Budgets().excess([*kept, *many])) == 3, "their sum is within bounds, and the small ones stay"
    assert not any(each.member for each in Budgets().excess([*kept, *many]))


def test_candidates_with_half_frames_stay_within_their_budget(monkeypatch):
    monkeypatch.setattr(budgets, "CANDIDATES_MAX", 10 * len(HALF))
    monkeypatch.setattr(budgets, "LOOK_AFTER", len(HALF))

    async def story():
        core = ScriptedCore()
        async with serving(core) as shell:
            ends = [await knock(shell.port, said=JOIN + HALF) for _ in range(30)]
            await until(lambda: len(received(core, Closed)) >= 19)
            assert sum(guest.end.kept_bytes for guest in shell._guests.values()) <= 11 * len(HALF)
            assert "no room" in received(core, Closed)[0].cause
            for _, writer in ends:
                writer.close()

    run(story())


@pytest.fixture(autouse=True)
def descriptors():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise_descriptor_limit()
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
