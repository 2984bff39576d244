"""What a run warns of, and what it does not."""

import logging
import threading

import pytest

from pccl.training import DiLoCo
from pccl.training.fsdp.node import stale_store
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_rounds import EVERY, train


@pytest.mark.parametrize(
    ("rate", "least", "unstable"), [(0.4, 1, False), (0.4, 4, False), (0.4, 8, True), (0.2, 8, False), (0.7, 1, True)]
)
def test_eager_rates_are_judged_for_as_many_peers_as_the_default_is_for(caplog, rate, least, unstable):
    """Passed or left out makes no difference: 0.4 is the default for up to four peers."""
    model = oracle.make_model()
    options = {"overlap": "round", "eager": True, "outer_lr": rate, "outer_momentum": 0.9, "min_peers": least}
    DiLoCo("127.0.0.1:1", model, oracle.make_optimizer(model), **options)
    assert ("unstable in this mode" in caplog.text) == unstable


def test_inner_learning_rates_that_differ_are_named_once(crew, caplog):
    def act(number):
        model = oracle.make_model()
        optimizer = oracle.make_optimizer(model, lr=0.05 / (1 + number))
        with DiLoCo(crew.address, model, optimizer, sync_every=EVERY, min_peers=2) as run:
            train(run, model, optimizer, number, 3 * EVERY)
            return run.communicator.peer_id[:8]

    first, second = crew.together(2, act)
    said = [each.getMessage() for each in caplog.records if "inner learning rates differ" in each.getMessage()]
    assert len(said) == 2  # by each of the two, in one of three rounds
    for line in said:
        assert "0.05 at " in line
        assert "0.025 at " in line
        assert first in line
        assert second in line


def test_a_run_that_begins_and_lets_another_peer_in_warns_of_nothing(crew, caplog):
    """The first peer finds none to fetch from: that is how each run begins."""
    caplog.set_level(logging.INFO, "pccl")
    trained, joined = threading.Event(), threading.Event()

    def act(number):
        model = oracle.make_model()
        optimizer = oracle.make_optimizer(model, oracle.STEADY)
        if number:
            assert trained.wait(HANG_S)
        with DiLoCo(crew.address, model, optimizer, sync_every=EVERY) as run:
            if number:
                joined.set()
                return
            while not joined.is_set():
                oracle.inner_step(model, optimizer, 0, run.step)
                if run.round == 2:
                    trained.set()

    crew.together(2, act)
    assert "no shared state to fetch" in caplog.text
    # On a busy machine it takes the newcomer long to come, of which a line may tell.
    said = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each for each in said if "wait" not in each] == []


@pytest.mark.parametrize(
    ("shared", "restarts", "switched_off", "warned"),
    [("True", "3", "0", True), ("True", "3", "1", False), ("False", "3", "0", False), ("True", "0", "0", False)],
)
def test_a_torchrun_whose_ranks_would_not_come_back(monkeypatch, shared, restarts, switched_off, warned):
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", shared)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", restarts)
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", switched_off)
    assert ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in stale_store()) == warned
