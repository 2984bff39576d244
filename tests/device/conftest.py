"""A device, and two peers in this process that are connected."""

import subprocess
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


@pytest.fixture
def backward(device):
    """For tests with a backward pass on the device: autograd has its threads for the devices that are there when it is
    first used, and another test of this process may have used it before. Whether it can."""
    value = torch.ones(1, device=device.first, requires_grad=True)
    try:
        value.sum().backward()
    except RuntimeError as error:
        if "device_ready_queues_" not in str(error):
            raise
        return False
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """A test that needs autograd to know the device has a process of its own where it does not."""
    if pyfuncitem.funcargs.get("backward", True):
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", pyfuncitem.nodeid]
    told = subprocess.run(command, cwd=pyfuncitem.config.rootpath, capture_output=True, text=True, timeout=HANG_S)
    assert told.returncode == 0, told.stdout
    return True


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
