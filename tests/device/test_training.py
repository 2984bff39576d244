"""Training with models on a device and on the host in one run: one outer state, which is what the models get."""

import pytest
import torch

from pccl import MasterNode
from pccl.training import DataParallel, DiLoCo
from tests.device.conftest import succeed
from tests.e2e.test_api import address
from tests.training import oracle

EVERY, ROUNDS = 3, 2


@pytest.fixture
def master():
    """One for each run."""
    with MasterNode("127.0.0.1:0") as running:
        yield running


def go_on(model, optimizer, number, step, where):
    x, y = (each.to(where) for each in oracle.data(number, step))
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("options", [{}, {"quantize": "int8"}, {"overlap": 1}, {"fragments": 3, "overlap": 1}], ids=str)
def test_peers_of_both_kinds_make_the_same_rounds(master, device, backward, options):
    models = [oracle.make_model() for _ in range(2)]

    def act(number, where):
        model = models[number].to(where)
        optimizer = oracle.make_optimizer(model)
        with DiLoCo(address(master), model, optimizer, sync_every=EVERY, min_peers=2, **options) as run:
            for step in range(ROUNDS * EVERY):
                go_on(model, optimizer, number, step, where)
        assert run.round == ROUNDS
        assert all(each.device.type == torch.device(where).type for each in model.parameters())
        return run.outer_digest(), run.outer_parameters(), model

    told = succeed([lambda: act(0, "cpu"), lambda: act(1, device.first)])
    assert told[0][0] == told[1][0]
    if "fragments" not in options:  # Where the model keeps nothing of itself it is the outer state.
        for _, outer, model in told:
            assert all(torch.equal(each.detach().cpu(), outer[name]) for name, each in model.named_parameters())


def test_gradients_of_both_kinds_are_added_up(master, device, backward):
    expected = oracle.train_parallel(2, EVERY)

    models = [oracle.make_model() for _ in range(2)]

    def act(number, where):
        model = models[number].to(where)
        optimizer = oracle.make_optimizer(model)
        with DataParallel(address(master), model, optimizer, min_peers=2):
            for step in range(EVERY):
                go_on(model, optimizer, number, step, where)
        return model

    for model in succeed([lambda: act(0, "cpu"), lambda: act(1, device.first)]):
        for name, each in model.named_parameters():
            assert (each.detach().cpu().double() - expected[name]).abs().max() < 1e-5
