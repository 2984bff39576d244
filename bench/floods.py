"""What a flood of connections does to a run: the time to join, the time of a vote of two, and memory.

    python bench/floods.py [--at master peer] [--how silent half knock tls finished pings] [--open]
                           [--rate 2000] [--seconds 30] [--nice 0]

Master and two peers run as processes of their own, and so does the flood, which comes from another address of this
machine (127.0.0.2). Both peers vote again and again, and another peer, for which everything is 80 ms away (`far.py`),
joins and leaves. The run has a secret unless `--open` is given. Prints a JSON line for each target and kind of flood:

    silent     connections that say nothing
    half       half of the first bytes: of a knock, or of a hello where there is no secret
    knock      a whole knock, made without a token: as far as a stranger gets
    tls        a knock with a token each, then the same ClientHello: the master computes its part of the handshake
    finished   the same, and the handshake is finished; the proof is never sent
    pings      eight connections with a token that join and ping without end

The flood takes the cores that master and peers need, as one from elsewhere would not: with `--nice 19` it gets what
they leave, and `flood_per_s` says what it reached.

The last three need a token: without one there is no way behind the knock, and one that was recorded opens once. At a
peer there is no way either: its knocks are made with the key of a link, which only the two ends of it have.
"""

import argparse
import contextlib
import json
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from control import cpu_seconds
from far import FarAway
from flooders import flood, needs_a_token

from pccl import Communicator
from pccl.security import certificate, control, tokens
from pccl.security.secret import load_or_make

VOTE_EVERY_S = 0.02
LOOK_S = 0.1
HOWS = ("silent", "half", "knock", "tls", "finished", "pings")


class Target(NamedTuple):
    """Where a flood goes, and whose memory is looked at."""

    port: int
    process_id: int


class Peer:
    """One that votes, in a process of its own."""

    def __init__(self, master: int, token: str, far: FarAway) -> None:
        command = [sys.executable, __file__, "--be-peer", str(master)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdin is not None, "a pipe was asked for"
        assert self.process.stdout is not None, "a pipe was asked for"
        self.port = free_port()
        print(json.dumps({"token": token, "port": self.port, "far": far.lead(self.port)}), file=self.process.stdin)
        self.process.stdin.flush()
        self.votes: list[float] = []
        self.size = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None, "a pipe was asked for"
        for line in self.process.stdout:
            told = json.loads(line)
            self.size = told["size"]
            if told["vote"] is not None:
                self.votes.append(told["vote"])


def be_peer(master: int) -> None:
    """Vote again and again; print how long each vote of two took, and how many we are."""
    facts = json.loads(sys.stdin.readline())
    places = {"listen": f"127.0.0.1:{facts['port']}", "announce": f"127.0.0.1:{facts['far']}"}
    with Communicator(f"127.0.0.1:{master}", token=facts["token"], **places) as peer:
        while True:
            size, began = peer.world_size, time.monotonic()
            pending = peer.are_peers_pending()
            of_two = size == peer.world_size == 2
            print(
                json.dumps({"vote": time.monotonic() - began if of_two else None, "size": peer.world_size}), flush=True
            )
            if pending:
                peer.update_topology()
            time.sleep(VOTE_EVERY_S)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def started_master(folder: Path, secured: bool) -> Iterator[tuple[Target, str]]:
    """Where it is, and a token; empty if it has no secret."""
    command = [sys.executable, "-m", "pccl.cli", "master", "--listen", "127.0.0.1:0"]
    token = ""
    if secured:
        secret = load_or_make(folder / "secret")
        pin = certificate.make(control.certificate_seed(secret)).pin
        token = tokens.mint(secret, tokens.first_claim(secret), pin).text()
        command += ["--secret", str(folder / "secret")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None, "a pipe was asked for"
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None, "the master's first line says where it listens"
            yield Target(int(found[1]), process.pid), token
        finally:
            process.kill()


@contextlib.contextmanager
def flooding(
    port: int, arguments: argparse.Namespace, kind: tuple[str, str], token: str
) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, __file__, "--flood", str(port), "--at", kind[0], "--how", kind[1]]
    command += ["--rate", str(arguments.rate), "--seconds", str(arguments.seconds)]
    command += ["--nice", str(arguments.nice)] + (["--open"] if not token else [])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None, "a pipe was asked for"
            process.stdin.write(token + "\n")
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def resident_mb(process_id: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process_id}/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


def joins_while(flooder: "subprocess.Popen[str]", address: str, token: str, far: FarAway) -> list[float]:
    """One peer after the other comes from afar and leaves; seconds until each was accepted."""
    joins: list[float] = []
    port = free_port()
    places = {"listen": f"127.0.0.1:{port}", "announce": f"127.0.0.1:{far.lead(port)}"}
    while flooder.poll() is None:
        began = time.monotonic()
        with Communicator(address, token=token, **places):
            joins.append(time.monotonic() - began)
        time.sleep(0.5)
    return joins


def measure(at: str, how: str, arguments: argparse.Namespace, folder: Path) -> str:
    far = FarAway()
    with started_master(folder, not arguments.open) as (master, token):
        peers = [Peer(master.port, token, far) for _ in range(2)]
        try:
            while {peer.size for peer in peers} != {2}:
                time.sleep(LOOK_S)
            target = master if at == "master" else Target(peers[0].port, peers[0].process.pid)
            before, cpu = resident_mb(target.process_id), cpu_seconds(target.process_id)
            most = [before]
            peers[0].votes.clear()
            with flooding(target.port, arguments, (at, how), token) as flooder:

                def look() -> None:
                    while flooder.poll() is None:
                        most.append(resident_mb(target.process_id))
                        time.sleep(LOOK_S)

                threading.Thread(target=look, daemon=True).start()
                joins = joins_while(flooder, f"127.0.0.1:{far.lead(master.port)}", token, far)
                assert flooder.stdout is not None, "a pipe was asked for"
                rate = float(flooder.stdout.read() or 0)
            cpu = (cpu_seconds(target.process_id) - cpu) / arguments.seconds
        finally:
            for peer in peers:
                peer.process.kill()
    facts: dict[str, object] = {"secret": not arguments.open, "flood_per_s": round(rate)}
    facts |= {"grown_mb": round(max(most) - before, 1), "cpu": round(cpu, 2), **of_votes(peers[0].votes)}
    facts |= {"joins": len(joins), "join_max_s": round(max(joins), 3) if joins else None}
    return json.dumps({"bench": "floods", "at": at, "how": how, **facts})


def of_votes(taken: list[float]) -> dict[str, object]:
    """How long the votes took that were made meanwhile."""
    votes = sorted(taken)
    facts: dict[str, object] = {"votes": len(votes)}
    if votes:
        facts["vote_median_ms"] = round(statistics.median(votes) * 1e3, 2)
        facts["vote_p99_ms"] = round(votes[int(0.99 * len(votes))] * 1e3, 2)
        facts["vote_max_ms"] = round(votes[-1] * 1e3, 2)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", nargs="+", default=["master", "peer"], choices=["master", "peer"])
    parser.add_argument("--how", nargs="+", default=list(HOWS), choices=HOWS)
    parser.add_argument("--open", action="store_true", help="a run without a secret")
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--nice", type=int, default=0, help="of the flood's process")
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--be-peer", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not arguments.be_peer:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.flood:
        kind, token = (arguments.at[0], arguments.how[0]), sys.stdin.readline().strip()
        os.nice(arguments.nice)
        flood(arguments.flood, kind, token, arguments.rate, arguments.seconds)
    elif arguments.be_peer:
        be_peer(arguments.be_peer)
    else:
        for how in arguments.how:
            for at in arguments.at:
                possible = how in ("silent", "half", "pings") if arguments.open else True
                if possible and not (at == "peer" and needs_a_token(how)):
                    with tempfile.TemporaryDirectory() as folder:
                        print(measure(at, how, arguments, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
