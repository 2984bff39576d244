"""A device, and two peers in this process that are connected."""

import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from pccl import MasterNode  # noqa: E402
from tests.device import hardware  # noqa: E402
from tests.e2e.test_api import connect_two  # noqa: E402
from tests.patience import HANG_S  # noqa: E402


@pytest.fixture(scope="session")
def found_device():
    if not hardware.NAME and sys.platform != "linux":
        pytest.skip("our own device needs Linux; PCCL_TEST_DEVICE names a real one")
    return hardware.find()


@pytest.fixture
def device(found_device):
    found_device.reset()
    yield found_device
    found_device.reset()


@pytest.fixture
def ours(device):
    """For what only our own device can show: counters, and hardware that fails when it is told to."""
    if not device.simulated:
        pytest.skip("needs counters and switches that no real device has")
    return device


@pytest.fixture(scope="module")
def master():
    with MasterNode("127.0.0.1:0", tags_max=64) as running:
        yield running


@pytest.fixture
def pair(master):
    both = connect_two(master)
    yield both
    for communicator in both:
        communicator.close()


def together(calls):
    """Each in a thread of its own, at once; what each returned or raised."""
    told = [None] * len(calls)

    def make(number):
        try:
            told[number] = calls[number]()
        except Exception as error:
            told[number] = error

    threads = [threading.Thread(target=make, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive(), "a peer hangs"
    return told


def succeed(calls):
    """The same, and none may raise."""
    told = together(calls)
    for each in told:
        if isinstance(each, Exception):
            raise each
    return told
