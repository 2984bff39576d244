"""What a flood of connections does to a run: the time to join, the time of a vote of two, and memory.

    python bench/floods.py [--at master peer] [--how silent half pings] [--rate 2000] [--seconds 30]

Master and peers run as processes of their own, and so does the flood, which comes from another address of this machine
(127.0.0.2). `silent` connections say nothing, `half` ones send half a hello, and with `pings` eight connections join
and then ping without end. Meanwhile two peers vote again and again, and another one joins, leaves and joins: at a
master it sends its first message two round trips of 80 ms after its connection stands, as over a long way; at a peer it
is a real one, which needs lanes to the peer that is flooded. Prints a JSON line for each.
"""

import argparse
import asyncio
import contextlib
import json
import re
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from control import LightPeer, admit_all, cpu_seconds, vote_round

from pccl import Communicator
from pccl.core.fields import Identity
from pccl.core.messages.both import Ping
from pccl.core.messages.to_master import AskPending, Join
from pccl.core.messages.to_peer import PendingAnswer
from pccl.wire.codec import decode_to_peer, encode
from pccl.wire.framing import Purpose, frame, preamble

FAR_S = 2 * 0.080
KEPT = 4000
"""Connections of the flood that stay open, at most: four times as many as a master keeps."""
FLOOD_ADDRESS = "127.0.0.2"
VOTE_EVERY_S = 0.02


def resident_mb(process_id: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process_id}/status").read_text())
    return int(found[1]) / 1000 if found else 0.0


# ── the flood ────────────────────────────────────────────────────────────────────────────────────────────────────────


def flood(port: int, how: str, rate: float, seconds: float) -> None:
    """In a process of its own; prints how many connections there were."""
    began, made, kept = time.monotonic(), 0, deque[socket.socket]()
    said = {"silent": b"", "half": preamble(Purpose.CONTROL) + b"\xff\x0f\x00\x00half"}.get(how, b"")
    if how == "pings":
        pings(port, seconds)
        return
    while (elapsed := time.monotonic() - began) < seconds:
        if made > rate * elapsed:
            time.sleep(0.002)
            continue
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((FLOOD_ADDRESS, 0))
        with contextlib.suppress(BlockingIOError):
            sock.connect(("127.0.0.1", port))
        with contextlib.suppress(OSError):
            sock.send(said)
        made += 1
        kept.append(sock)
        if len(kept) > KEPT:
            kept.popleft().close()
    print(made / seconds, flush=True)


def pings(port: int, seconds: float) -> None:
    """Eight connections that join, and ping for as long as they are let."""
    sent, ends = 0, []
    burst = frame(encode(Ping())) * 1000
    for number in range(8):
        sock = socket.create_connection(("127.0.0.1", port), source_address=(FLOOD_ADDRESS, 0))
        identity = Identity(f"{number + 0xF000:032x}", 0, "", 1234, 0)
        sock.sendall(preamble(Purpose.CONTROL) + frame(encode(Join(identity))))
        sock.setblocking(False)
        ends.append(sock)
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for sock in ends:
            with contextlib.suppress(OSError):
                sent += sock.send(burst)
            with contextlib.suppress(OSError):
                sock.recv(65536)
        time.sleep(0.001)
    print(sent / seconds / len(frame(encode(Ping()))), flush=True)


@contextlib.contextmanager
def flooding(port: int, arguments: argparse.Namespace, how: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, __file__, "--flood", str(port), "--how", how]
    command += ["--rate", str(arguments.rate), "--seconds", str(arguments.seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def master() -> Iterator[tuple[int, int]]:
    """Its port, and the number of its process."""
    command = [sys.executable, "-m", "pccl.cli", "master", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None, "a pipe was asked for"
            found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found is not None, "the master's first line says where it listens"
            yield int(found[1]), process.pid
        finally:
            process.kill()


def result(at: str, how: str, facts: dict[str, object], votes: list[float], joins: list[float]) -> str:
    ordered = sorted(votes)
    facts |= {
        "votes": len(votes),
        "vote_median_ms": round(statistics.median(ordered) * 1e3, 2) if votes else None,
        "vote_p99_ms": round(ordered[int(0.99 * len(ordered))] * 1e3, 2) if votes else None,
        "vote_max_ms": round(ordered[-1] * 1e3, 2) if votes else None,
        "joins": len(joins),
        "join_max_s": round(max(joins), 3) if joins else None,
    }
    return json.dumps({"bench": "floods", "at": at, "how": how, **facts})


# ── at a master ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Voter(LightPeer):
    """Votes on whether candidates wait, which is answered at once: a vote on a topology would try those that join."""

    def _frame(self, body: bytes) -> None:
        if isinstance(decode_to_peer(body), PendingAnswer):
            self.answered.set()
        else:
            super()._frame(body)


async def join_from_afar(port: int, number: int) -> float:
    """A connection stands; the first message takes its time; seconds until the master has answered it, less that."""
    began, peer = time.monotonic(), LightPeer(number)
    while True:
        peer.end.greeted.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.get_running_loop().create_connection(lambda end=peer.end: end, "127.0.0.1", port)
        await asyncio.sleep(FAR_S)
        peer.send(Join(Identity(f"{number:032x}", 0, "127.0.0.1", 40_000, 1)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await peer.welcomed.wait()
                peer.end.fail("done")
                return time.monotonic() - began
        peer.end.fail("done")
        peer = LightPeer(number)


async def at_master(arguments: argparse.Namespace, how: str) -> str:
    with master() as (port, process_id):
        peers: list[LightPeer] = [Voter(number) for number in range(2)]
        await admit_all(peers, port)
        before, cpu = resident_mb(process_id), cpu_seconds(process_id)
        votes: list[float] = []
        joins: list[float] = []
        most = before
        with flooding(port, arguments, how) as flooder:
            await asyncio.sleep(1.0)
            joining = asyncio.create_task(join_from_afar(port, 100))
            while flooder.poll() is None:
                votes.append(await vote_round(peers, AskPending()))
                most = max(most, resident_mb(process_id))
                if joining.done():
                    joins.append(joining.result())
                    joining = asyncio.create_task(join_from_afar(port, 100 + len(joins)))
                await asyncio.sleep(VOTE_EVERY_S)
            joining.cancel()
            assert flooder.stdout is not None, "a pipe was asked for"
            rate = float(flooder.stdout.read() or 0)
        cpu = (cpu_seconds(process_id) - cpu) / arguments.seconds
        for peer in peers:
            peer.end.fail("done")
        await asyncio.sleep(0)
    facts: dict[str, object] = {"flood_per_s": round(rate), "grown_mb": round(most - before, 1), "cpu": round(cpu, 2)}
    return result("master", how, facts, votes, joins)


# ── at a peer ────────────────────────────────────────────────────────────────────────────────────────────────────────


def be_peer(port: int) -> None:
    """In a process of its own: vote again and again, and print each time how long it took, and how many we are."""
    with Communicator(f"127.0.0.1:{port}") as peer:
        print(json.dumps({"peer": peer._membership._shell._lanes._listener.port}), flush=True)  # type: ignore[union-attr]
        while True:
            began = time.monotonic()
            pending = peer.are_peers_pending()
            print(json.dumps({"vote": time.monotonic() - began, "size": peer.world_size}), flush=True)
            if pending:
                peer.update_topology()
            time.sleep(VOTE_EVERY_S)


def start_peer(port: int) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, "--be-peer", str(port)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def at_peer(arguments: argparse.Namespace, how: str) -> str:
    with master() as (port, _), start_peer(port) as first:
        assert first.stdout is not None, "a pipe was asked for"
        lanes = json.loads(first.stdout.readline())["peer"]
        with start_peer(port) as second:
            while json.loads(first.stdout.readline()).get("size") != 2:
                pass
            before, joins, most = resident_mb(first.pid), list[float](), 0.0
            votes: list[float] = []
            with flooding(lanes, arguments, how) as flooder:
                time.sleep(1.0)
                while flooder.poll() is None:
                    began = time.monotonic()
                    with Communicator(f"127.0.0.1:{port}") as newcomer:
                        joins.append(time.monotonic() - began)
                        most = max(most, resident_mb(first.pid))
                        newcomer.close()
                    deadline = time.monotonic() + 0.5
                    while time.monotonic() < deadline:
                        votes.append(json.loads(first.stdout.readline()).get("vote", 0.0))
                assert flooder.stdout is not None, "a pipe was asked for"
                rate = float(flooder.stdout.read() or 0)
            second.kill()
        first.kill()
    facts: dict[str, object] = {"flood_per_s": round(rate), "grown_mb": round(most - before, 1)}
    return result("peer", how, facts, votes, joins)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", nargs="+", default=["master", "peer"], choices=["master", "peer"])
    parser.add_argument("--how", nargs="+", default=["silent", "half", "pings"])
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--be-peer", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not arguments.be_peer:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.flood:
        flood(arguments.flood, arguments.how[0], arguments.rate, arguments.seconds)
    elif arguments.be_peer:
        be_peer(arguments.be_peer)
    else:
        for how in arguments.how:
            if "master" in arguments.at:
                print(asyncio.run(at_master(arguments, how)), flush=True)
            if "peer" in arguments.at and how != "pings":
                print(at_peer(arguments, how), flush=True)


if __name__ == "__main__":
    main()
