"""A node of a single rank, which is the process of the test: what its machine is called, and how long it waits."""

import socket
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pccl.training import DiLoCo
from pccl.training.fsdp import node
from pccl.training.fsdp.node import NodeLost
from tests.training import oracle


@pytest.fixture
def run(crew):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = fully_shard(oracle.make_model(), mesh=init_device_mesh("cpu", (1,)))
    yield DiLoCo(crew.address, model, oracle.make_optimizer(model))
    dist.destroy_process_group()


def test_a_machine_may_have_a_long_name(run, monkeypatch):
    """Pods and machines of clouds do: up to 64 characters."""
    monkeypatch.setattr(socket, "gethostname", lambda: "ip-10-0-113-207.eu-central-1.compute.internal.example.org")
    with run:
        assert run.communicator.party == run._group.node.party
        assert run.communicator.party.startswith("ip-10-0-113-207.eu-central-1")


def test_ranks_wait_for_each_other_as_long_as_they_need_once_the_run_is_left(run, monkeypatch):
    """An export after it, say; while one whose time is over in the run waits no longer than some seconds."""
    monkeypatch.setattr(node, "GRACE_S", 0.0)

    def exchange():
        looks = iter(range(100))
        run._group.node._finish(SimpleNamespace(is_completed=lambda: next(looks, None) is None, wait=lambda: None))

    with run:
        exchange()
        run._group.leave()  # As after the notice that SIGTERM gives.
        with pytest.raises(NodeLost, match="was put out"):
            exchange()
    exchange()
