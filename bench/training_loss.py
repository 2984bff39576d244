"""Loss of each mode after the same tokens, and the bytes that it took: the char-GPT of the examples, real peers.

    python bench/training_loss.py [--seeds 3] [--peers 4] [--steps 1800] [--rows "H 20" ...] [--out FILE] [--report]

One JSON line in FILE for each run that is finished; those that are there are not made again, so it can be stopped and
started at any time. At the end the table of docs/training.md is printed, and the plot is made. DDP and a peer alone are
computed in one process: with equal peers DDP is a batch that is as many times as large (tests/training/test_parallel.py
shows that `DataParallel` ends with the same).
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples"), str(ROOT)]

SIZE, RATE = 8, 3e-3
"""Samples of a peer's batch, and the inner learning rate, the same for all rows."""

POINTS = 12
"""Of each curve."""

ROWS = {
    "alone": None,
    "DDP": None,
    "H 20": {"sync_every": 20},
    "H 20, int4 with feedback": {"sync_every": 20, "quantize": "int4"},
    "H 30, int8": {"sync_every": 30, "quantize": "int8"},
    "H 20, overlap=2": {"sync_every": 20, "overlap": 2},
    "H 100, int8": {"sync_every": 100, "quantize": "int8"},
    "streaming P 4, H 20, overlap=5, int4": {"sync_every": 20, "fragments": 4, "overlap": 5, "quantize": "int4"},
    "delayed H 20": {"sync_every": 20, "overlap": "round"},
    "eager H 20": {"sync_every": 20, "overlap": "round", "eager": True},
}


class Learner:
    """A model, its optimizer, its text, and its losses on the way."""

    def __init__(self, seed, steps):
        import torch
        from char_gpt import CharGPT, text

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.model = CharGPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
        self.train, self.valid = text()
        self.curve, self._every, self._steps = [], max(1, steps // POINTS), 0

    def step(self, generators, watch):
        """One, with a batch from each of these."""
        import torch
        from char_gpt import batch

        self.optimizer.zero_grad()
        for generator in generators:
            (self.model.loss(*batch(self.train, SIZE, generator)) / len(generators)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self._steps += 1
        if watch and self._steps % self._every == 0:
            self.curve.append((self._steps, self.loss()))

    def loss(self):
        from char_gpt import validation_loss

        return validation_loss(self.model, self.valid)


def generators(seed, numbers):
    import torch

    return [torch.Generator().manual_seed(1000 * seed + number) for number in numbers]


def in_one_process(seed, peers, steps):
    """All batches of so many peers in each step."""
    learner, chances = Learner(seed, steps), generators(seed, range(peers))
    for _ in range(steps):
        learner.step(chances, True)
    return {"loss": learner.loss(), "curve": learner.curve}


def one_peer(told):
    """In a process of its own."""
    from pccl.training import DiLoCo

    learner, first = Learner(told["seed"], told["steps"]), told["number"] == 0
    chances = generators(told["seed"], [told["number"]])
    model = learner.model
    with DiLoCo(told["address"], model, learner.optimizer, min_peers=told["peers"], **told["options"]) as run:
        for _ in range(told["steps"]):
            learner.step(chances, first)
    for name, value in run.outer_parameters().items():
        dict(model.named_parameters())[name].data.copy_(value)
    facts = {"loss": learner.loss(), "curve": learner.curve, "mb": run.metrics()["tx_bytes"] / 1e6}
    print(json.dumps({**facts, "digest": run.outer_digest()}), flush=True)


def with_peers(seed, options, settings):
    from pccl import MasterNode

    with MasterNode("127.0.0.1:0") as master:
        told = {"address": f"127.0.0.1:{master.port}", "peers": options.peers, "options": settings}
        told |= {"seed": seed, "steps": options.steps}
        peers = [
            subprocess.Popen(
                [sys.executable, __file__, "--peer", json.dumps({**told, "number": number})],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(options.peers)
        ]
        answers = [json.loads(peer.communicate()[0].splitlines()[-1]) for peer in peers]
    assert len({each["digest"] for each in answers}) == 1, "peers end with other bits"
    return {**answers[0], "mb": statistics.mean(each["mb"] for each in answers)}


def ring_mb(name, options):
    """What a peer sends around the ring for all that its row reduces, codes counted as codes."""
    from char_gpt import CharGPT

    from pccl import Codec, DataType

    count, settings = sum(each.numel() for each in CharGPT().parameters()), ROWS[name] or {"sync_every": 1}
    if name == "alone":
        return 0.0
    codec = settings.get("quantize")
    length = Codec(codec).coded_bytes(count, DataType.FLOAT) if codec else 4 * count
    return 2 * (options.peers - 1) / options.peers * length * (options.steps // settings["sync_every"]) / 1e6


def cells(path, options):
    """What is finished, of the same size."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    alike = [each for each in lines if (each["steps"], each["peers"]) == (options.steps, options.peers)]
    return {(each["row"], each["seed"]): each for each in alike}


def measure(path, options):
    """All that is not finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seeds):
        for name in options.rows:
            if (name, seed) in cells(path, options):
                continue
            if ROWS[name] is None:
                found = in_one_process(seed, 1 if name == "alone" else options.peers, options.steps)
            else:
                found = with_peers(seed, options, ROWS[name])
            line = {"row": name, "seed": seed, "steps": options.steps, "peers": options.peers, **found}
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(json.dumps({key: line[key] for key in ("row", "seed", "loss")}), flush=True)


def table(found, options):
    """In Markdown, means of all seeds with their span."""
    rows = {name: [each for (row, _), each in sorted(found.items()) if row == name] for name in ROWS}
    losses = {name: [each["loss"] for each in cell] for name, cell in rows.items() if cell}
    base = statistics.mean(losses["DDP"]) if "DDP" in losses else None
    lines = ["| | loss (seeds) | against DDP | MB a peer sends | times fewer than DDP | measured MB |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for name, each in losses.items():
        mean, sent = statistics.mean(each), ring_mb(name, options)
        span = f"{mean:.3f} ({min(each):.3f}-{max(each):.3f}, {len(each)})"
        against = "" if base is None or name == "DDP" else f"{100 * (mean / base - 1):+.1f} %"
        fewer = f"{ring_mb('DDP', options) / sent:.0f}" if sent else ""
        moved = [cell["mb"] for cell in rows[name] if "mb" in cell]
        measured = f"{statistics.mean(moved):.1f}" if moved else ""
        lines.append(f"| {name} | {span} | {against} | {sent:,.1f} | {fewer} | {measured} |")
    return "\n".join(lines)


def curves(found):
    """Of each row: validation loss after so many steps, the mean of its seeds."""
    drawn = {}
    for name in ROWS:
        seeds = [dict(map(tuple, each["curve"])) for (row, _), each in found.items() if row == name]
        if seeds:
            steps = sorted(set.intersection(*(set(each) for each in seeds)))
            drawn[name] = [(step, statistics.mean(each[step] for each in seeds)) for step in steps]
    return drawn


def main():
    from bench.training_plot import draw

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=ROWS)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "training_loss.jsonl")
    parser.add_argument("--plot", type=Path, default=ROOT / "build" / "training_loss.svg")
    parser.add_argument("--report", action="store_true", help="of what is finished, without measuring")
    parser.add_argument("--peer", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        one_peer(options.peer)
        return
    if not options.report:
        measure(options.out, options)
    found = cells(options.out, options)
    print(table(found, options))
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    options.plot.write_text(draw(curves(found), "steps", "validation loss"))
    print(f"the plot is in {options.plot}")


if __name__ == "__main__":
    main()
