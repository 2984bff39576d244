"""A rig for each test, and no thread of a transfer left behind by any."""

import threading

import pytest

from pccl.dataplane.state import agenda
from tests.state.rig import Rig


@pytest.fixture
def rig(monkeypatch):
    """Makes rigs and ends all that they began. On a busy machine any lane may be slow: unless a test is about that, no
    chunk is asked for twice."""
    monkeypatch.setattr(agenda, "SECOND_REQUEST_S", 60.0)
    made = []

    def make(*sizes, **settings):
        made.append(Rig(*sizes, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("pccl ")] == []
