"""Peers add up a tensor, however many there are. In one terminal `pccl master --listen localhost`, in
two or more others:

python examples/hello_all_reduce.py 127.0.0.1:48148
"""

import sys

import numpy as np

from pccl import Communicator, TooFewPeers

STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 1000

with Communicator(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:48148") as comm:
    pending = False  # A newcomer was just let in: the others go on with an all_reduce.
    for step in range(STEPS):
        if pending:
            comm.update_topology()  # lets in those that wait
        mine = np.full(4, 1.0, np.float32)
        try:
            info = comm.all_reduce(mine, retry=True)  # without those that die meanwhile
            print(f"step {step}: {info.world_size} peers, sum {mine}", flush=True)
            pending = info.pending  # the same on all peers, so all decide alike
        except TooFewPeers:
            print(f"step {step}: alone", flush=True)
            pending = comm.are_peers_pending()
