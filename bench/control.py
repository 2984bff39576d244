"""Time of one vote round, and what it costs the master, for 2 to 1,000 connected peers.

    python bench/control.py [--peers 2 16 128 1000] [--rounds 31] [--observed 10]

The master runs as its own process (`pccl master`). The peers are light ones, all in this process: real connections and
real messages, but no listening port, no lanes and no threads; they claim every link that the master asks for. A round
is one `update_topology` with nobody to admit: every peer votes, the master counts, every peer is answered. Prints a
JSON line per size, with the median and the slowest tenth of the rounds, and the master's CPU time per round.

With `--observed SECONDS` there is another line: how long a round takes on the average while another process asks for
the `status` every second, and while none does, by turns of so many seconds; and what a `status` costs the master.
"""

import argparse
import asyncio
import contextlib
import json
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pccl.config import Address
from pccl.core.fields import Identity, Label
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.observers import AskStatus
from pccl.core.messages.to_master import Join, LinkUp, ToMaster, VoteTopology
from pccl.core.messages.to_peer import Topology, TopologyUpdated, Welcome, Wire
from pccl.net.observing import ask
from pccl.net.peer_end import PeerEnd
from pccl.wire.codec import decode_to_peer, encode

JOIN_TIMEOUT_S = 60.0
CLOCK_TICK_S = 0.01
"""Unit of CPU times in /proc: `sysconf(_SC_CLK_TCK)` is 100 on every Linux that Python runs on."""
TURNS = 3
"""With an observer and without, one after the other: so that other work on the machine meets both."""
POLL_S = 1.0
"""How often `pccl top` asks."""
STATUSES = 20
"""Asked one after the other, to know what one costs in units of that clock."""


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
        label = Label(f"machine-{self.number}", "machine.example.org", self.number, "0.1.0")
        place = ("127.0.0.1", 1 + self.number % 65535, 1)
        self.send(Join(Identity(f"{self.number:032x}", 0, *place, label=label)))

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


Figures = dict[str, float | int | str]


async def measure_rounds(peers: list[LightPeer], rounds: int, admission_s: float, process_id: int) -> Figures:
    count = len(peers)
    await vote_round(peers, VoteTopology())
    before = cpu_seconds(process_id)
    times = [await vote_round(peers, VoteTopology()) for _ in range(rounds)]
    cpu_s = (cpu_seconds(process_id) - before) / rounds
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


@contextlib.contextmanager
def observer(port: int) -> Iterator[None]:
    """A process of its own that asks every second: what it does with the answers is not the master's."""
    with subprocess.Popen([sys.executable, __file__, "--poll", str(port)], stdout=subprocess.PIPE) as polling:
        try:
            assert polling.stdout is not None, "a pipe was asked for"
            assert polling.stdout.readline(), "it has its first answer"
            yield
        finally:
            polling.kill()


async def poll(port: int) -> None:
    while True:
        next_at = time.monotonic() + POLL_S
        await ask(Address("127.0.0.1", port), AskStatus(), JOIN_TIMEOUT_S)
        print("answered", flush=True)
        await asyncio.sleep(next_at - time.monotonic())


async def mean_round_s(peers: list[LightPeer], seconds: float) -> float:
    """The mean, not the median: most rounds meet no question."""
    began = now = time.perf_counter()
    rounds = 0
    while now < began + seconds:
        await vote_round(peers, VoteTopology())
        rounds, now = rounds + 1, time.perf_counter()
    return (now - began) / rounds


async def measure_observed(peers: list[LightPeer], seconds: float, port: int, process_id: int) -> Figures:
    alone_s, observed_s = [], []
    for _ in range(TURNS):
        alone_s.append(await mean_round_s(peers, seconds))
        with observer(port):
            observed_s.append(await mean_round_s(peers, seconds))
    before = cpu_seconds(process_id)
    for _ in range(STATUSES):
        await ask(Address("127.0.0.1", port), AskStatus(), JOIN_TIMEOUT_S)
    cpu_s = (cpu_seconds(process_id) - before) / STATUSES
    return {
        "bench": "observed",
        "peers": len(peers),
        "round_mean_ms": round(statistics.mean(alone_s) * 1e3, 3),
        "observed_round_mean_ms": round(statistics.mean(observed_s) * 1e3, 3),
        "observed_times_slower": round(statistics.mean(observed_s) / statistics.mean(alone_s), 3),
        "status_master_cpu_ms": round(cpu_s * 1e3, 1),
    }


async def measure(count: int, rounds: int, observed: float, port: int, process_id: int) -> None:
    """A line or two about so many peers."""
    peers = [LightPeer(number) for number in range(count)]
    admission_s = await admit_all(peers, port)
    print(json.dumps(await measure_rounds(peers, rounds, admission_s, process_id)), flush=True)
    if observed:
        print(json.dumps(await measure_observed(peers, observed, port, process_id)), flush=True)
    for peer in peers:
        peer.end.fail("done")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 16, 128, 1000])
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--observed", type=float, default=0.0, metavar="SECONDS", help="also with an observer")
    parser.add_argument("--poll", type=int, metavar="PORT", help="be that observer, of the master at this port")
    arguments = parser.parse_args()
    if arguments.poll:
        asyncio.run(poll(arguments.poll))
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
                asyncio.run(measure(count, rounds, arguments.observed, port, master.pid))
            finally:
                master.kill()


if __name__ == "__main__":
    main()
