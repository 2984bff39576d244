"""Loss of each mode after the same tokens, and the bytes that it took: the char-GPT of the examples, real peers.

    python bench/training_loss.py [--seeds 3] [--peers 4] [--steps 1800] [--rows "DiLoCo H 20" ...]

Prints one JSON line for each run. DDP and a peer alone are computed in one process: with equal peers DDP is a batch
that is as many times as large.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples"), str(ROOT)]

SIZE, RATE = 8, 3e-3
"""Samples of a peer's batch, and the inner learning rate, the same for all rows."""

ROWS = {
    "alone": None,
    "DDP": None,
    "DiLoCo H 20": {"sync_every": 20},
    "DiLoCo H 20, int4 + feedback": {"sync_every": 20, "quantize": "int4"},
    "DiLoCo H 30, int8": {"sync_every": 30, "quantize": "int8"},
    "DiLoCo H 20, overlap 2": {"sync_every": 20, "overlap": 2},
    "DiLoCo H 100, int8": {"sync_every": 100, "quantize": "int8"},
    "streaming P 4, overlap 5, int4, H 20": {"sync_every": 20, "fragments": 4, "overlap": 5, "quantize": "int4"},
    "delayed H 20": {"sync_every": 20, "overlap": "round"},
    "eager H 20": {"sync_every": 20, "overlap": "round", "eager": True},
}


def prepared(seed):
    import torch
    from char_gpt import CharGPT, text

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = CharGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    return model, optimizer, *text()


def step(model, optimizer, batches):
    import torch

    optimizer.zero_grad()
    for x, y in batches:
        (model.loss(x, y) / len(batches)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def in_one_process(options, peers):
    """All batches of so many peers in each step."""
    import torch
    from char_gpt import batch, validation_loss

    model, optimizer, train, valid = prepared(options.seed)
    generators = [torch.Generator().manual_seed(1000 * options.seed + number) for number in range(peers)]
    for _ in range(options.steps):
        step(model, optimizer, [batch(train, SIZE, generator) for generator in generators])
    return validation_loss(model, valid), sum(each.numel() for each in model.parameters())


def one_peer(told):
    """In a process of its own."""
    import torch
    from char_gpt import batch, validation_loss

    from pccl.training import DiLoCo

    model, optimizer, train, valid = prepared(told["seed"])
    generator = torch.Generator().manual_seed(1000 * told["seed"] + told["number"])
    with DiLoCo(told["address"], model, optimizer, min_peers=told["peers"], **told["options"]) as run:
        for _ in range(told["steps"]):
            step(model, optimizer, [batch(train, SIZE, generator)])
        parameters = sum(each.numel() for each in model.parameters())
    for name, value in run.outer_parameters().items():
        dict(model.named_parameters())[name].data.copy_(value)
    loss = validation_loss(model, valid)
    metrics = run.metrics()
    print(json.dumps({"loss": loss, "tx_bytes": metrics["tx_bytes"], "parameters": parameters}), flush=True)


def with_peers(options, settings):
    from pccl import MasterNode

    with MasterNode("127.0.0.1:0") as master:
        told = {"address": f"127.0.0.1:{master.port}", "peers": options.peers, "options": settings}
        told |= {"seed": options.seed, "steps": options.steps}
        peers = [
            subprocess.Popen(
                [sys.executable, __file__, "--peer", json.dumps({**told, "number": number})],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(options.peers)
        ]
        answers = [json.loads(peer.communicate()[0].splitlines()[-1]) for peer in peers]
    mean = sum(each["tx_bytes"] for each in answers) / len(answers)
    return answers[0]["loss"], answers[0]["parameters"], mean


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--peer", type=json.loads)
    options = parser.parse_args()
    if options.peer:
        one_peer(options.peer)
        return
    for seed in range(options.seeds):
        options.seed = seed
        for name in options.rows:
            settings = ROWS[name]
            if settings is None:
                loss, parameters = in_one_process(options, 1 if name == "alone" else options.peers)
                ring = 2 * (options.peers - 1) / options.peers * 4 * parameters * options.steps
                sent = 0.0 if name == "alone" else ring
            else:
                loss, parameters, sent = with_peers(options, settings)
            print(json.dumps({"row": name, "seed": options.seed, "loss": loss, "mb": sent / 1e6}), flush=True)


if __name__ == "__main__":
    main()
