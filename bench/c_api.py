"""What the C API costs: all-reduce by two peers in C beside two in Python, in turns, and the first call.

    python bench/c_api.py [--sizes 4K 64M] [--rounds 5]

Two runs on this machine, each with a master of its own: one of peers in C (`bench/c_api.c`, compiled with cc), one of
peers that make the same calls by the Python API on the same memory. At each size they take turns, so that whatever else
the machine does hits both alike. Prints a JSON line per size: medians of all repetitions of both, in microseconds, and
their ratio, which should be at most 1.2 for 4 KB and 1.05 for 64 MB.
"""

import argparse
import ctypes
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pccl import Attribute, Communicator

HERE = Path(__file__).parent
UNITS = {"K": 1 << 10, "M": 1 << 20}
TURN_BYTES = 256 << 20
REPETITIONS_MAX = 200


class Peer:
    """A process that reduces when it is told to."""

    def __init__(self, *command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def first_call_s(self):
        """It is ready; how long its first call took."""
        return float(self._process.stdout.readline())

    def order(self, count, repetitions):
        self._process.stdin.write(f"{count} {repetitions}\n")
        self._process.stdin.flush()

    def seconds(self):
        return [float(each) for each in self._process.stdout.readline().split()]

    def end(self):
        self._process.stdin.close()
        self._process.wait()


class Master:
    """`pccl master` on a free port."""

    def __init__(self):
        command = [sys.executable, "-m", "pccl", "master", "--listen", "127.0.0.1:0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+) and waits", self._process.stdout.readline())[1])

    def end(self):
        self._process.terminate()
        self._process.wait()


def peer(port):
    """The same as c_api.c."""
    comm = Communicator(f"127.0.0.1:{port}")
    comm.connect()
    while comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < 2:
        comm.update_topology()
    print(0.0, flush=True)
    for line in sys.stdin:
        count, repetitions = map(int, line.split())
        tensor, seconds = (ctypes.c_float * count)(), []
        for _ in range(repetitions):
            start = time.perf_counter()
            comm.all_reduce(tensor)
            seconds.append(time.perf_counter() - start)
        print(*(f"{each:.7f}" for each in seconds), flush=True)


def compile_peer(folder):
    flags = subprocess.run(
        [sys.executable, "-m", "pccl", "config", "--cflags", "--libs"], check=True, capture_output=True, text=True
    ).stdout.split()
    program = Path(folder) / "peer"
    subprocess.run(["cc", "-O2", str(HERE / "c_api.c"), *flags, "-o", str(program)], check=True)
    return str(program)


def measure(pairs, sizes, rounds):
    for size in sizes:
        count = int(size[:-1]) * UNITS[size[-1]] // 4
        repetitions = max(2, min(REPETITIONS_MAX, TURN_BYTES // (4 * count)))
        seconds = {name: [] for name in pairs}
        for turn in range(rounds):
            # Whoever is first pays for what the turn before left behind.
            for name in sorted(pairs, reverse=bool(turn % 2)):
                for each in pairs[name]:
                    each.order(count, repetitions)
                for each in pairs[name]:
                    seconds[name] += each.seconds()[1:]  # the first touches fresh memory
        medians = {name: statistics.median(each) for name, each in seconds.items()}
        told = {f"{name}_us": round(1e6 * median, 1) for name, median in medians.items()}
        print(json.dumps({"size": size, **told, "ratio": round(medians["c"] / medians["python"], 3)}), flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", nargs="+", default=["4K", "64M"])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--peer", type=int, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.peer:
        peer(chosen.peer)
        return
    with tempfile.TemporaryDirectory() as folder:
        masters = [Master(), Master()]
        in_c, in_python = (compile_peer(folder),), (sys.executable, __file__, "--peer")
        pairs = {
            "c": [Peer(*in_c, str(masters[0].port)) for _ in range(2)],
            "python": [Peer(*in_python, str(masters[1].port)) for _ in range(2)],
        }
        first = [each.first_call_s() for pair in pairs.values() for each in pair][:2]
        print(json.dumps({"first_call_s": first}), flush=True)
        measure(pairs, chosen.sizes, chosen.rounds)
        for each in (*pairs["c"], *pairs["python"], *masters):
            each.end()


if __name__ == "__main__":
    main()
