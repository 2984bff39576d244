"""How long faults hold the others up: from SIGKILL, SIGSTOP or the death of the master to the next good all-reduce.

    python bench/faults.py [--peers 2 4 8] [--repeats 5] [--mbytes 16] [--faults kill stop master] [--silence 4]

A master and peers are processes of their own. Peers reduce without a pause, so most faults strike in the middle of a
collective. Times are on the machine's one clock, taken by the parent just before the signal and by each survivor when
its call returns; of the survivors the last one counts. Spares that have started take the place of the dead, so that
each fault meets the same number of peers. With two peers nobody is left to reduce with: there the next good all-reduce
is that with a spare which is told to join when the other one is struck. Prints a JSON line for each size and fault,
with medians and the worst, and at the end a table in Markdown.
"""

import argparse
import json
import os
import queue
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress

from pccl import CollectiveAborted, Communicator, Kicked, TooFewPeers

PATIENCE_S = 120.0
"""Above every bound that is measured."""

WARM = 5
"""All-reduces before a fault, which also tell how long one takes."""

LOOK_S = 0.002
"""How often a peer that is alone looks for others."""

DELAYS_S = (0.0, 0.04, 0.11)
"""Fractions of a second from the last good all-reduce to the fault, one after the other: no two strike alike."""

RESTART_S = 0.5
"""From the death of a master to the start of the next one: what a supervisor takes."""

# ── a peer ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tell(event: str, **facts: object) -> None:
    os.write(1, (json.dumps({"event": event, "at": time.monotonic(), **facts}) + "\n").encode())


def be_peer(address: str, count: int) -> None:
    """Reduce for ever."""
    import numpy

    tensor = numpy.ones(count, numpy.float32)
    tell("ready")
    sys.stdin.readline()
    with suppress(Kicked), Communicator(address) as communicator:
        tell("accepted", peer=communicator.peer_id)
        fresh = True  # A newcomer begins behind the others' `update_topology`.
        while True:
            if not fresh and communicator.are_peers_pending():
                communicator.update_topology()
            fresh = False
            began = time.monotonic()
            try:
                info = communicator.all_reduce(tensor)
                tell("good", seconds=time.monotonic() - began, peers=info.local_world_size)
            except CollectiveAborted as error:
                tell("error", error=type(error).__name__)
            except TooFewPeers as error:
                tell("error", error=type(error).__name__)
                while not communicator.are_peers_pending():
                    select.select([], [], [], LOOK_S)
            tensor.fill(1.0)


# ── the parent ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Process:
    """A child whose lines arrive in a queue."""

    def __init__(self, *arguments: str, settings: dict[str, str]) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")}
        self.child = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            env={**environment, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self._lines.put(line)

    def line(self) -> str:
        return self._lines.get(timeout=PATIENCE_S)

    def end(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()


class Peer(Process):
    """A peer and what it has said."""

    def __init__(self, address: str, count: int) -> None:
        super().__init__(__file__, "--be-peer", address, str(count), settings={"PCCL_LOG_LEVEL": "ERROR"})

    def expect(self, event: str, since: float = 0.0, peers: int | None = None) -> dict:
        """The next such event after this moment; errors before it are kept in its `errors`."""
        errors = []
        while True:
            said = json.loads(self.line())
            fits = peers is None or said.get("peers") == peers
            if said["event"] == event and said["at"] > since and fits:
                return {**said, "errors": errors}
            if said["event"] == "error" and said["at"] > since:
                errors.append(said["at"])

    def join(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write("join\n")
        self.child.stdin.flush()


class Bench:
    """One run with one number of peers."""

    def __init__(self, size: int, spares: int, chosen: argparse.Namespace) -> None:
        self.size = size
        self._chosen = chosen
        self._master_settings = {"PCCL_SILENCE_S": str(chosen.silence)}
        self.master = self._start_master("127.0.0.1:0")
        self.address = next(word for word in self.master.line().split() if word.startswith("127."))
        count = int(chosen.mbytes * 1e6) // 4
        self.spares = [Peer(self.address, count) for _ in range(size + spares)]
        self.peers: list[Peer] = []
        self._stopped: list[Peer] = []
        for peer in self.spares:
            peer.expect("ready")

    def _start_master(self, listen: str) -> Process:
        command = ["-m", "pccl.cli", "master", "--listen", listen, "--insecure"]
        return Process(*command, settings=self._master_settings)

    def fill(self) -> None:
        """Have spares join until the run is full again."""
        while len(self.peers) < self.size:
            newcomer = self.spares.pop()
            newcomer.join()
            newcomer.expect("accepted")
            self.peers.append(newcomer)

    def settle(self) -> list[float]:
        """Seconds of some all-reduces among all of them."""
        since = time.monotonic()
        return [peer.expect("good", since, self.size)["seconds"] for peer in self.peers for _ in range(WARM)]

    def strike(self, kind: str, number: int) -> dict[str, float]:
        """One fault: seconds until the survivors' error and until their next good all-reduce."""
        self.fill()
        whole_s = statistics.median(self.settle())
        time.sleep(DELAYS_S[number % len(DELAYS_S)])
        struck = {"kill": self._kill, "stop": self._stop, "master": self._kill_master}[kind]
        at, left = struck()
        goods = [peer.expect("good", at, left) for peer in self.peers]
        errors = [error for good in goods for error in good["errors"][:1]]
        facts = {"whole_s": whole_s, "next_good_s": max(good["at"] for good in goods) - at}
        if errors:
            facts["error_s"] = max(errors) - at
        return facts

    def _kill(self) -> tuple[float, int]:
        victim = self.peers.pop(0)
        at = time.monotonic()
        victim.end()
        if self.peers[1:]:
            return at, len(self.peers)
        self.fill()
        return at, self.size

    def _stop(self) -> tuple[float, int]:
        victim = self.peers.pop(0)
        at = time.monotonic()
        victim.child.send_signal(signal.SIGSTOP)
        self._stopped.append(victim)
        if not self.peers[1:]:
            self.fill()
        return at, len(self.peers)

    def _kill_master(self) -> tuple[float, int]:
        at = time.monotonic()
        self.master.end()
        time.sleep(RESTART_S)
        self.master = self._start_master(self.address)
        return at, self.size

    def end(self) -> None:
        for process in (*self.peers, *self.spares, *self._stopped, self.master):
            process.end()


def measure(size: int, kind: str, chosen: argparse.Namespace) -> dict[str, object]:
    """All repeats of one fault in one run."""
    spares = 0 if kind == "master" else chosen.repeats
    bench = Bench(size, spares, chosen)
    try:
        struck = [bench.strike(kind, number) for number in range(chosen.repeats)]
    finally:
        bench.end()
    facts: dict[str, object] = {"bench": "faults", "fault": kind, "peers": size, "repeats": len(struck)}
    facts |= {"mbytes": chosen.mbytes, "silence_s": chosen.silence, "restart_s": RESTART_S}
    for name in ("whole_s", "error_s", "next_good_s"):
        times = [each[name] for each in struck if name in each]
        facts[name] = round(statistics.median(times), 4) if times else None
        facts[f"{name.removesuffix('_s')}_worst_s"] = round(max(times), 4) if times else None
    beyond = [each["next_good_s"] - each["whole_s"] for each in struck]
    return {**facts, "beyond_s": round(statistics.median(beyond), 4), "beyond_worst_s": round(max(beyond), 4)}


def table(rows: list[dict[str, object]]) -> list[str]:
    """Medians, the worst in brackets."""
    words = {"kill": "SIGKILL", "stop": "SIGSTOP", "master": "SIGKILL of the master"}
    lines = [
        "| fault | peers | a whole all-reduce | the survivors' error | next good all-reduce | beyond the transfer |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [_cell(row, "whole"), _cell(row, "error"), _cell(row, "next_good"), _cell(row, "beyond")]
        lines.append(f"| {words[str(row['fault'])]} | {row['peers']} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, object], name: str) -> str:
    median, worst = row[f"{name}_s"], row[f"{name}_worst_s"]
    return "none" if median is None else f"{float(str(median)):.3f} s ({float(str(worst)):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mbytes", type=float, default=16.0, help="of each tensor")
    parser.add_argument("--faults", nargs="+", choices=("kill", "stop", "master"), default=["kill", "stop", "master"])
    parser.add_argument("--silence", type=float, default=4.0, help="the master's limit on silence, seconds")
    parser.add_argument("--be-peer", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.be_peer:
        be_peer(chosen.be_peer[0], int(chosen.be_peer[1]))
        return
    rows = []
    for kind in chosen.faults:
        for size in chosen.peers:
            rows.append(measure(size, kind, chosen))
            print(json.dumps(rows[-1]), flush=True)
    print("\n".join(["", *table(rows)]))


if __name__ == "__main__":
    main()
