"""Peers as workers of Ray Train, the master as an actor: python examples/deploy/ray_train.py [workers] [rounds]

Kill a worker (`kill -9`): Ray starts another one, which joins at the end of a round; the others are not touched. Kill
the process of the master's actor: the run goes on when Ray has started it again.
"""

import os
import sys
import tempfile

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from pccl.integrations.ray import PCCLConfig


def train(settings):
    """In each worker. What it learns is yours."""
    import torch

    from pccl.training import DiLoCo

    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with DiLoCo(os.environ["PCCL_MASTER"], model, optimizer, sync_every=20, min_peers=settings["workers"]) as run:
        while run.round < settings["rounds"]:
            x = torch.randn(32, 16)
            ((model(x) - x.sum(1, keepdim=True)) ** 2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"rank {ray.train.get_context().get_world_rank()} in process {os.getpid()}: {run.outer_digest()[:8]}")


def fit(workers, rounds, port):
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"workers": workers, "rounds": rounds},
        backend_config=PCCLConfig(port=port),
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=tempfile.mkdtemp(), failure_config=FailureConfig(max_failures=-1)),
    )
    return trainer.fit()


if __name__ == "__main__":
    ray.init()
    fit(*map(int, sys.argv[1:] or (4, 200)), port=48148)
