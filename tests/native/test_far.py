"""Lanes that lead far: a segment is given to one only when it can send it.

Lanes of one machine are made far by what tells them apart: a bound on what waits in them unsent
(`net.sockets.tune_lane`).
"""

import fcntl
import select
import socket
import struct

import numpy as np
import pytest

from pccl.core.rules.schedule import NEAR_S
from pccl.net import sockets
from pccl.types import DataType, ReduceOp
from tests.native.rings import Rig, Work
from tests.patience import HANG_S

KINDS = ["native", "reference"]
SIOCOUTQNSD = 0x894B
BOUND = sockets.FAR_UNSENT_BYTES

pytestmark = [
    pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the kernel bounds nothing here"),
    pytest.mark.usefixtures("one_strand"),
]


def make_far(rig):
    """Bound what waits in the lanes of a rig."""
    for end in (end for link in rig.links for ends in link for end in ends):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, BOUND)


def unsent(lane):
    """What waits in the kernel and could go by another lane, had it not been taken."""
    return struct.unpack("i", fcntl.ioctl(lane.fileno(), SIOCOUTQNSD, bytes(4)))[0]


@pytest.mark.parametrize("round_trip_s", [NEAR_S, 2 * NEAR_S])
def test_far_lanes_are_bounded(round_trip_s, monkeypatch):
    monkeypatch.setattr(sockets, "_is_loopback", lambda sock: False)
    monkeypatch.setattr(sockets, "round_trip_us", lambda sock: int(round_trip_s * 1e6))
    with socket.socket() as lane:
        sockets.tune_lane(lane)
        bound = lane.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    assert bound == (BOUND if round_trip_s > NEAR_S else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lane_that_does_not_flow_is_given_little(kind):
    """By default a lane takes what the kernel has room for, megabytes, whether or not the neighbour reads any of it."""
    rig = Rig(2, 2)
    make_far(rig)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 8 << 20, BOUND // 2)
    array = np.zeros(work.count, np.float32)
    rig.attempt = 1
    run = rig.start_one(0, kind, work, (array, array))
    flows, stands = (ends[1] for ends in rig.links[0])
    room, got = bytearray(1 << 20), 0
    while got < 12 << 20:  # of 16 MB that we send first
        select.select([flows], [], [], HANG_S)
        got += flows.recv_into(room)
        assert unsent(rig.links[0][1][0]) <= BOUND
    assert stands.recv(1), "it was used as long as it took anything"
    run.abort()
    assert run.wait()
    run.restore()
    rig.close()
