"""What a peer tells while no master answers."""

import logging

import pytest

from pccl import Communicator, MasterLost
from pccl.api import membership


def test_each_wait_that_is_twice_as_long_is_a_warning_and_the_last_attempt(monkeypatch, caplog):
    monkeypatch.setattr(membership, "ATTEMPT_PAUSE_S", 0.0)
    caplog.set_level(logging.INFO, "pccl.peer")
    with pytest.raises(MasterLost, match="after 10 attempts"):
        Communicator("127.0.0.1:1").connect(10)
    said = [each for each in caplog.records if "to reach the master" in each.getMessage()]
    assert [each.getMessage().split()[1] for each in said] == [str(number) for number in range(1, 11)]
    warned = [each.getMessage().split()[1] for each in said if each.levelno == logging.WARNING]
    assert warned == ["1", "2", "4", "8", "10"]
