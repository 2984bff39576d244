"""A peer with tensors on a device is killed in the middle of its collectives; the others go on without it."""

import os
import threading

import pytest

from tests.device.conftest import succeed
from tests.device.peer import reduce_once
from tests.e2e.harness import Process
from tests.e2e.test_api import address, wait_until

ROUNDS = 20
"""With all three, before the kill."""


@pytest.fixture
def victim(master):
    kind = {"PCCL_TEST_DEVICE": os.environ["PCCL_TEST_DEVICE"]} if "PCCL_TEST_DEVICE" in os.environ else {}
    process = Process("-m", "tests.device.peer", address(master), settings=kind)
    yield process
    process.end()


def test_a_kill_in_mid_collective_with_retry(pair, device, victim):
    wait_until(lambda: all(succeed([each.are_peers_pending for each in pair])))
    succeed([each.update_topology for each in pair])
    killed = threading.Event()

    def go_on(communicator, where):
        sizes = []
        while len(sizes) < ROUNDS or sizes[-1] == 3:
            sizes.append(reduce_once(communicator, where))
            if len(sizes) == ROUNDS and not killed.is_set():
                killed.set()
                victim.kill()
        return sizes

    places = (device.first, "cpu")
    told = succeed([lambda c=c, w=w: go_on(c, w) for c, w in zip(pair, places, strict=True)])
    assert told[0] == told[1]
    assert told[0][:ROUNDS] == [3] * ROUNDS
    assert told[0][-1] == 2
    sizes = succeed([lambda c=c, w=w: reduce_once(c, w) for c, w in zip(pair, places, strict=True)])
    assert sizes == [2, 2]
