"""Lanes and what they may use of a process, with cores that do what the test says."""

import asyncio
import re
import resource
import socket
import threading
from contextlib import suppress

import pytest

from pccl.core.effects.peer_events import LaneClosed, LaneDialled
from pccl.dataplane.connection import Rest, leave, rest_of
from pccl.dataplane.ring.segments import Header
from pccl.errors import UsageError
from pccl.net import sockets
from pccl.net.bounds import Bounds, peer_bounds
from tests.unit.scripted import PATIENCE_S, two_peers, until


def test_a_closed_lane_is_noticed_at_the_other_end():
    async def story(peers):
        await peers.stand()
        peers.dialler.close((7, 0))
        await until(lambda: len(peers.receiver_core.events) == 2)
        assert isinstance(peers.receiver_core.events[1], LaneClosed)

    two_peers(story)


def test_bytes_that_come_before_their_run_are_kept_for_it():
    """The previous peer may have got its start first; what it sends must not look like a broken lane."""

    async def story(peers):
        await peers.stand()
        (sock,) = peers.dialler.lend([(7, 0)])
        sock.send(b"early")
        await asyncio.sleep(0.02)
        (other,) = peers.receiver.lend([(7, 0)])
        assert other.recv(100) == b"early"
        peers.receiver.give_back([(7, 0)], [])
        peers.dialler.give_back([(7, 0)], [(7, 0)])
        await until(lambda: len(peers.receiver_core.events) == 2)
        assert isinstance(peers.receiver_core.events[1], LaneClosed)

    two_peers(story)


@pytest.mark.parametrize("then", [b"", b"early"], ids=["closed", "used"])
def test_what_the_last_attempt_left_on_a_lane_is_skipped_before_the_next_one(then):
    """The rest of a copy comes when the lane is idle. It hides neither the end of the lane nor what comes behind it."""

    async def story(peers):
        await peers.stand()
        (sock,) = peers.dialler.lend([(7, 0)])
        (other,) = peers.receiver.lend([(7, 0)])
        leave(other, Rest(skip=1000))
        peers.receiver.give_back([(7, 0)], [])
        sock.send(bytes(600))
        await until(lambda: rest_of(other) == Rest(skip=400))
        sock.send(bytes(400) + then)
        await until(lambda: rest_of(other) == Rest())
        if then:
            assert peers.receiver.lend([(7, 0)]) == [other]
            assert other.recv(100) == then
            peers.receiver.give_back([(7, 0)], [])
        peers.dialler.give_back([(7, 0)], [(7, 0)])
        await until(lambda: len(peers.receiver_core.events) == 2)
        assert isinstance(peers.receiver_core.events[1], LaneClosed)

    two_peers(story)


@pytest.mark.parametrize("number", [5, 6], ids=["ended", "next"])
def test_a_copy_that_comes_after_the_end_of_its_attempt_is_skipped(number):
    """However long it is: its sender must not wait for room. What the next attempt sends is kept for it."""

    async def story(peers):
        await peers.stand()
        (sock,) = peers.dialler.lend([(7, 0)])
        (other,) = peers.receiver.lend([(7, 0)])
        peers.receiver.give_back([(7, 0)], [], 5)
        header = Header(1, number, 0, 0, 10_000_000, 0, 0).sealed().pack()
        rest = memoryview(header + bytes(10_000_000))
        if number == 6:
            sock.send(rest[:100])
            await until(lambda: rest_of(other) == Rest(head=header))
            assert peers.receiver.lend([(7, 0)]) == [other]
            assert other.recv(100) == bytes(60)
            peers.receiver.give_back([(7, 0)], [])
        while number == 5 and rest:
            with suppress(BlockingIOError):
                rest = rest[sock.send(rest) :]
            await asyncio.sleep(0)
        if number == 5:
            await until(lambda: rest_of(other) == Rest())
        peers.dialler.give_back([(7, 0)], [])

    two_peers(story)


def test_a_lane_that_ends_in_what_was_to_be_skipped_is_noticed():
    async def story(peers):
        await peers.stand()
        (other,) = peers.receiver.lend([(7, 0)])
        leave(other, Rest(skip=1000))
        peers.receiver.give_back([(7, 0)], [])
        (sock,) = peers.dialler.lend([(7, 0)])
        sock.send(bytes(600))
        peers.dialler.give_back([(7, 0)], [(7, 0)])
        await until(lambda: len(peers.receiver_core.events) == 2)
        assert peers.receiver_core.events[1] == LaneClosed(7, 0, "the other end closed it")

    two_peers(story)


def test_a_lent_lane_is_closed_when_it_comes_back():
    async def story(peers):
        await peers.stand()
        (sock,) = peers.dialler.lend([(7, 0)])
        peers.dialler.close((7, 0))
        # Not closed under the data plane's hands, but of no more use.
        assert sock.fileno() >= 0
        assert sock.recv(1) == b""
        assert peers.dialler.lend([(7, 0)]) is None
        peers.dialler.give_back([(7, 0)], [])
        assert sock.fileno() == -1

    two_peers(story)


def test_a_dial_that_nobody_answers_fails_in_time():
    async def story(peers):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            peers.dial(silent.getsockname()[1], timeout_s=0.05)
            await until(lambda: peers.dialler_core.events)
        (failed,) = peers.dialler_core.events
        assert isinstance(failed, LaneClosed)
        assert "did not answer within 0.05 s" in failed.cause

    two_peers(story)


def test_closing_ends_a_dial_under_way():
    async def story(peers):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            peers.dial(silent.getsockname()[1])
            other, _ = await asyncio.to_thread(silent.accept)
            peers.dialler.close((7, 0))
            with other:
                other.settimeout(PATIENCE_S)
                while await asyncio.to_thread(other.recv, 4096):
                    pass
        assert peers.dialler_core.events == []

    two_peers(story)


def test_a_dial_that_is_refused_says_so():
    async def story(peers):
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            peers.dial(held.getsockname()[1])
            await until(lambda: peers.dialler_core.events)
        assert "Connection refused" in peers.dialler_core.events[0].cause

    two_peers(story)


@pytest.mark.parametrize("host", ["foo..bar", "." + "a" * 20, "a" * 64 + ".example"])
def test_a_dial_to_what_is_no_name_fails_in_words(host):
    """The host of a neighbour comes from the master: whatever it is, the dial ends in an event."""

    async def story(peers):
        peers.dial(host=host)
        await until(lambda: peers.dialler_core.events)
        assert "is not a host name" in peers.dialler_core.events[0].cause

    two_peers(story)


def test_the_lanes_of_a_link_ask_for_its_name_once(monkeypatch):
    asked, look_up = [], sockets.look_up

    def counted(host, port, flags):
        if not flags:
            asked.append(host)
        return look_up(host, port, flags)

    monkeypatch.setattr(sockets, "look_up", counted)

    async def story(peers):
        for lane in range(16):
            peers.dial(host="localhost", lane=lane)
        # One that is given up does not take the answer from the others.
        await asyncio.sleep(0)
        peers.dialler.close((7, 3))
        await until(lambda: len(peers.dialler_core.events) == 15)
        assert all(isinstance(event, LaneDialled) for event in peers.dialler_core.events)
        assert asked == ["localhost"]

    two_peers(story)


def test_a_name_that_could_not_be_found_is_asked_for_again(monkeypatch):
    answers, look_up = [OSError("no name server answers"), None], sockets.look_up

    def flaky(host, port, flags):
        failure = None if flags else answers.pop(0)
        if failure:
            raise failure
        return look_up(host, port, flags)

    monkeypatch.setattr(sockets, "look_up", flaky)

    async def story(peers):
        peers.dial(host="localhost")
        await until(lambda: peers.dialler_core.events)
        assert "no name server answers" in peers.dialler_core.events[0].cause
        peers.dial(host="localhost")
        await until(peers.stands)

    two_peers(story)


def test_a_dial_without_a_thread_for_its_name_fails_in_words(monkeypatch):
    def none_left(self):
        raise RuntimeError("can't start new thread")

    async def story(peers):
        monkeypatch.setattr(threading.Thread, "start", none_left)
        peers.dial(host="localhost")
        await until(lambda: peers.dialler_core.events)
        assert "no thread" in peers.dialler_core.events[0].cause

    two_peers(story)


def test_lanes_get_through_a_flood_of_the_silent():
    """More of them than may wait at once, in the kernel's queue before and behind the lanes."""

    async def story(peers):
        loop = asyncio.get_running_loop()
        flood = [socket.socket() for _ in range(300)]
        try:
            for number, sock in enumerate(flood):
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", peers.port))
                if number % 10 == 0:
                    peers.dial(lane=number // 10)
            await until(lambda: len(peers.dialler_core.events) == 30)
        finally:
            for sock in flood:
                sock.close()
        assert all(isinstance(event, LaneDialled) for event in peers.dialler_core.events)

    two_peers(story, Bounds(strangers_max=64))


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def limited_to(monkeypatch, descriptors):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))


@pytest.mark.parametrize("descriptors", [256, 1024, 4096, 2**20, resource.RLIM_INFINITY])
@pytest.mark.parametrize("lanes", [0, 4, 16])
def test_a_quarter_of_the_descriptors_stays_the_trainers(monkeypatch, descriptors, lanes):
    limited_to(monkeypatch, descriptors)
    strangers = peer_bounds(lanes, 60.0).strangers_max
    assert 2 * lanes <= strangers <= 1024
    if descriptors != resource.RLIM_INFINITY:
        assert 4 * lanes + 2 * strangers <= descriptors * 3 / 4


def test_lanes_that_do_not_fit_the_descriptors_are_refused_with_a_remedy(monkeypatch):
    limited_to(monkeypatch, 1024)
    peer_bounds(95, 60.0)
    with pytest.raises(UsageError, match=r"PCCL_LANES.*96 lanes.*1024.*ulimit -n 1035") as raised:
        peer_bounds(96, 60.0)
    limited_to(monkeypatch, int(re.search(r"ulimit -n (\d+)", str(raised.value))[1]))
    peer_bounds(96, 60.0)


@pytest.mark.parametrize("dead_s", [5.0, 60.0, 3600.0, 1e9])
def test_a_dead_connection_is_given_up_in_the_time_set(dead_s):
    with sockets.make(socket.AF_INET, dead_s) as sock:
        options = {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEEPALIVE}
    assert options["TCP_USER_TIMEOUT"] == min(dead_s * 1000, 2**31 - 1)
    # Several probes go out before.
    assert options["TCP_KEEPIDLE"] + 3 * options["TCP_KEEPINTVL"] <= dead_s


KEEPALIVE = ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL")


def test_a_connection_that_is_given_up_before_it_was_looked_at_is_closed():
    """It was accepted in the same turn of the loop in which the peer leaves."""

    async def story(peers):
        near, far = socket.socketpair()
        with near:
            peers.receiver._connected(far, "10.0.0.9")
            peers.receiver._strangers.expel_all("the peer leaves")
            await until(lambda: far.fileno() < 0)

    two_peers(story)
