"""Time of one vote round, and what it costs the master, for 2 to 1,000 connected peers.

    python bench/control.py [--peers 2 16 128 1000] [--rounds 31]

The master runs as its own process (`pccl master`). The peers are light ones, all in this process: real connections and
real messages, but no listening port, no lanes and no threads; they claim every link that the master asks for. A round
is one `update_topology` with nobody to admit: every peer votes, the master counts, every peer is answered. Prints a
JSON line per size, with the median and the slowest tenth of the rounds, and the master's CPU time per round.
"""

import argparse
import asyncio
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from pccl.core.fields import Identity
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import Join, LinkUp, ToMaster, VoteTopology
from pccl.core.messages.to_peer import Topology, TopologyUpdated, Welcome, Wire
from pccl.net.connection import PeerEnd
from pccl.wire.codec import decode_to_peer, encode

JOIN_TIMEOUT_S = 60.0
CLOCK_TICK_S = 0.01
"""Unit of CPU times in /proc: `sysconf(_SC_CLK_TCK)` is 100 on every Linux that Python runs on."""


class LightPeer:
    """The least that a master takes for a peer."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.welcomed = asyncio.Event()
        self.accepted = asyncio.Event()
        self.answered = asyncio.Event()
        self.end = PeerEnd(self._frame, self._closed)

    async def join(self, port: int) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self.end, "127.0.0.1", port)
        self.send(Join(Identity(f"{self.number:032x}", 0, "127.0.0.1", 1 + self.number % 65535, 1)))

    def send(self, message: ToMaster) -> None:
        self.end.send(encode(message))

    def _frame(self, body: bytes) -> None:
        match decode_to_peer(body):
            case Wire(links=links):
                for link in links:
                    self.send(LinkUp(link.number))
            case Welcome():
                self.welcomed.set()
            case Topology():
                self.accepted.set()
            case TopologyUpdated():
                self.answered.set()
            case Ping():
                self.send(Pong())

    def _closed(self, cause: str) -> None:
        if cause != "done":
            print(f"light peer {self.number} lost the master: {cause}", file=sys.stderr)


async def until(events: list[asyncio.Event]) -> None:
    async with asyncio.timeout(JOIN_TIMEOUT_S):
        for event in events:
            await event.wait()


async def vote_round(peers: list[LightPeer], vote: ToMaster) -> float:
    started = time.perf_counter()
    for peer in peers:
        peer.answered.clear()
        peer.send(vote)
    await until([peer.answered for peer in peers])
    return time.perf_counter() - started


async def admit_all(peers: list[LightPeer], port: int) -> float:
    """The first is accepted at once and votes the others in. Seconds for that one admission."""
    for peer in peers:
        await peer.join(port)
        await until([peer.accepted if peer is peers[0] else peer.welcomed])
    started = time.perf_counter()
    await vote_round(peers[:1], VoteTopology())
    await until([peer.accepted for peer in peers])
    return time.perf_counter() - started


def cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * CLOCK_TICK_S


async def measure(count: int, rounds: int, port: int, process_id: int) -> dict[str, float | int | str]:
    peers = [LightPeer(number) for number in range(count)]
    admission_s = await admit_all(peers, port)
    await vote_round(peers, VoteTopology())
    before = cpu_seconds(process_id)
    times = [await vote_round(peers, VoteTopology()) for _ in range(rounds)]
    cpu_s = (cpu_seconds(process_id) - before) / rounds
    for peer in peers:
        peer.end.fail("done")
    return {
        "bench": "control",
        "peers": count,
        "rounds": rounds,
        "admission_ms": round(admission_s * 1e3, 2),
        "round_median_ms": round(statistics.median(times) * 1e3, 3),
        "round_p90_ms": round(sorted(times)[int(0.9 * len(times))] * 1e3, 3),
        "master_cpu_ms_per_round": round(cpu_s * 1e3, 3),
        "master_cpu_us_per_peer": round(cpu_s * 1e6 / count, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 16, 128, 1000])
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for count in arguments.peers:
        command = [sys.executable, "-m", "pccl.cli", "master", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as master:
            try:
                assert master.stdout is not None, "a pipe was asked for"
                found = re.search(r"127\.0\.0\.1:(\d+)", master.stdout.readline())
                assert found is not None, "the master's first line says where it listens"
                port = int(found[1])
                rounds = arguments.rounds if count > 100 else 10 * arguments.rounds
                print(json.dumps(asyncio.run(measure(count, rounds, port, master.pid))), flush=True)
            finally:
                master.kill()


if __name__ == "__main__":
    main()
