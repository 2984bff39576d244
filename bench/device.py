"""What collectives on tensors of a device cost their caller: how long a launch takes with kernels queued before it, how
much longer a wait takes with kernels queued after it, and how often many tensors wait for the device. In JSON lines.

On the device of the tests, or on the one that PCCL_TEST_DEVICE names:  python bench/device.py [--rounds 7]
"""

import argparse
import json
import statistics
import sys
import threading
import time
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))

from pccl import MasterNode
from tests.device import hardware
from tests.e2e.test_api import connect_two

COUNT = 250_000


def tell(what, **figures):
    print(json.dumps({"bench": f"device {what}", **figures}), flush=True)


def median_ms(seconds):
    return round(1000 * statistics.median(seconds), 2)


def timed(function):
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def alternate(what, rounds, queued_ms, once):
    """`once` with nothing queued and with so much, by turns, so that both meet the same machine."""
    took = {0: [], queued_ms: []}
    for _ in range(rounds):
        for queued in took:
            took[queued].append(once(queued))
    for queued, seconds in took.items():
        best, worst = (round(1000 * each, 2) for each in (min(seconds), max(seconds)))
        tell(what, queued_ms=queued, best_ms=best, median_ms=median_ms(seconds), worst_ms=worst)


def launch(device, pair, rounds):
    """With 400 ms of kernels before it, and without."""
    mine, theirs = torch.ones(COUNT, device=device.first), torch.ones(COUNT)

    def once(queued_ms):
        device.settle()
        device.sleep(queued_ms)
        seconds, work = timed(lambda: pair[0].all_reduce(mine, async_op=True))
        pair[1].all_reduce(theirs)
        work.wait()
        return seconds

    alternate("launch", rounds, 400, once)


def wait(device, pair, rounds):
    """With 700 ms of kernels queued after the launch, and without."""
    tensors = [torch.ones(COUNT, device=device.first) for _ in range(2)]

    def once(queued_ms):
        device.settle()
        works = [c.all_reduce(each, async_op=True) for c, each in zip(pair, tensors, strict=True)]
        device.sleep(queued_ms)
        return timed(lambda: [work.wait() for work in works])[0]

    alternate("wait", rounds, 700, once)


def many(device, pair):
    """500 tensors in one call; the other peer's lie on the CPU."""
    mine = [torch.ones(1000, device=device.first) for _ in range(500)]
    theirs = [torch.ones(1000) for _ in range(500)]
    for _ in range(2):
        device.settle()
        before = device.counts() if device.simulated else {}
        other = threading.Thread(target=pair[1].all_reduce_many, args=(theirs,))
        other.start()
        seconds, _ = timed(lambda: pair[0].all_reduce_many(mine))
        other.join()
    after = device.counts() if device.simulated else {}
    peaks = ("pinned_peak", "memory_peak")
    counted = {name: after[name] - (0 if name in peaks else before[name]) for name in after}
    tell("500 tensors", ms=round(1000 * seconds, 2), **counted)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    device = hardware.find()
    with MasterNode("127.0.0.1:0") as master:
        pair = connect_two(master)
        launch(device, pair, rounds)
        wait(device, pair, rounds)
        many(device, pair)
        for each in pair:
            each.close()


if __name__ == "__main__":
    main()
