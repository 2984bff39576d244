"""What optimizers keep that is no tensor, such as a count of steps: a newcomer gets it, and checkpoints have it."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pccl import UsageError
from pccl.training import DataParallel, DiLoCo
from pccl.training.optimizers import Optimizers
from tests.patience import HANG_S
from tests.training import oracle

EVERY = 2


class Counting(torch.optim.Optimizer):
    """As many are that were written for one's own use: with plain numbers in their state."""

    first = 0.0

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for each in (each for group in self.param_groups for each in group["params"] if each.grad is not None):
            state = self.state[each]
            if not state:
                state.update(step=0, scale=self.first, warm=False, momentum=torch.zeros_like(each), unused=None)
            state["step"] += 1
            state["scale"], state["warm"] = state["scale"] + 0.1, True
            state["momentum"].mul_(0.9).add_(each.grad)
            each.add_(state["momentum"], alpha=-0.01)


class Listing(Counting):
    """With what is neither tensor nor number."""

    def step(self, closure=None):
        super().step()
        for state in self.state.values():
            state["list"] = []


@pytest.fixture
def sharded():
    """Whether to shard a model over a single rank, which is this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield lambda model: fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    dist.destroy_process_group()


def numbers(optimizer):
    return [[state[key] for key in ("step", "scale", "warm")] for state in optimizer.state.values()]


@pytest.mark.parametrize("kind", ["DiLoCo", "sharded", "DataParallel"])
def test_a_newcomer_gets_them(crew, sharded, kind):
    models = [oracle.make_model() for _ in range(2)]
    models = [sharded(model) for model in models] if kind == "sharded" else models
    optimizers = [Counting(model.parameters()) for model in models]
    settings = {} if kind == "DataParallel" else {"sync_every": EVERY}
    make = DataParallel if kind == "DataParallel" else DiLoCo
    runs = [make(crew.address, *each, **settings) for each in zip(models, optimizers, strict=True)]
    trained, joined = threading.Event(), threading.Event()

    def step(number):
        oracle.inner_step(models[number], optimizers[number], number, runs[number].step)

    def stay():
        with runs[0]:
            for _ in range(3 * EVERY):
                step(0)
            trained.set()
            while not joined.is_set():
                step(0)

    def come():
        assert trained.wait(HANG_S)
        with runs[1] as run:
            found = numbers(optimizers[1]), run.step
            joined.set()
        return found

    _, (found, steps) = crew.together(2, lambda number: (come if number else stay)())
    assert [each[0] for each in found] == [steps] * len(found)
    assert [each[1] for each in found] == [pytest.approx(0.1 * (steps + 1))] * len(found)  # One made the state.
    assert [each[2] for each in found] == [True] * len(found)
    assert type(found[0][0]) is int


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_a_checkpoint_has_them(crew, sharded, tmp_path, kind):
    for first in (True, False):
        model = oracle.make_model()
        model = sharded(model) if kind == "sharded" else model
        optimizer = Counting(model.parameters())
        run = DiLoCo(crew.address, model, optimizer, sync_every=EVERY, join="fresh")
        run.checkpoint(str(tmp_path))
        assert run.resume(str(tmp_path)) != first
        if first:
            with run:
                for step in range(2 * EVERY):
                    oracle.inner_step(model, optimizer, 0, step)
                    run._saver.finish()
    assert [each[0] for each in numbers(optimizer)] == [2 * EVERY] * len(optimizer.state)


@pytest.mark.parametrize("kind", ["join", "checkpoint"])
def test_what_is_neither_tensor_nor_number_is_refused_before_it_is_lost(crew, sharded, tmp_path, kind):
    model = oracle.make_model()
    model = sharded(model) if kind == "checkpoint" else model
    run = DiLoCo(crew.address, model, Listing(model.parameters()), join="fresh" if kind == "checkpoint" else "holder")
    with pytest.raises(UsageError, match=r"Listing must keep tensors and numbers of 64 bits.*'list' of type list"):
        run.checkpoint(str(tmp_path)) if kind == "checkpoint" else run.__enter__()


def test_numbers_come_back_with_their_kinds():
    model = torch.nn.Linear(1, 1)
    optimizer = Counting(model.parameters())
    told = {"step": -(2**63), "whole": 2**63 - 1, "scale": -0.5, "endless": float("inf"), "warm": True, "cold": False}
    optimizer.state[model.weight] = dict(told)
    held = Optimizers([optimizer], {id(model.weight): "w"})
    ((_, packed),) = held.packed()
    came = packed.clone()
    optimizer.state[model.weight] = dict.fromkeys(told, 0)
    ((_, packed),) = held.packed()
    packed.copy_(came)
    held.unpack()
    assert optimizer.state[model.weight] == told
    assert [type(each) for each in optimizer.state[model.weight].values()] == [type(each) for each in told.values()]
    optimizer.state[model.weight]["step"] = 7
    held.unpack()
    assert optimizer.state[model.weight]["step"] == 7
    optimizer.state[model.weight]["step"] = 2**63
    with pytest.raises(UsageError, match="64 bits"):
        held.values()
