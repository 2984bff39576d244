"""Training with models on a device and on the host in one run: one outer state, which is what the models get."""

import pytest
import torch

from pccl import MasterNode
from pccl.training import DataParallel, DiLoCo, gradients, outer
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


def test_many_parameters_cross_in_one_copy(ours):
    """Each way, for every fragment and bucket: a copy waits for the device. Not more at a time than fits."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(50, 50) for _ in range(10))).to(ours.first)
    named = list(layers.named_parameters())
    fragment, bucket = outer.Fragment(named, 1, eager=False), gradients.Bucket(named)
    for each in layers.parameters():
        each.grad = torch.ones_like(each)
    bucket.used = [True] * len(named)
    bucket.step(bucket.deltas[0].fill_(4.0), 2.0, 0.0, 0.0)
    for call in (
        lambda: fragment.measure(fragment.deltas[0]),
        fragment.write,
        lambda: fragment.write(0.5),
        bucket.deliver,
        lambda: bucket.measure(bucket.deltas[0]),
    ):
        before = ours.counts()
        call()
        after = ours.counts()
        assert after["copies_out"] - before["copies_out"] <= 1
        assert after["copies_in"] - before["copies_in"] <= 1
        assert after["waits"] - before["waits"] <= 2
    assert (bucket.deltas[0] == 2.0).all()


def test_what_crosses_at_once_is_bounded(ours, monkeypatch):
    monkeypatch.setattr(outer, "CROSSING", 5_000)
    layers = torch.nn.Sequential(*(torch.nn.Linear(50, 50) for _ in range(10))).to(ours.first)
    fragment = outer.Fragment(list(layers.named_parameters()), 1, eager=False)
    sizes = [place.stop - place.start for place, _ in fragment.crossings()]
    assert sum(sizes) == fragment.count
    assert max(sizes) <= 5_000
    assert len(sizes) > 4
    expected = torch.cat([each.detach().cpu().reshape(-1) for each in layers.parameters()])
    assert torch.equal(fragment.theta, expected)
