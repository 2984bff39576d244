"""`ElasticDeviceMesh`: what all ranks of a node are told alike, whenever each of them looks."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from pccl import UsageError
from pccl.training import DiLoCo
from pccl.training.mesh import ElasticDeviceMesh
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_processes import master, processes
from tests.training.test_sharded import equal_rounds, nodes

__all__ = ["master", "nodes", "processes"]

EVERY = 3


def test_without_arguments_it_takes_what_the_machine_has(monkeypatch):
    """A build of torch without CUDA has no nccl. The arguments are PRIME's."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    mesh = ElasticDeviceMesh(None, False, 1)
    try:
        assert mesh.mesh.device_type == ("cuda" if torch.cuda.is_available() else "cpu")
        assert (mesh.local_pg.size(), mesh.cpu_local_mesh.shape) == (1, (1,))
        assert not mesh.maybe_reinit_global_pg(admit_joiners=True)
    finally:
        dist.destroy_process_group()


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield ElasticDeviceMesh("gloo")
    dist.destroy_process_group()


def test_nodes_are_those_of_the_last_round_and_not_of_this_moment(crew, mesh):
    """Two nodes of a rank each. One goes in the middle of a round: ranks that look before that and after it would be
    told another thing each, until a round without it is over."""
    models = [fully_shard(oracle.make_model(), mesh=mesh.mesh) for _ in range(2)]
    optimizers = [oracle.make_optimizer(model) for model in models]
    runs = [DiLoCo(crew.address, *each, sync_every=EVERY) for each in zip(models, optimizers, strict=True)]
    here, joined, goes = threading.Event(), threading.Event(), threading.Event()

    def step(number):
        oracle.inner_step(models[number], optimizers[number], number, runs[number].step)

    def stay():
        with pytest.raises(UsageError, match="follow"):
            mesh.maybe_reinit_global_pg()
        with runs[0] as run:
            mesh.follow(run)
            here.set()
            while not joined.is_set():
                step(0)
            assert mesh.maybe_reinit_global_pg()
            (newcomer,) = mesh.joined
            assert (mesh.left, mesh.global_pg.size()) == ((), 2)
            assert not mesh.maybe_reinit_global_pg()
            goes.set()
            while run.communicator.world_size > 1:
                threading.Event().wait(0.01)
            assert not mesh.maybe_reinit_global_pg()
            assert (mesh.get_global_pg().size(), mesh.world_info.global_rank) == (2, mesh.global_pg.rank())
            assert mesh.world_info[:5] == (0, 1, 0, 1, 1)
            round = run.round
            while run.round == round:
                step(0)
            assert mesh.maybe_reinit_global_pg()
            assert (mesh.joined, mesh.left, mesh.global_pg.size()) == ((), (newcomer,), 1)
            assert mesh.get_global_pg(maybe_reinit=True).size() == 1
            assert mesh.left == ()
            assert mesh.world_info.global_unique_id == run.communicator.party

    def go():
        assert here.wait(HANG_S)
        with runs[1]:
            joined.set()
            assert goes.wait(HANG_S)

    crew.together(2, lambda number: (go if number else stay)())


def test_copies_over_shards_are_one_node(nodes):
    """Two copies over two ranks each: all four are the node's, and train."""
    facts = {"rounds": 2, "whole": True, "elastic": True, "options": {"sync_every": 2, "min_peers": 1}}
    node = nodes.start(ranks=4, copies=2, **facts)
    for rank in node:
        said = rank.expect("mesh")
        assert (said["shape"], said["names"], said["local"]) == ([2, 2], ["copy", "intranode"], 4)
        rank.expect("done")
    assert len(equal_rounds(node)) == 2
