"""What a newcomer's prefetch brings while others train, and what is left for the sync that lets it in."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pccl import Communicator, SyncFailed
from pccl.training import DataParallel, DiLoCo, group
from pccl.training.fsdp import group as fsdp
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_processes import UNTIL_STOPPED, master, processes
from tests.training.test_sharded import equal_rounds, nodes, stopped

__all__ = ["master", "nodes", "processes"]

EVERY, WIDTH = 4, 256
LAYER = WIDTH * WIDTH * 4
"""Bytes of a layer."""


class Half(nn.Module):
    """One layer that is frozen, and one that is trained."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.trained = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.trained(self.frozen(x))


@pytest.fixture
def half():
    """Makes models that lie whole in this process, or that its node of a single rank has in shards."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    yield lambda seed, sharded: fully_shard(Half(seed), mesh=mesh) if sharded else Half(seed)
    dist.destroy_process_group()


def go_on(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, WIDTH)).square().mean().backward()
    optimizer.step()


@pytest.fixture
def moved(monkeypatch):
    """Bytes that each prefetch and each sync has brought; and what is called before a peer becomes a candidate."""
    found = {"prefetch": [], "sync": [], "candidate": lambda: None}

    class Counted(Communicator):
        def prefetch_shared_state(self, *arguments):
            info = super().prefetch_shared_state(*arguments)
            found["prefetch"].append(info.rx_bytes)
            return info

        def connect(self, *arguments):
            found["candidate"]()
            super().connect(*arguments)

        def sync_shared_state(self, *arguments):
            info = super().sync_shared_state(*arguments)
            found["sync"].append(info.rx_bytes)
            return info

    for each in (group, fsdp):
        monkeypatch.setattr(each, "Communicator", Counted)
    return found


@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize(("join", "rounds"), [("holder", 0), ("holder", 2), ("fresh", 2)])
def test_what_no_round_changes_is_prefetched_and_the_rest_moves_with_the_sync(crew, moved, half, join, rounds, sharded):
    """In the middle of a round, with rounds or without since the group last synced."""
    in_the_middle, prefetched, joined = threading.Event(), threading.Event(), threading.Event()
    models, digests = [half(1, sharded), half(2, sharded)], {}
    optimizers = [torch.optim.AdamW(model.parameters()) for model in models]
    both = zip(models, optimizers, strict=True)
    runs = [DiLoCo(crew.address, *each, sync_every=EVERY, join=join) for each in both]

    def member():
        model, optimizer = models[0], optimizers[0]
        with runs[0] as run:
            for _ in range(rounds * EVERY + 1):
                go_on(model, optimizer)
            in_the_middle.set()
            assert prefetched.wait(HANG_S)
            while not joined.is_set():
                go_on(model, optimizer)
                digests.setdefault(run.round, run.outer_digest())

    def newcomer():
        assert in_the_middle.wait(HANG_S)
        moved.update(prefetch=[], sync=[], candidate=prefetched.set)
        with runs[1] as run:
            joined.set()
            return run.round, run.outer_digest()

    _, (number, digest) = crew.together(2, lambda number: (newcomer if number else member)())
    assert digests[number] == digest
    (early,), outer, optimizer = moved["prefetch"], 2 * LAYER, 2 * LAYER if join == "holder" else 0
    late = sum(moved["sync"])
    assert early >= LAYER
    assert outer + optimizer <= late < outer + optimizer + LAYER, (early, late)


def test_each_rank_of_a_node_prefetches_its_own_shards(nodes):
    """What is frozen has 13 rows of 13 and 13 numbers: 7 rows lie on the first rank, 6 on the second."""
    facts = {"rounds": UNTIL_STOPPED, "whole": True, "model": "odd", "step_s": 0.02, "lr": oracle.STEADY}
    facts["options"] = {"sync_every": 4, "min_peers": 1}
    here = nodes.start(**facts, seed=1)
    here[0].expect("round")
    newcomer = nodes.start(**facts, seed=2, fates={rank: {"counting": []} for rank in range(2)})
    for rank, rows in zip(newcomer, (7, 6), strict=True):
        assert rank.expect("prefetched")["bytes"] >= rows * 14 * 4
        rank.expect("round")
    stopped(newcomer)
    stopped(here)
    equal_rounds(here, newcomer)


@pytest.mark.parametrize("kind", [DiLoCo, DataParallel])
def test_a_newcomer_whose_only_holder_left_after_its_prefetch_goes_on_with_what_it_brought(crew, moved, kind):
    ready, gone = threading.Event(), threading.Event()
    prefetched = threading.Event()
    models = [Half(1), Half(2)]
    settings = {"sync_every": EVERY} if kind is DiLoCo else {}

    def enter(model):
        optimizer = torch.optim.AdamW(model.parameters())
        return optimizer, kind(crew.address, model, optimizer, **settings)

    def member():
        optimizer, run = enter(models[0])
        with run:
            for _ in range(EVERY):
                go_on(models[0], optimizer)
            ready.set()
            assert prefetched.wait(HANG_S)
        gone.set()

    def left():
        prefetched.set()
        assert gone.wait(HANG_S)

    def newcomer():
        optimizer, run = enter(models[1])
        assert ready.wait(HANG_S)
        moved.update(prefetch=[], candidate=left)
        before = [each.clone() for each in models[1].state_dict().values()]
        with run:
            assert moved["prefetch"][0] >= LAYER
            assert run.round == 0
            assert all(map(torch.equal, before, models[1].state_dict().values()))
            for _ in range(2 * EVERY):
                go_on(models[1], optimizer)
            assert run.step == 2 * EVERY

    crew.together(2, lambda number: (newcomer if number else member)())


def test_a_sync_that_failed_is_made_again(crew, monkeypatch):
    failures = [SyncFailed("the only holder was lost")] * group.RETURNS_MAX

    class Failing(Communicator):
        def sync_shared_state(self, *arguments):
            if failures:
                raise failures.pop()
            return super().sync_shared_state(*arguments)

    monkeypatch.setattr(group, "Communicator", Failing)

    def train(_):
        model = Half(1)
        optimizer = torch.optim.AdamW(model.parameters())
        with DiLoCo(crew.address, model, optimizer, sync_every=EVERY) as run:
            for _ in range(EVERY):
                go_on(model, optimizer)
            return run.round

    assert crew.together(1, train) == [1]
    failures.extend([SyncFailed("the only holder was lost")] * (group.RETURNS_MAX + 1))
    with pytest.raises(SyncFailed, match="only holder"):
        crew.together(1, train)
