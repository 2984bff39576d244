"""A model and optimizers that were moved or replaced after the run was made: what they hold now takes part."""

import threading

import pytest
import torch
from torch import nn

from pccl import UsageError
from pccl.training import DataParallel, DiLoCo
from tests.patience import HANG_S

EVERY = 2


class Model(nn.Module):
    """With something of each kind."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(3, 1)
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("mean", torch.zeros(2))


def step(model, optimizer):
    optimizer.zero_grad()
    model.layer(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def move(model, value):
    """As `.to(device)` does, and with values of this peer's own."""
    for each in model.parameters():
        each.data = each.data.clone()
    model.frozen.data.fill_(value)
    model.mean = torch.full((2,), float(value))


def kinds(crew, kind, model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if kind is DiLoCo:
        options["sync_every"] = EVERY
    return kind(crew.address, model, optimizer, **options), optimizer


@pytest.mark.parametrize("kind", [DiLoCo, DataParallel])
def test_what_was_moved_is_what_peers_hold_alike(crew, kind):
    def act(number):
        model = Model()
        run, optimizer = kinds(crew, kind, model, min_peers=2)
        move(model, 1 + number)
        found = []
        with run:
            found.append(model.frozen.tolist())
            for _ in range(EVERY):
                step(model, optimizer)
            found.append(model.mean.tolist())
            move(model, 5 + number)
            run._guarded(run._sync)
            found.append(model.frozen.tolist())
        saved = run.state_dict()
        assert saved["buffers"]["mean"].tolist() == model.mean.tolist()
        assert saved["frozen"]["frozen"].tolist() == found[-1]
        return found

    first, second = crew.together(2, act)
    assert first == second
    assert set(first[0]) < {1.0, 2.0}
    assert set(first[2]) < {5.0, 6.0}


def test_a_newcomer_gets_what_an_optimizer_holds_now(crew):
    moved, joined = threading.Event(), threading.Event()

    def act(number):
        model = Model()
        if number:
            assert moved.wait(HANG_S)
        run, optimizer = kinds(crew, DiLoCo, model)
        with run:
            state = optimizer.state[model.layer.weight]
            if number:
                joined.set()
                return bool(state["momentum_buffer"].any())
            step(model, optimizer)
            before = state["momentum_buffer"]
            state["momentum_buffer"] = before.clone()  # as load_state_dict does
            before.zero_()
            moved.set()
            while not joined.is_set():
                step(model, optimizer)
        return bool(before.any())

    assert crew.together(2, act) == [False, True]


def test_a_parameter_that_is_another_one_now_is_refused(crew):
    model = Model()
    run, _ = kinds(crew, DiLoCo, model)
    model.layer.weight = nn.Parameter(model.layer.weight.detach().clone())
    with pytest.raises(UsageError, match=r"'layer\.weight' must stay the one that the run was made with"), run:
        pass
