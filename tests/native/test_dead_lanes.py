"""Far lanes of which some have stopped: nothing is entrusted to them any more, and their threads sleep.

A lane is made deaf by a filter on the socket at its other end, which drops every packet before TCP sees it: what is
sent on it is never acknowledged, as on a way that is cut.
"""

import ctypes
import select
import socket
import struct

import numpy as np
import pytest

from pccl.net import sockets
from pccl.types import DataType, ReduceOp
from tests.native.rings import Rig, Work
from tests.native.test_far import BOUND, make_far
from tests.native.test_hanging_lanes import Neighbour
from tests.patience import HANG_S

SO_ATTACH_FILTER, DROP_ALL = 26, struct.pack("HBBI", 0x06, 0, 0, 0)

pytestmark = [
    pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the kernel bounds nothing here"),
    pytest.mark.usefixtures("one_strand"),
]


def deafen(end):
    program = ctypes.create_string_buffer(DROP_ALL)
    end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))


def warm_up(near, far):
    """Until more than one packet may be on its way."""
    for _ in range(32):
        sent = near.send(bytes(1 << 18))
        while sent:
            select.select([far], [], [], HANG_S)
            sent -= len(far.recv(1 << 20))


@pytest.fixture
def play():
    """Rank 0 of two with far lanes that are held to these rates, and of which some are deaf; the last one answers. Its
    run, once that has ended, and the other ends of its lanes."""
    made = []

    def start(rates, deaf, segments, stall_s=5.0, segment_bytes=BOUND // 2, warm=False):
        rig = Rig(2, len(rates))
        made.append(rig)
        make_far(rig)
        for (near, far), rate, dead in zip(rig.links[0], rates, deaf, strict=True):
            if warm:
                warm_up(near, far)
            sockets.pace(near, rate)
            if dead:
                deafen(far)
        rig.attempt = 1
        work = Work(DataType.FLOAT, ReduceOp.SUM, 2 * segments * segment_bytes // 4, segment_bytes)
        array = np.ones(work.count, np.float32)
        ends = [ends[1] for ends in rig.links[0]]
        neighbour = Neighbour([ends[0], ends[-1]], work, 1)
        run = rig.start_one(0, "native", work, (array, array), stall_s)
        assert run.wait()
        if not run.cause:
            neighbour.join()
        return run, ends

    yield start
    for rig in made:
        rig.close()


def test_near_the_end_a_slow_lane_is_spared(play):
    """What it took would be there long after all the rest; the faster one is served first, wherever it stands."""
    run, ends = play((1 << 13, 1 << 30), (False, False), segments=32, stall_s=30.0)
    assert (run.cause, run.broken) == ("", ([], []))
    came = 0
    while select.select([ends[0]], [], [], 0)[0]:
        came += len(ends[0].recv(1 << 20))
    assert came <= run.repeated_bytes, "nothing but copies, should the faster one have hung for a moment"


def test_what_is_lost_is_not_waited_for_until_its_lane_is_silent_for_long(play):
    """Of lanes that are held to a low rate silence means nothing for seconds; that one is in recovery means enough."""
    run, _ = play((1 << 12, 1 << 12), (True, False), segments=1, segment_bytes=1024)
    assert (run.cause, run.broken) == ("", ([], []))
    assert run.repeated_bytes > 0


@pytest.mark.parametrize("segments", [7, 9])
def test_a_dead_lane_carries_no_copies(segments, play):
    """Not even when all that it had was sent again over another; there is no third copy of what it would lose."""
    run, _ = play((4_000_000, 4_000_000, 200_000), (True, True, False), segments, warm=True)
    assert (run.cause, run.broken) == ("", ([], []))
    assert run.repeated_bytes > 0


@pytest.mark.parametrize("segments", [7, 16])
def test_no_lane_is_spared_for_dead_ones(segments, play):
    """They look as fast as they were."""
    run, _ = play((4_000_000, 4_000_000, 1_000_000), (True, True, False), segments)
    assert (run.cause, run.broken) == ("", ([], []))
    assert run.repeated_bytes > 0
