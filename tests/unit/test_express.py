"""Exchanges over real sockets: parcels that come slowly, are used once, or never come."""

import asyncio
import contextlib
import socket

import numpy as np

from pccl.core.effects.peer_effects import SendParcel, StartExchange
from pccl.core.effects.peer_events import AttemptEnded
from pccl.core.fields import CollectiveSpec
from pccl.core.rules.schedule import PARCEL_BYTES_MAX
from pccl.dataplane.reference import ReferencePlane
from pccl.dataplane.ring.parcels import PARCELS_PER_TURN, wrap
from pccl.dataplane.tensors.buffers import buffers
from pccl.net.express import Express
from pccl.types import DataType, ReduceOp
from tests.unit.scripted import run, until

KEY = (1, 4)
SPEC = CollectiveSpec(1000, DataType.FLOAT, ReduceOp.SUM)
STALL_S = 0.3


class Pair:
    """One end of an express lane with an exchange that waits at it; the other end is the test's."""

    def __init__(self):
        self.plane, self.events = ReferencePlane(STALL_S), []
        self.express = Express(self.plane, self.events.append)
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.express.carry(KEY, near)
        self.values = np.ones(SPEC.count, np.float32)
        self.plane.offers.offer(0, buffers(self.values, self.values))
        self.express.send(SendParcel(0, 1, 1, (KEY,), SPEC))
        self.express.start(StartExchange(1, 0, 9, SPEC, 0, ((None, 1), (KEY, 7))))

    def parcel(self, number):
        contribution = self.values.tobytes()
        return wrap(number, 1, contribution, self.plane.check(contribution))

    @property
    def ended(self):
        return [event for event in self.events if isinstance(event, AttemptEnded)]


def play(story):
    async def bounded():
        pair = Pair()
        with contextlib.closing(pair.far):
            await story(pair)
            pair.express.stop()

    run(bounded())


def test_a_parcel_that_comes_slowly_is_waited_for():
    async def story(pair):
        loop = asyncio.get_running_loop()
        long = bytes(PARCEL_BYTES_MAX)
        began, stream = loop.time(), wrap(5, 1, long, pair.plane.check(long)) + pair.parcel(6) + pair.parcel(7)
        while stream:  # paced, so that all of it takes much longer than a stall
            pair.far.send(stream[:2000])
            stream = stream[2000:]
            await asyncio.sleep(0.02)
            assert stream == b"" or pair.ended == []
        await until(lambda: pair.ended)
        assert loop.time() - began > 2 * STALL_S
        assert [(each.cause, len(each.digest)) for each in pair.ended] == [("", 16)]
        assert pair.values[0] == 2

    play(story)


def test_a_parcel_that_never_comes_is_given_up():
    async def story(pair):
        await until(lambda: pair.ended)
        assert pair.ended == [AttemptEnded(0, 9, "a parcel did not come")]

    play(story)


def test_a_lane_that_brings_a_byte_now_and_then_is_not_waited_for():
    """Any byte was progress."""

    async def story(pair):
        stream = pair.parcel(7)
        while not pair.ended:
            assert stream, "it waits for as long as bytes come"
            pair.far.send(stream[:1])
            stream = stream[1:]
            await asyncio.sleep(STALL_S / 20)
        assert pair.ended == [AttemptEnded(0, 9, "a parcel did not come")]

    play(story)


def test_what_came_for_an_exchange_that_is_over_is_not_kept():
    async def story(pair):
        pair.far.send(pair.parcel(7)[:100])
        pair.express.start(StartExchange(2, 0, 10, SPEC, 0, ((None, 1), (KEY, 6), ((9, 9), 3))))
        pair.far.send(pair.parcel(7)[100:])
        await until(lambda: pair.ended)
        pair.express.abort(10)
        assert pair.express._lanes[KEY].inbox.kept_bytes == 0

    play(story)


def test_parcels_without_end_leave_others_their_turn():
    async def story(pair):
        small = b"".join(wrap(number, number, b"x", pair.plane.check(b"x")) for number in range(10, 2000))
        pair.far.send(small)
        inbox, turns = pair.express._lanes[KEY].inbox, 0
        while inbox._latest < 1999:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 1990 / PARCELS_PER_TURN
        assert len(inbox.parcels) == 1, "each said that those before it are not needed"

    play(story)


def test_what_was_used_is_not_kept():
    async def story(pair):
        pair.far.send(pair.parcel(6) + pair.parcel(7))
        await until(lambda: pair.ended)
        assert list(pair.express._lanes[KEY].inbox.parcels) == [6]
        assert pair.express._sent == {}

    play(story)
