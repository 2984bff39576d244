"""What TLS on lanes costs inside one machine, side by side with plain lanes in one run.

    python bench/tls.py [--megabytes 64 256] [--lanes 1 4] [--rounds 7] [--planes native]

Two peers of one process all-reduce over loopback, each in a thread of its own, plain and under TLS by turns, so that
whatever else the machine does meets both. Prints a JSON line for each case: the median time of an all-reduce, its rate,
and the CPU seconds of both peers together for each GB that one of them sends, user and system; and what a handshake
costs. Over a wide-area network: `bench/wan.py`.
"""

import argparse
import functools
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from pccl.net.sockets import tune_lane
from pccl.types import DataType, ReduceOp
from tests.native.rings import Rig, Work
from tests.security.ends import SecuredRig, connection, secured


def cpu_s() -> float:
    """Of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Case:
    """One ring, used again and again."""

    def __init__(self, rig: Any, plane: str, megabytes: int) -> None:
        self.rig, self.kinds = rig, (plane, plane)
        count = megabytes * 1_000_000 // 4
        self.work = Work(DataType.FLOAT, ReduceOp.SUM, count, SEGMENT_BYTES)
        self.tensors = [np.ones(count, np.float32) for _ in self.kinds]
        self.times: list[float] = []
        self.cpu: list[float] = []
        self.sent_bytes = 0

    def round(self) -> None:
        began, used = time.perf_counter(), cpu_s()
        runs = self.rig.start(self.kinds, self.work, self.tensors, self.tensors)
        for run in runs:
            assert run.wait(), "it does not end"
            assert not run.cause, run.cause
        self.times.append(time.perf_counter() - began)
        self.cpu.append(cpu_s() - used)
        self.sent_bytes = runs[0].sent_bytes
        for tensor in self.tensors:
            tensor[:] = 1.0

    def result(self) -> dict[str, float]:
        seconds = statistics.median(self.times[1:])
        return {
            "ms": round(1e3 * seconds, 1),
            "GB_per_s": round(self.sent_bytes / seconds / 1e9, 2),
            "cpu_s_per_GB": round(statistics.median(self.cpu[1:]) / (self.sent_bytes / 1e9), 2),
        }


SEGMENT_BYTES = 256 * 1024


def tuned(rig: Any) -> Any:
    """As the lanes of a peer are."""
    for pair in (pair for link in rig.links for pair in link):
        for end in pair:
            tune_lane(getattr(end, "_sock", end))
    return rig


def compare(plane: str, megabytes: int, lanes: int, rounds: int) -> None:
    cases = {
        "plain": Case(tuned(Rig(2, lanes)), plane, megabytes),
        "tls": Case(tuned(SecuredRig((plane, plane), lanes)), plane, megabytes),
    }
    for _ in range(rounds + 1):  # the first warms up
        for case in cases.values():
            case.round()
    results = {name: case.result() for name, case in cases.items()}
    facts = {"plane": plane, "megabytes": megabytes, "lanes": lanes}
    times = round(results["tls"]["ms"] / results["plain"]["ms"], 2)
    print(json.dumps({**facts, **results, "times_as_long": times}), flush=True)
    for case in cases.values():
        case.rig.close()


def per_call(work: Callable[[], object], calls: int) -> dict[str, float]:
    began, used = time.perf_counter(), cpu_s()
    for _ in range(calls):
        work()
    seconds, cpu = time.perf_counter() - began, cpu_s() - used
    return {"ms": round(1e3 * seconds / calls, 3), "cpu_ms": round(1e3 * cpu / calls, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--planes", nargs="+", default=["native"], choices=["native", "reference"])
    arguments = parser.parse_args()
    for plane in arguments.planes:
        made = {
            "connect": per_call(connection, 200),
            "connect_and_handshake": per_call(functools.partial(secured, (plane, plane)), 200),
        }
        print(json.dumps({"plane": plane, **made}), flush=True)
        for megabytes in arguments.megabytes:
            for lanes in arguments.lanes:
                compare(plane, megabytes, lanes, arguments.rounds)


if __name__ == "__main__":
    main()
