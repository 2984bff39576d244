"""For all tests: how long an example of hypothesis takes is a fact about the machine, not about the code; and a test
that leaves a thread of ours behind fails itself, instead of another one that counts threads an hour later."""

import gc
import threading
import time

import pytest
from hypothesis import HealthCheck, settings

from tests.patience import HANG_S

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def _of_ours():
    """Threads of memberships and masters; the one that waits for SIGTERM is the process's, for good."""
    return {each for each in threading.enumerate() if each.name.startswith("pccl") and each.name != "pccl-sigterm"}


@pytest.fixture(autouse=True)
def _leaves_no_thread():
    before = _of_ours()
    yield
    deadline, pause = time.monotonic() + HANG_S, threading.Event()
    while left := _of_ours() - before:
        assert time.monotonic() < deadline, f"a test must close what it opened, and left {left}"
        gc.collect()  # An exception that was caught holds its frames in a cycle, and these a Communicator.
        pause.wait(0.05)
