"""Cores that do what a test says, and shells around them."""

import asyncio
import contextlib

from pccl.core.effects.peer_effects import AcceptLane, Dial
from pccl.core.effects.peer_events import LaneDialled, LaneOffered
from pccl.core.messages.lanes import LaneHello
from pccl.net.bounds import Bounds
from pccl.net.driver import Driver
from pccl.net.lanes import Lanes
from tests.patience import HANG_S

PATIENCE_S = HANG_S


def run(work):
    async def bounded():
        async with asyncio.timeout(PATIENCE_S):
            return await work

    return asyncio.run(bounded())


async def until(holds):
    """Look until it holds; `run` bounds it."""
    while not holds():  # noqa: ASYNC110 - a core that is scripted has no event to offer
        await asyncio.sleep(0.001)


class ScriptedCore:
    """Answers each event with what `answer` says; remembers events and their times."""

    def __init__(self, answer=lambda event: [], deadline=None):
        self.answer = answer
        self.deadline = deadline
        self.events = []
        self.times = []
        self.members = set()

    def handle(self, event, now):
        self.events.append(event)
        self.times.append(now)
        return self.answer(event)

    def contain(self, event, now):
        raise AssertionError(f"it raised at {event}")

    def is_member(self, connection):
        return connection in self.members

    def next_deadline(self):
        return self.deadline


def drive(core, carry_out=lambda effect: None, on_bug=None):
    def unexpected(error):
        raise error

    return Driver(core, "tick", carry_out, on_bug or unexpected)


class TwoPeers:
    """Two ends of lanes. The receiver accepts everything that it is offered."""

    def __init__(self, bounds):
        self.dialler, self.receiver = Lanes(Bounds()), Lanes(bounds)
        self.dialler_core = ScriptedCore()
        self.receiver_core = ScriptedCore(self._accept)
        self.dialler.report_to(drive(self.dialler_core))
        self.receiver.report_to(drive(self.receiver_core, self.receiver.accept))
        self.port = self.receiver.listen("127.0.0.1", 0)

    def _accept(self, event):
        match event:
            case LaneOffered(offer, hello):
                return [AcceptLane(offer, hello.link, hello.lane)]
        return []

    def dial(self, port=None, timeout_s=5.0, host="127.0.0.1", lane=0):
        hello = LaneHello("run", "a", "b", 7, lane)
        self.dialler.dial(Dial(hello, host, port or self.port, timeout_s))

    async def stand(self):
        self.dial()
        await until(self.stands)

    def stands(self):
        return any(isinstance(event, LaneDialled) for event in self.dialler_core.events)

    def stop(self):
        for lanes in (self.dialler, self.receiver):
            with contextlib.suppress(IndexError):
                lanes.stop()


def two_peers(story, bounds=None):
    async def play():
        peers = TwoPeers(bounds or Bounds())
        try:
            await story(peers)
        finally:
            peers.stop()
            await asyncio.sleep(0)

    run(play())
