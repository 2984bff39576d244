"""Shared state: hashing, manifests, a pull from one to three holders, and the public call with real peers.

    python bench/shared_state.py [--bytes 1G] [--holders 1 2 3] [--lanes 2] [--rounds 3]
    sudo .venv/bin/python bench/shared_state.py --wan [--bytes 256M] [--rounds 3]

On one machine: holders are processes of their own, each with the whole state in 64 entries; the requester, this
process, begins with zeros in every round. The links are loopback, so what is measured is CPU: all holders and the
requester share the cores of this machine, and more holders cannot be faster than one once those are busy. Then with a
master and peers, through `sync_shared_state`: in step, and a newcomer that pulls from three holders, one of which is
killed half way.

With `--wan`, which needs root: a newcomer pulls through `sync_shared_state` from one holder and from three, on an
emulated network (see `wanlab`) of four hosts, 50 ms, 200 Mbit/s from each.

Prints a JSON line per measurement, then a table. `cpu_s_per_gb` counts the requester and all holders.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import xxhash
from public_sync import in_step, killed_holder, over_wan
from wanlab import Wan

from pccl.dataplane.state.agenda import Goal
from pccl.dataplane.state.manifest import Entry, Holding, take_manifest
from pccl.dataplane.state.pulling import Pulling
from pccl.dataplane.state.serving import Serving
from pccl.dataplane.state.transfer import Report
from pccl.dataplane.tensors.buffers import tensor

ENTRIES = 64
STALL_S = 30.0
SMALL_BYTES = 4096
"""Of each entry when manifests are timed: so little that the number of entries is what counts."""

WAN = Wan(hosts=4, round_trip_ms=50, rate_mbit=200)
IN_STEP_PEERS, IN_STEP_CALLS = 3, 50

Line = dict[str, object]


def size_in_bytes(words: str) -> int:
    """`256M`, `1G`."""
    return int(words[:-1]) << {"K": 10, "M": 20, "G": 30}[words[-1].upper()]


def entries(arrays: list[np.ndarray]) -> list[Entry]:
    tensors = [tensor(array, "state", writable=True) for array in arrays]
    return [Entry(f"layer.{n}.weight", each.dtype, each.count, False, each) for n, each in enumerate(tensors)]


def state(nbytes: int) -> list[np.ndarray]:
    """The same on all holders, and no two chunks of it alike."""
    count = nbytes // ENTRIES // 4
    return [np.arange(n * count, (n + 1) * count, dtype=np.uint32) for n in range(ENTRIES)]


def finished(transfer_type, *arguments) -> Report:
    """Run a transfer to its end."""
    came, reports = threading.Event(), []
    transfer = transfer_type(*arguments[:-1], lambda report: (reports.append(report), came.set()), arguments[-1])
    transfer.start()
    came.wait()
    transfer.join()
    return reports[0]


# ── a holder ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def hold(nbytes: int, lanes: int) -> None:
    """One process: says its port, takes its lanes, and serves one pull for each line that it is told."""
    made = entries(state(nbytes))
    own = Holding(made, take_manifest(made))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], own.manifest.layout.hex(), own.manifest.content.hex(), flush=True)
        accepted = [listener.accept()[0] for _ in range(lanes)]
    for lane in accepted:
        lane.setblocking(False)
    for _ in sys.stdin:
        before = time.process_time()
        report = finished(Serving, own, accepted, STALL_S)
        print(json.dumps({"cpu_s": time.process_time() - before, "cause": report.cause}), flush=True)


class Holder:
    """Such a process, seen from the requester."""

    def __init__(self, nbytes: int, lanes: int) -> None:
        command = [sys.executable, __file__, "--hold", str(nbytes), "--lanes", str(lanes)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port, layout, content = self.process.stdout.readline().split()
        self.goal = Goal(bytes.fromhex(layout), bytes.fromhex(content), False)
        self.lanes = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(lanes)]
        for lane in self.lanes:
            lane.setblocking(False)

    def serve(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def cpu_s(self) -> float:
        return json.loads(self.process.stdout.readline())["cpu_s"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        for lane in self.lanes:
            lane.close()


# ── measurements ─────────────────────────────────────────────────────────────────────────────────────────────────────


def timed(call, rounds: int) -> float:
    """The median time of a call, in seconds."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def hashing(nbytes: int, rounds: int) -> Line:
    made = entries([np.arange(nbytes // 4, dtype=np.uint32)])
    one = memoryview(made[0].tensor.owner).cast("B")
    alone_s = timed(lambda: xxhash.xxh3_128(one).digest(), rounds)
    all_s = timed(lambda: take_manifest(made), rounds)
    return {
        "what": "hash",
        "bytes": nbytes,
        "cores": os.cpu_count(),
        "gb_per_s": round(nbytes / all_s / 1e9, 2),
        "gb_per_s_one_thread": round(nbytes / alone_s / 1e9, 2),
    }


def manifests(number: int, rounds: int) -> Line:
    made = entries([np.full(SMALL_BYTES // 4, n, np.uint32) for n in range(number)])
    taken_s = timed(lambda: take_manifest(made).content, 10 * rounds)
    return {"what": "manifest", "entries": number, "bytes_each": SMALL_BYTES, "median_ms": round(taken_s * 1e3, 3)}


def pulls(nbytes: int, holders: int, lanes: int, rounds: int) -> Line:
    processes = [Holder(nbytes, lanes) for _ in range(holders)]
    arrays = [np.zeros(nbytes // ENTRIES // 4, np.uint32) for _ in range(ENTRIES)]
    taken, cpu_s = [], []
    for _ in range(rounds):
        for array in arrays:
            array[:] = 0
        made = entries(arrays)
        own = Holding(made, take_manifest(made))
        for holder in processes:
            holder.serve()
        began, cpu_before = time.perf_counter(), time.process_time()
        report = finished(Pulling, own, processes[0].goal, [holder.lanes for holder in processes], STALL_S)
        taken.append(time.perf_counter() - began)
        cpu_s.append(time.process_time() - cpu_before + sum(holder.cpu_s() for holder in processes))
        assert (report.cause, report.received_bytes) == ("", nbytes), report
        assert take_manifest(made).content == processes[0].goal.content
    for holder in processes:
        holder.close()
    median_s = statistics.median(taken)
    return {
        "what": "pull",
        "bytes": nbytes,
        "holders": holders,
        "lanes": lanes,
        "median_s": round(median_s, 3),
        "gb_per_s": round(nbytes / median_s / 1e9, 2),
        "cpu_s_per_gb": round(statistics.median(cpu_s) / (nbytes / 1e9), 2),
    }


def table(lines: list[Line]) -> None:
    print()
    for line in lines:
        match line:
            case {"what": "hash"}:
                print(f"hash: {line['gb_per_s']} GB/s, one thread {line['gb_per_s_one_thread']} GB/s")
            case {"what": "manifest"}:
                print(f"manifest of {line['entries']:>5} entries: {line['median_ms']:>8} ms")
            case {"what": "pull"}:
                rates = f"{line['gb_per_s']} GB/s, {line['cpu_s_per_gb']} CPU s per GB"
                print(f"pull from {line['holders']} holders, {line['lanes']} lanes each: {line['median_s']} s, {rates}")
            case {"what": "in step"}:
                took = f"{line['median_ms']:>8} ms, {line['cpu_ms_per_peer']} CPU ms for each peer"
                print(f"sync in step, {line['peers']} peers, {line['entries']:>5} entries: {took}")
            case {"what": "killed holder"}:
                counts = f"{line['received_bytes']} bytes received, {line['received_again_bytes']} of them again"
                print(f"sync of {line['bytes']} bytes, 1 of 3 holders killed: {line['seconds']} s, {counts}")
            case {"what": "wan"}:
                shares = f"{line['mbit']} Mbit/s, {line['share_of_rate']} of what its holders can send"
                print(f"sync over the wide-area network from {line['holders']}: {line['median_s']} s, {shares}")


def measure_here(chosen: argparse.Namespace) -> Iterator[Line]:
    nbytes = chosen.bytes or 1 << 30
    yield hashing(nbytes, chosen.rounds)
    for number in (1, 100, 1000):
        yield manifests(number, chosen.rounds)
    for holders in chosen.holders:
        yield pulls(nbytes, holders, chosen.lanes, chosen.rounds)
    for number in (1, 100, 1000):
        yield in_step(number, IN_STEP_PEERS, IN_STEP_CALLS)
    yield killed_holder(nbytes)


def measure_wan(chosen: argparse.Namespace) -> Iterator[Line]:
    for holders in (1, WAN.hosts - 1):
        yield over_wan(WAN, chosen.bytes or 256 << 20, holders, chosen.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=size_in_bytes, help="1G, over the wide-area network 256M")
    parser.add_argument("--holders", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wan", action="store_true", help="the emulated network only; needs root")
    parser.add_argument("--hold", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.hold is not None:
        hold(chosen.hold, chosen.lanes)
        return
    if chosen.wan and os.geteuid() != 0:
        raise SystemExit("--wan makes network namespaces, and only root may: run it with sudo")
    lines: list[Line] = []
    for line in measure_wan(chosen) if chosen.wan else measure_here(chosen):
        lines.append(line)
        print(json.dumps(line), flush=True)
    table(lines)
    if chosen.wan:
        print(f"three holders are {lines[1]['mbit'] / lines[0]['mbit']:.2f} times as fast as one")


if __name__ == "__main__":
    main()
