"""A model that is sharded over the ranks of a node (FSDP2), and DiLoCo between nodes. In one terminal
`pccl master --listen localhost`, in as many others as you like, each of which stands for a node of two devices:

torchrun --nproc-per-node 2 examples/fsdp_hybrid.py 127.0.0.1:48148

Two lines make it so, as in the other examples. Each rank reduces its shards with the same rank of the other nodes.
"""

import argparse
import logging

import torch
import torch.distributed as dist
from char_gpt import CharGPT, batch, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pccl.training import DiLoCo

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("address", nargs="?", default="127.0.0.1:48148")
parser.add_argument("--rounds", type=int, default=20)
parser.add_argument("--every", type=int, default=20, help="steps of a round")
parser.add_argument("--min-peers", type=int, default=1, help="nodes with which rounds begin")
arguments = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
rank, device = dist.get_rank(), "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(rank)
logging.basicConfig(level=logging.INFO if rank == 0 else logging.WARNING, format="%(message)s")

mesh = init_device_mesh(device, (dist.get_world_size(),))
model, (train, _) = CharGPT().to(device), text()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with DiLoCo(arguments.address, model, optimizer, sync_every=arguments.every, min_peers=arguments.min_peers) as run:
    chance = torch.Generator().manual_seed(int(run.communicator.peer_id[:8], 16))  # each rank reads other text
    while run.round < arguments.rounds:
        x, y = (each.to(device) for each in batch(train, 8, chance))
        loss = model.loss(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.note_loss(loss.item())
        optimizer.step()
        optimizer.zero_grad()

print(f"rank {rank}: {run.round} rounds, digest of its shards {run.outer_digest()[:8]}")
dist.destroy_process_group()
