"""A watcher sees the port and every effect of a peer, before and after it is carried out, and the bytes under way."""

import select
import threading
import time

import numpy as np
import pytest

from pccl import Communicator, MasterNode
from pccl.core.effects.peer_effects import SendMaster, StartAttempt
from pccl.core.messages.to_master import Join
from pccl.net.watching import Watcher, watchers
from tests.e2e.test_api import wait_until

COUNT = 8_000_000
"""Elements of a tensor that takes long enough to be seen while it moves."""

BYTES_MAX = 2 * 4 * COUNT + 1_000_000
"""What two peers send and receive of it, and headers."""

LOOK_S = 0.001
WAIT_S = 20.0


class Recorder(Watcher):
    def __init__(self):
        self.ports, self.before_it, self.after_it, self.planes = [], [], [], []

    def listening(self, port):
        self.ports.append(port)

    def before(self, effect, plane):
        self.before_it.append(effect)
        self.planes.append(plane)

    def after(self, effect, plane):
        assert effect in self.before_it
        self.after_it.append(effect)


@pytest.fixture
def recorder():
    it = Recorder()
    watchers.append(it)
    yield it
    watchers.remove(it)


@pytest.fixture
def address():
    master = MasterNode("127.0.0.1:0")
    master.run()
    yield f"127.0.0.1:{master.port}"
    master.interrupt()


def test_a_watcher_sees_the_port_and_every_effect(recorder, address):
    with Communicator(address, listen="127.0.0.1:0"):
        pass
    assert len(recorder.ports) == 1
    assert recorder.ports[0] > 0
    first = recorder.before_it[0]
    assert isinstance(first, SendMaster)
    assert isinstance(first.message, Join)
    assert first.message.me.port == recorder.ports[0]
    assert recorder.after_it == recorder.before_it


def test_nothing_is_called_once_a_watcher_is_removed(recorder, address):
    watchers.remove(recorder)
    with Communicator(address):
        pass
    watchers.append(recorder)
    assert (recorder.ports, recorder.before_it) == ([], [])


class Counter(Watcher):
    """Stays in the control thread of a peer that has begun a collective until bytes have moved, so that they do move
    while the test looks."""

    def __init__(self):
        self.planes, self.moved = [], []

    def after(self, effect, plane):
        if isinstance(effect, StartAttempt):
            self.planes.append(plane)
            deadline = time.monotonic() + WAIT_S
            while not any(moved := plane.moved_bytes()) and time.monotonic() < deadline:
                select.select([], [], [], LOOK_S)
            self.moved.append(moved)


@pytest.mark.parametrize("plane", ["native", "reference"])
def test_bytes_are_counted_while_they_move(address, plane):
    pair = [Communicator(address, data_plane=plane) for _ in range(2)]
    pair[0].connect()
    joining = threading.Thread(target=pair[1].connect)
    joining.start()
    wait_until(pair[0].are_peers_pending)
    pair[0].update_topology()
    joining.join(WAIT_S)
    counter = Counter()
    watchers.append(counter)
    try:
        for work in [each.all_reduce(np.ones(COUNT, np.float32), async_op=True) for each in pair]:
            work.wait(WAIT_S)
    finally:
        watchers.remove(counter)
    assert [len(moved) for moved in counter.moved] == [1, 1]
    assert all(0 < moved[0] <= BYTES_MAX for moved in counter.moved)
    assert all(each.moved_bytes() == [] for each in counter.planes)
    for each in pair:
        each.close()
