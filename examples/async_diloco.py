"""Communication that hides behind steps: `overlap="auto"` merges a round's result as few steps later as the reduction
takes. In one terminal `pccl master --listen localhost`, in two or more others:

python examples/async_diloco.py 127.0.0.1:48148
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

with DiLoCo(address, model, optimizer, sync_every=20, quantize="int8", overlap="auto") as run:
    while run.round < ROUNDS:
        model.loss(*batch(train, 8, None)).backward()
        optimizer.step()
        optimizer.zero_grad()

print(f"computing {run.metrics()['utilisation']:.1%} of the time, digest {run.outer_digest()[:8]}")
