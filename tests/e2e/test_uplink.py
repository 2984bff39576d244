"""What peers may do to the link that they share with others: a limit on what they send, and the congestion control of
their lanes."""

import os
import socket
import struct
import time

import numpy as np
import pytest

from pccl import Communicator, MasterNode, SharedState, TensorInfo, UsageError
from pccl.net import sockets
from pccl.net.pacing import PARCELS_SHARE
from pccl.net.sockets import SO_MAX_PACING_RATE
from pccl.uplink import Uplink
from tests.e2e.pairs import both
from tests.e2e.test_api import address, connect_two

MBPS = 80.0
NBYTES = 4 << 20
"""Takes 0.4 s at that rate, and a few milliseconds without a limit."""

SLACK = 0.7
"""A connection begins with a few packets at once, and the kernel paces on average."""


@pytest.fixture
def pair(monkeypatch):
    monkeypatch.setenv("PCCL_MAX_UPLOAD_MBPS", str(MBPS))
    with MasterNode("127.0.0.1:0") as master:
        communicators = connect_two(master)
        yield communicators
        for communicator in communicators:
            communicator.close()


def least_s(nbytes):
    return SLACK * nbytes * 8 / (MBPS * 1e6)


def test_no_peer_sends_faster_than_its_limit(pair):
    def call(communicator):
        return communicator.all_reduce(np.ones(NBYTES // 4, np.float32))

    for info in both(pair, call):
        assert info.seconds >= least_s(NBYTES)
        assert info.tx_bytes >= NBYTES


def test_the_lanes_of_one_collective_share_the_limit(pair):
    def call(communicator):
        began = time.monotonic()
        works = [communicator.all_reduce_async(np.ones(NBYTES // 16, np.float32), tag=tag) for tag in range(4)]
        for work in works:
            work.wait()
        return time.monotonic() - began

    for seconds in both(pair, call):
        assert seconds >= least_s(NBYTES)


def test_a_state_is_served_no_faster(pair):
    def call(communicator):
        holds = communicator is pair[0]
        values = np.full(NBYTES // 4, 7.0 if holds else 0.0, np.float32)
        state = SharedState([TensorInfo.from_numpy(values, "w")])
        state.revision = 1 if holds else 0
        began = time.monotonic()
        communicator.sync_shared_state(state)
        assert values[-1] == 7.0
        return time.monotonic() - began

    assert max(both(pair, call)) >= least_s(NBYTES)


def test_lanes_of_parcels_have_their_share_of_the_limit(pair):
    """They stay in use beside others, so that what is left is what these have."""
    both(pair, lambda communicator: communicator.all_reduce(np.ones(16, np.float32)))
    paced = of_this_process(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8)
    share = struct.pack("@Q", int(MBPS * 1e6 / 8 * PARCELS_SHARE))
    assert paced.count(share) == len(pair)


def of_this_process(level, option, size):
    """This option of every connection of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6):
                    found.append(sock.getsockopt(level, option, size))
        except OSError:
            continue
    return found


def lanes_of_this_process():
    """The congestion control of each."""
    return [each.split(b"\0")[0] for each in of_this_process(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)]


def test_the_congestion_control_that_is_asked_for_is_used(monkeypatch):
    allowed = sockets.ALLOWED.read_text().split()
    chosen = allowed[-1]
    monkeypatch.setenv("PCCL_CONGESTION_CONTROL", chosen)
    with MasterNode("127.0.0.1:0") as master:
        communicators = connect_two(master)
        kinds = lanes_of_this_process()
        for communicator in communicators:
            communicator.close()
    # Five lanes, seen from both ends; control connections have the kernel's own.
    assert kinds.count(chosen.encode()) >= 10


def test_one_that_the_kernel_does_not_allow_is_refused_in_words():
    with MasterNode("127.0.0.1:0") as master:
        communicator = Communicator(address(master), congestion_control="nosuch")
        with pytest.raises(UsageError, match=r"congestion_control .*allows \(.*'nosuch'.*modprobe tcp_nosuch"):
            communicator.connect()


@pytest.mark.parametrize("given", [-1.0, 0.01, float("nan"), "fast"])
def test_a_limit_that_is_none_is_refused(given):
    with pytest.raises(UsageError, match=r"max_upload_mbps \(PCCL_MAX_UPLOAD_MBPS\)"):
        Uplink.resolve(max_upload_mbps=given)
