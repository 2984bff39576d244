"""What training costs beside the network: a step between boundaries, and an outer step beside one pass over its memory.

    python bench/training_cost.py [--millions 20]

One JSON line. The pass reads θ, v and Δ and writes θ, v and the model, once, in the same chunks. `ratio` is that of the
outer step and the copy to the model; `measure_s`, in which the delta is taken from the model before, is not in it. Then
a line for each mode: how many bytes of memory for each parameter two rounds of two peers in a process of their own
have added, at the most, to one with model and optimizer.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

import torch  # noqa: E402

from pccl import MasterNode  # noqa: E402
from pccl.training import DiLoCo  # noqa: E402
from pccl.training.outer import CHUNK, Fragment  # noqa: E402


def timed(action, times=7):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def one_pass(theta, momentum, delta, model):
    """The least that must move."""
    for t, v, d, m in zip(*(torch.split(each, CHUNK) for each in (theta, momentum, delta, model)), strict=True):
        v.add_(d)
        t.sub_(v)
        m.copy_(t)


def step_us(turns=21, steps=500):
    """What a run adds to the optimizer's step, its hook included, where nothing is due: two optimizers that are alike
    take turns, one of them in a run."""

    def made():
        model = torch.nn.Linear(2, 2)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        return model, torch.optim.SGD(model.parameters(), lr=1e-6)

    def took(optimizer):
        began = time.perf_counter()
        for _ in range(steps):
            optimizer.step()
        return (time.perf_counter() - began) / steps * 1e6

    (_, alone), (model, inside) = made(), made()
    with MasterNode("127.0.0.1:0") as master, DiLoCo(f"127.0.0.1:{master.port}", model, inside, sync_every=10**6):
        return statistics.median(took(inside) - took(alone) for _ in range(turns))


MODES = {
    "plain": {},
    "int4": {"quantize": "int4"},
    "streaming": {"fragments": 4, "overlap": 1},
    "delayed": {"overlap": "round"},
    "eager": {"overlap": "round", "eager": True},
}


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def remember(millions, options):
    """What two peers of this process need beside their models and optimizers, for each parameter of one."""
    count, peers = millions * 10**6, 2
    models = [
        torch.nn.ParameterList(torch.nn.Parameter(torch.ones(count // 4)) for _ in range(4)) for _ in range(peers)
    ]
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in models]
    for parameter in (each for model in models for each in model):
        parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    before = peak_bytes()

    def train(model, optimizer, address):
        with DiLoCo(address, model, optimizer, sync_every=4, min_peers=peers, **options):
            for _ in range(8):
                optimizer.step()

    with MasterNode("127.0.0.1:0") as master:
        told = [(*each, f"127.0.0.1:{master.port}") for each in zip(models, optimizers, strict=True)]
        threads = [threading.Thread(target=train, args=each) for each in told]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return (peak_bytes() - before) / peers / count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, default=20)
    parser.add_argument("--memory", choices=MODES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        found = round(remember(arguments.millions, MODES[arguments.memory]), 1)
        print(json.dumps({"bench": "training memory", "mode": arguments.memory, "bytes per parameter": found}))
        return
    parameter = torch.nn.Parameter(torch.randn(arguments.millions * 10**6))
    fragment = Fragment([("weight", parameter)], 1, False)
    delta = fragment.deltas[0]
    delta.normal_()
    least = timed(lambda: one_pass(fragment.theta, fragment.momentum, delta, parameter.detach()))
    outer = timed(lambda: (fragment.step(delta, 3.0, 0.7, 0.9), fragment.write()))
    measure = timed(lambda: fragment.measure(delta))
    facts = {"pass_s": least, "outer_s": outer, "ratio": outer / least, "measure_s": measure, "step_us": step_us()}
    rounded = {key: round(value, 4) for key, value in facts.items()}
    print(json.dumps({"bench": "training cost", "millions": arguments.millions, **rounded}), flush=True)
    for mode in MODES:
        command = [sys.executable, __file__, "--millions", str(arguments.millions), "--memory", mode]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
