"""A char-GPT with DiLoCo: peers may come and go at any time. In one terminal `pccl master --listen localhost`,
in as many others as you like:

python examples/diloco_char_gpt.py 127.0.0.1:48148

Two lines make it distributed: the `with`, and where it ends. --mode shows the others of the family.
"""

import argparse
import logging

import torch
from char_gpt import CharGPT, batch, text, validation_loss

from pccl.training import DiLoCo

MODES = {
    "plain": {"quantize": "int8"},
    "auto": {"quantize": "int8", "overlap": "auto"},
    "delayed": {"quantize": "int8", "overlap": "round"},
    "streaming": {"quantize": "int4", "fragments": 4, "overlap": 5},
}

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("address", nargs="?", default="127.0.0.1:48148")
parser.add_argument("--rounds", type=int, default=100)
parser.add_argument("--every", type=int, default=20, help="steps of a round")
parser.add_argument("--mode", choices=MODES, default="plain")
parser.add_argument("--min-peers", type=int, default=1)
arguments = parser.parse_args()

logging.basicConfig(level=logging.INFO, format="%(message)s")
logging.getLogger("pccl").setLevel(logging.WARNING)
logging.getLogger("pccl.training").setLevel(logging.INFO)
torch.set_num_threads(1)
model, (train, valid) = CharGPT(), text()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
settings = {"sync_every": arguments.every, "min_peers": arguments.min_peers, **MODES[arguments.mode]}

with DiLoCo(arguments.address, model, optimizer, **settings) as run:
    chance = torch.Generator().manual_seed(int(run.communicator.peer_id[:8], 16))  # each peer reads other text
    while run.round < arguments.rounds:
        loss = model.loss(*batch(train, 8, chance))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.note_loss(loss.item())
        optimizer.step()
        optimizer.zero_grad()

print(f"validation loss {validation_loss(model, valid):.3f} after {run.step} steps, digest {run.outer_digest()[:8]}")
