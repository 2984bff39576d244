"""Streaming DiLoCo: a quarter of the layers is reduced at a time, in 4 bits, spread over the round: no link ever
carries all of the model at once. In one terminal `pccl master --listen localhost`, in two or more others:

python examples/streaming_diloco.py 127.0.0.1:48148
"""

import sys

import torch
from char_gpt import CharGPT, batch, text

from pccl.training import DiLoCo

ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 100

torch.set_num_threads(1)
model, (train, _) = CharGPT(), text()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:48148"

with DiLoCo(address, model, optimizer, sync_every=20, fragments=4, overlap=5, quantize="int4") as run:
    while run.round < ROUNDS:
        model.loss(*batch(train, 8, None)).backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"{run.metrics()['tx_bytes'] / 1e6:.1f} MB sent in {run.round} rounds, digest {run.outer_digest()[:8]}")
