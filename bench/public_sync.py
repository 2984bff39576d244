"""`sync_shared_state` as a user calls it, with a master and peers as processes; for `bench/shared_state.py`.

Owns the peers of those measurements, on this machine or on hosts of an emulated network, and what they are told. A peer
takes orders as lines of JSON and answers each with one; the state is `ENTRIES` arrays of which no two chunks are alike.
"""

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
from wanlab import Wan, WanLab

from pccl import Communicator, SharedState, TensorInfo

ENTRIES = 64
LOOKS_PER_ENTRY = 16
"""Places in each entry that are looked at to know how much has come: every 1 MiB of a state of 1 GiB."""

LOOK_S = 0.001
SMALL_BYTES = 4096
LANES = 0
"""The library's own choice."""

Line = dict[str, object]


# ── a peer ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


class Peer:
    """One process; each method is an order."""

    def __init__(self, address: str, listen: str) -> None:
        self.communicator = Communicator(address, p2p_connection_pool_size=LANES, listen=listen)
        self.arrays: list[np.ndarray] = []

    def connect(self) -> None:
        self.communicator.connect()
        tell()

    def admit(self, size: int) -> None:
        """Let others in until there are so many."""
        while len(self.communicator.ring) < size:
            if self.communicator.are_peers_pending():
                self.communicator.update_topology()
        tell()

    def hold(self, entries: int, nbytes: int, revision: int) -> None:
        """At revision 0 zeros, which is what a newcomer has; else what all holders hold."""
        count = nbytes // entries // 4
        self.arrays = [held(n, count) if revision else np.full(count, 0, np.uint32) for n in range(entries)]
        self.state = SharedState(
            [TensorInfo.from_numpy(array, f"layer.{n}.weight") for n, array in enumerate(self.arrays)]
        )
        self.state.revision = revision
        tell()

    def sync(self, times: int = 1, tell_half: bool = False) -> None:
        """Sync so often; what each call took, and what the last one moved."""
        if tell_half:
            threading.Thread(target=self._watch, daemon=True).start()
        taken, cpu_before = [], time.process_time()
        for _ in range(times):
            began = time.perf_counter()
            info = self.communicator.sync_shared_state(self.state)
            taken.append(time.perf_counter() - began)
        cpu_s = (time.process_time() - cpu_before) / times
        equal = all(np.array_equal(array, held(n, len(array))) for n, array in enumerate(self.arrays))
        tell(taken_s=taken, cpu_s=cpu_s, rx=info.rx_bytes, tx=info.tx_bytes, equal=equal)

    def _watch(self) -> None:
        """Say so when half of the content is there: a chunk is written when it is whole and was checked."""
        looks = [array[:: max(1, len(array) // LOOKS_PER_ENTRY)] for array in self.arrays]
        while sum(np.count_nonzero(look) for look in looks) * 2 < sum(len(look) for look in looks):
            time.sleep(LOOK_S)
        tell(half=True)


def held(number: int, count: int) -> np.ndarray:
    """The content of an entry on all holders: no zero in it, and no two chunks alike."""
    return np.arange(number * count + 1, (number + 1) * count + 1, dtype=np.uint32)


def serve(address: str, listen: str) -> None:
    peer = Peer(address, listen)
    for line in sys.stdin:
        order = json.loads(line)
        getattr(peer, order.pop("do"))(**order)
    peer.communicator.close()


# ── those who tell them ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Place:
    """Where a process runs: what goes before its command, and its address there."""

    before: list[str]
    address: str


HERE = Place([], "127.0.0.1")


class Fleet:
    """A master at the first place, and a peer at each; ended with the block."""

    def __init__(self, stack: contextlib.ExitStack, places: list[Place]) -> None:
        self._stack = stack
        command = [sys.executable, "-m", "pccl.cli", "master", "--listen", f"{places[0].address}:0", "--insecure"]
        master = self._launch([*places[0].before, *command])
        said = next(line for line in master.stdout if "listens on" in line)  # Off loopback it warns first.
        address = re.search(r"\S+:\d+", said)[0]
        threading.Thread(target=master.stdout.read, daemon=True).start()  # A full pipe would hold the master up.
        self.peers = [self._launch([*p.before, sys.executable, __file__, address, p.address]) for p in places]
        for size, peer in enumerate(self.peers):
            inside = self.peers[:size]
            order([peer], do="connect")
            order(inside, do="admit", size=size + 1)
            answers([peer, *inside])

    def _launch(self, command: list[str]) -> "subprocess.Popen[str]":
        # A transfer that takes long is a wait that peers put into words: what they are asked for is enough here.
        quiet = {**os.environ, "PCCL_LOG_LEVEL": "ERROR"}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quiet)
        self._stack.callback(_end, process)
        return process


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(BrokenPipeError):  # An order that a killed peer did not read any more.
            pipe.close()


def order(peers: list["subprocess.Popen[str]"], **what: object) -> None:
    for peer in peers:
        peer.stdin.write(json.dumps(what) + "\n")
        peer.stdin.flush()


def answers(peers: list["subprocess.Popen[str]"]) -> list[dict]:
    return [json.loads(peer.stdout.readline()) for peer in peers]


def all_do(peers: list["subprocess.Popen[str]"], **what: object) -> list[dict]:
    order(peers, **what)
    return answers(peers)


# ── measurements ─────────────────────────────────────────────────────────────────────────────────────────────────────


def in_step(entries: int, peers: int, times: int) -> Line:
    """What a sync costs when everybody holds the same already."""
    with contextlib.ExitStack() as stack:
        fleet = Fleet(stack, [HERE] * peers)
        all_do(fleet.peers, do="hold", entries=entries, nbytes=entries * SMALL_BYTES, revision=1)
        all_do(fleet.peers, do="sync", times=3)
        said = all_do(fleet.peers, do="sync", times=times)
    assert all(each["rx"] == each["tx"] == 0 for each in said), said
    median_s = statistics.median(second for each in said for second in each["taken_s"])
    return {
        "what": "in step",
        "entries": entries,
        "peers": peers,
        "median_ms": round(median_s * 1e3, 2),
        "cpu_ms_per_peer": round(statistics.mean(each["cpu_s"] for each in said) * 1e3, 2),
    }


def killed_holder(nbytes: int) -> Line:
    """A newcomer pulls from three holders, one of which is killed when half is there."""
    with contextlib.ExitStack() as stack:
        *holders, newcomer = Fleet(stack, [HERE] * 4).peers
        all_do(holders, do="hold", entries=ENTRIES, nbytes=nbytes, revision=1)
        all_do([newcomer], do="hold", entries=ENTRIES, nbytes=nbytes, revision=0)
        order(holders, do="sync")
        order([newcomer], do="sync", tell_half=True)
        assert answers([newcomer]) == [{"half": True}]
        victim = holders.pop(1)
        victim.send_signal(signal.SIGKILL)
        got, *served = answers([newcomer, *holders])
        assert victim.wait() == -signal.SIGKILL
    assert got["equal"], got
    return {
        "what": "killed holder",
        "bytes": nbytes,
        "seconds": round(got["taken_s"][0], 3),
        "received_bytes": got["rx"],
        "received_again_bytes": got["rx"] - nbytes,
        "survivors_sent_bytes": [each["tx"] for each in served],
    }


def over_wan(wan: Wan, nbytes: int, holders: int, rounds: int) -> Line:
    """A newcomer on the last host pulls from so many holders on others."""
    with WanLab(wan) as lab:
        median_s = statistics.median(pulled_s(lab, nbytes, holders, rounds))
        dropped = lab.dropped_packets
    mbit = nbytes * 8 / median_s / 1e6
    return {
        "what": "wan",
        "holders": holders,
        "bytes": nbytes,
        "round_trip_ms": wan.round_trip_ms,
        "rate_mbit": wan.rate_mbit,
        "median_s": round(median_s, 2),
        "mbit": round(mbit, 1),
        "share_of_rate": round(mbit / wan.rate_mbit / holders, 3),
        "dropped_packets": dropped,
    }


def pulled_s(lab: WanLab, nbytes: int, holders: int, rounds: int) -> list[float]:
    """How long the newcomer on the last host of the network took, in each round."""
    hosts = [*range(holders), lab.wan.hosts - 1]
    taken = []
    with contextlib.ExitStack() as stack:
        *served, newcomer = Fleet(stack, [Place(lab.inside(host), lab.address(host)) for host in hosts]).peers
        all_do(served, do="hold", entries=ENTRIES, nbytes=nbytes, revision=1)
        for _ in range(rounds):
            all_do([newcomer], do="hold", entries=ENTRIES, nbytes=nbytes, revision=0)
            *_, got = all_do([*served, newcomer], do="sync")
            assert got["equal"], got
            taken.append(got["taken_s"][0])
    return taken


if __name__ == "__main__":
    serve(*sys.argv[1:])
