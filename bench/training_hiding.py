"""How much of the communication hides behind steps, over an emulated wide-area network. Needs root.

    python bench/training_hiding.py [--modes plain "auto int8" ...] [--rounds 8]

Four hosts, 80 ms, 100 Mbit/s; a model of 2 M parameters; steps that take 50 ms without computing, so that peers do not
compete for two cores. One JSON line for each mode, and a table at the end: steps per second as a share of those without
a network, and the library's own figure.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

STEP_S, EVERY, WIDTH = 0.05, 40, 1414
MEASURING = 2
"""Rounds before the measurement: with overlap="auto" the rows of the second say how long the reduction of the first
took, so the third is the first one that is hidden."""
MODES = {
    "plain": {},
    "plain int8": {"quantize": "int8"},
    "auto int8": {"overlap": "auto", "quantize": "int8"},
    "round int8": {"overlap": "round", "quantize": "int8"},
    # Of a quarter in 0.64 s: 13 steps.
    "streaming int4": {"fragments": 4, "overlap": 14, "quantize": "int4"},
}


def step(optimizer):
    time.sleep(STEP_S)
    optimizer.step()


def peer(told):
    import torch

    from pccl.training import DiLoCo

    torch.set_num_threads(1)
    # Numbered, so that there are blocks of layers to spread over fragments.
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(WIDTH * WIDTH // 4)) for _ in range(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for parameter in model:
        parameter.grad = torch.randn_like(parameter)
    began = time.perf_counter()
    for _ in range(20):
        step(optimizer)
    alone = 20 / (time.perf_counter() - began)
    with DiLoCo(told["address"], model, optimizer, sync_every=EVERY, min_peers=told["peers"], **told["options"]) as run:
        for _ in range(MEASURING * EVERY):
            step(optimizer)
        run._meter.reset()
        began = time.perf_counter()
        for _ in range(told["rounds"] * EVERY):
            step(optimizer)
        share = told["rounds"] * EVERY / (time.perf_counter() - began) / alone
        metrics = run.metrics()
    told = {"share": share, "own": metrics["utilisation"], "reduced_s": metrics["reduced_s"]}
    print(json.dumps({**told, "mb": metrics["tx_bytes"] / 1e6}), flush=True)


def main():
    from bench.wanlab import Wan, WanLab

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--peer", type=json.loads)
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments.peer)
        return
    found = {}
    for mode in arguments.modes:
        with WanLab(Wan(arguments.hosts, 80.0, 100.0)) as lab:
            place = f"{lab.address(0)}:48148"
            master = subprocess.Popen(
                [*lab.inside(0), sys.executable, "-m", "pccl.cli", "master", "--listen", place, "--insecure"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            told = {"address": place, "peers": arguments.hosts, "options": MODES[mode], "rounds": arguments.rounds}
            peers = [
                subprocess.Popen(
                    [*lab.inside(host), sys.executable, __file__, "--peer", json.dumps(told)],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                for host in range(arguments.hosts)
            ]
            answers = [json.loads(each.communicate()[0].splitlines()[-1]) for each in peers]
            master.terminate()
            master.wait()
        mean = {key: sum(each[key] for each in answers) / len(answers) for key in answers[0]}
        found[mode] = mean
        facts = {key: round(value, 4) for key, value in mean.items()}
        print(json.dumps({"bench": "hiding", "mode": mode, **facts}), flush=True)
    print("| | steps per second, of those without a network | the library's own figure | s a reduction | MB a peer |")
    print("| --- | --- | --- | --- | --- |")
    for mode, each in found.items():
        row = [f"{each['share']:.1%}", f"{each['own']:.1%}", f"{each['reduced_s']:.2f}", f"{each['mb']:.1f}"]
        print("| " + " | ".join([mode, *row]) + " |")


if __name__ == "__main__":
    main()
