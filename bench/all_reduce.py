"""All-reduce on one machine: this library beside Gloo, Open MPI and what the machine can do at all.

    python bench/all_reduce.py [--peers 2 4] [--sizes 4K 64K 1M 16M 64M 256M] [--rounds 5] [--hot]
                               [--rivals limit gloo mpi-tcp mpi-shm] [--lanes 0]
    python bench/all_reduce.py --peers 2 --sizes 4K 16M --rounds 2     # a minute

float32 SUM in place. All rivals are started once per number of peers and take turns: at each size, each does its
repetitions, then the next one; several rounds, so that whatever else the machine does hits all alike. `limit` moves the
bytes of a ring over as many loopback connections, under the same congestion control, and adds nothing up. `--hot` runs
a thread of pure Python in every process meanwhile (its own CPU time is not counted).

Prints a JSON line per rival and size, then a table: the median over all processes and repetitions, the bus bandwidth
2(N-1)/N · bytes / time, CPU seconds of all processes (our master's too) per GB of tensor, and how much faster ours is
than each rival (above 1: ours is faster).
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import statistics
import sys

from rivals.fleet import Fleet, Measured, Place, RivalFailed, each, fleet, under_mpirun, with_master
from rivals.rival import Facts

RIVALS = ("limit", "gloo", "mpi-tcp", "mpi-shm")
TURN_S = 0.6
"""A rival's turn at one size is about this long: many repetitions of small tensors, few of large ones."""

REPETITIONS_MAX = 300
BYTES_PER_SECOND_GUESS = 0.5e9
CALL_S_GUESS = 1e-3

Line = dict[str, object]


def size_in_bytes(words: str) -> int:
    """`64K`, `16M`."""
    return int(words[:-1]) << {"K": 10, "M": 20, "G": 30}[words[-1].upper()]


def in_words(nbytes: int) -> str:
    return f"{nbytes >> 20}M" if nbytes >= 1 << 20 else f"{nbytes >> 10}K"


def absent(rival: str) -> str:
    """Why a rival cannot run here; nothing when it can."""
    if rival == "gloo" and importlib.util.find_spec("torch") is None:
        return "torch is not installed, so Gloo is left out (pip install torch)"
    if rival.startswith("mpi") and shutil.which("mpirun") is None:
        return f"mpirun is not installed, so {rival} is left out (Debian: openmpi-bin and libopenmpi-dev)"
    if rival.startswith("mpi") and importlib.util.find_spec("mpi4py") is None:
        return f"mpi4py is not installed, so {rival} is left out (pip install mpi4py)"
    return ""


def start_all(stack: contextlib.ExitStack, peers: int, rivals: list[str], lanes: int) -> list[Fleet]:
    places = [Place()] * peers
    ours = stack.enter_context(fleet("ours", peers, {"lanes": lanes}, with_master(places)))
    starts = {
        "limit": each("limit", places),
        "gloo": each("gloo", places),
        "mpi-tcp": under_mpirun(peers, "tcp"),
        "mpi-shm": under_mpirun(peers, "vader"),
    }
    settings: Facts = {"lanes": ours.facts["lanes"], "congestion": ours.facts["congestion"]}
    return [ours, *(stack.enter_context(fleet(name, peers, settings, starts[name])) for name in rivals)]


def measure(fleets: list[Fleet], nbytes: int, rounds: int, hot: bool) -> dict[str, Measured]:
    repetitions = int(TURN_S / (CALL_S_GUESS + nbytes / BYTES_PER_SECOND_GUESS))
    repetitions = max(1, min(REPETITIONS_MAX, repetitions))
    measured = {rival.name: Measured() for rival in fleets}
    for rival in fleets:
        rival.prepare(nbytes)
    for turn in range(rounds):
        # In another order each time, so that nobody always comes after the same one.
        for rival in fleets[turn % len(fleets) :] + fleets[: turn % len(fleets)]:
            measured[rival.name].add(rival.run(repetitions, hot=hot))
    return measured


def lines_of(peers: int, nbytes: int, fleets: list[Fleet], measured: dict[str, Measured]) -> list[Line]:
    medians = {name: statistics.median(times.seconds) for name, times in measured.items()}
    lines: list[Line] = []
    for rival in fleets:
        times = measured[rival.name]
        tenths = statistics.quantiles(times.seconds, n=10)
        lines.append(
            {
                "bench": "all_reduce",
                "peers": peers,
                "bytes": nbytes,
                "rival": rival.name,
                "facts": rival.facts,
                "repetitions": times.repetitions,
                "median_ms": round(medians[rival.name] * 1e3, 4),
                "tenth_ms": round(tenths[0] * 1e3, 4),
                "ninth_tenth_ms": round(tenths[-1] * 1e3, 4),
                "bus_gb_per_s": round(2 * (peers - 1) / peers * nbytes / medians[rival.name] / 1e9, 4),
                "cpu_s_per_gb": round(times.cpu_s / times.repetitions / (nbytes / 1e9), 3),
                "ours_is_faster_by": round(medians[rival.name] / medians["ours"], 3),
                "load_average": round(os.getloadavg()[0], 2),
            }
        )
    return lines


def run_peers(peers: int, rivals: list[str], arguments: argparse.Namespace) -> list[Line]:
    lines: list[Line] = []
    with contextlib.ExitStack() as stack:
        fleets = start_all(stack, peers, rivals, arguments.lanes)
        for size in arguments.sizes:
            nbytes = size_in_bytes(size)
            measured = measure(fleets, nbytes, arguments.rounds, arguments.hot)
            for entry in lines_of(peers, nbytes, fleets, measured):
                lines.append({**entry, "hot": arguments.hot})
                print(json.dumps(lines[-1]), flush=True)
    return lines


def table(lines: list[Line]) -> None:
    """A row per rival and size. Beside the median, the fastest tenth: on a machine that others use too it says more."""
    print("\nmedian ms | fastest tenth ms | bus GB/s | CPU s per GB | × ours is faster")
    for peers in sorted({entry["peers"] for entry in lines}, key=str):
        for nbytes in dict.fromkeys(entry["bytes"] for entry in lines):
            cells = []
            for entry in lines:
                if (entry["peers"], entry["bytes"]) == (peers, nbytes):
                    times = f"{entry['median_ms']:9.3f} | {entry['tenth_ms']:9.3f}"
                    rates = f"{entry['bus_gb_per_s']:5.2f} | {entry['cpu_s_per_gb']:6.2f}"
                    cells.append(f"{entry['rival']:>8}: {times} | {rates} | {entry['ours_is_faster_by']:5.2f}")
            print(f"{peers} peers, {in_words(int(str(nbytes)))}\n    " + "\n    ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", nargs="+", default=["4K", "64K", "1M", "16M", "64M", "256M"])
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, default=RIVALS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=0, help="of ours to each neighbour; 0: its own choice")
    parser.add_argument("--hot", action="store_true", help="a thread of pure Python beside it in every process")
    arguments = parser.parse_args()
    reasons = {rival: absent(rival) for rival in arguments.rivals}
    for reason in filter(None, reasons.values()):
        print(reason, file=sys.stderr)
    rivals = [rival for rival, reason in reasons.items() if not reason]
    lines: list[Line] = []
    for peers in arguments.peers:
        try:
            lines += run_peers(peers, rivals, arguments)
        except RivalFailed as error:
            print(f"{peers} peers: {error}", file=sys.stderr)
    table(lines)


if __name__ == "__main__":
    main()
