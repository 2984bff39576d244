"""INTELLECT-1 in miniature: 14 providers in three regions train one model, and come and go. Needs root.

    sudo make intellect                        # ten minutes, ends with a table and build/intellect.svg
    python bench/intellect.py [--seconds 600] [--every 50] [--step-s 0.4] [--overlap auto] [--seed 1]

Each provider is a host of its own on an emulated network (`wanlab`): 10 ms to its neighbours in a region, 90 to 220 ms
to other continents, 200 Mbit/s. Deltas travel as int8 under TLS, behind a token. Four providers begin; others join
until there are 14; then, by a seeded schedule, providers are killed (SIGKILL), leave with notice (SIGTERM), and new
ones take their place. A step takes a stated time, most of which is a pause: 14 processes share this machine's
processors, so what the network costs is measured, and what computing costs is not.

Reported beside PRIME's 83-96 %: utilisation (time in steps over time), bytes that left all hosts against those of data
parallelism for the same steps, loss, restarts.
"""

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

REGIONS = ("Europe",) * 5 + ("America",) * 5 + ("Asia",) * 4
MASTER = len(REGIONS)
"""The host of the master, in America."""

ROUND_TRIPS_MS = {
    frozenset(["Europe", "America"]): 90.0,
    frozenset(["America", "Asia"]): 150.0,
    frozenset(["Europe", "Asia"]): 220.0,
}
NEAR_MS, RATE_MBIT = 10.0, 200.0
FIRST = 4
"""Providers that begin, as in INTELLECT-1; the first of them stays to the end."""

LOOK_S = 0.5
PATIENCE_S = 300.0
"""For what must come: above every wait that is measured."""


def round_trips():
    places = [*REGIONS, "America"]
    return tuple(
        tuple(NEAR_MS if one == other else ROUND_TRIPS_MS[frozenset([one, other])] for other in places)
        for one in places
    )


class Provider:
    """A process on a host, and what it has said."""

    numbers = itertools.count()

    def __init__(self, host, folder):
        self.number, self.host = next(self.numbers), host
        self.path = folder / f"provider-{self.number}.jsonl"
        self.fate = "stays"

    def said(self, event=None):
        lines = self.path.read_text().splitlines(keepends=True) if self.path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in found if event in (None, each["event"])]

    def end(self, fate):
        """SIGKILL, or SIGTERM: notice."""
        self.fate = fate
        os.kill(self.said("started")[0]["pid"], signal.SIGKILL if fate == "killed" else signal.SIGTERM)


class Swarm:
    """All providers of a run."""

    def __init__(self, lab, folder, options):
        self._lab, self.folder, self._options = lab, folder, options
        self.providers, self.events, self._pause = [], [], threading.Event()
        place = ["--listen", f"{lab.address(MASTER)}:48148", "--secret", str(folder / "secret")]
        self._master = subprocess.Popen(
            [*lab.inside(MASTER), sys.executable, "-u", "-m", "pccl.cli", "master", *place],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._address = self._join_address()
        self._nest = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / "intellect_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "log").open("w"),
            text=True,
        )
        if self._nest.stdout.readline() != "ready\n":
            raise SystemExit("providers cannot be started")

    def _join_address(self):
        for line in self._master.stdout:
            if line.startswith("peers join at: "):
                threading.Thread(target=self._master.stdout.read, daemon=True).start()
                return line.split()[-1]
        raise SystemExit("the master has not started")

    def start(self, host):
        provider = Provider(host, self.folder)
        settings = {"sync_every": self._options.every, "quantize": "int8", "overlap": self._options.overlap}
        told = {
            "address": self._address,
            "namespace": self._lab.namespace(host),
            "said": str(provider.path),
            "stop": str(self.folder / "stop"),
            "seed": self._options.seed * 1000 + provider.number,
            "step_s": self._options.step_s,
            "options": settings,
            "first": provider.number == 0,
        }
        self._nest.stdin.write(json.dumps(told) + "\n")
        self._nest.stdin.flush()
        self.providers.append(provider)
        self.note("joins", provider)
        return provider

    def note(self, what, provider):
        self.events.append({"at": time.monotonic(), "what": what, "host": provider.host})
        print(f"{what}: provider {provider.number} in {REGIONS[provider.host]}", file=sys.stderr, flush=True)

    def living(self):
        return [each for each in self.providers if each.fate == "stays"]

    def until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if failed := [each.said("failed")[0]["text"] for each in self.providers if each.said("failed")]:
                raise SystemExit(f"a provider failed:\n{failed[0]}")
            if time.monotonic() > deadline:
                raise SystemExit(f"never came: {what}; look into {self.folder}")
            self._pause.wait(LOOK_S)

    def end(self):
        """After the round that comes after the next; with all that were started, so that none is left alone."""
        self.until(lambda: all(each.said("joined") for each in self.living()), "the last members")
        latest = max(each["round"] for each in self.providers[0].said("round"))
        (self.folder / "stop").write_text(str(latest + 2))
        self.until(lambda: all(each.said("done") for each in self.living()), "the end of all")

    def close(self):
        for provider in self.living():
            if provider.said("started") and not provider.said("done"):
                os.kill(provider.said("started")[0]["pid"], signal.SIGKILL)
        self._nest.stdin.close()
        self._nest.wait()
        self._master.terminate()
        self._master.wait()


def schedule(options):
    """When what happens, by seed: first all join, then providers go and come in turns."""
    dice, growth = random.Random(options.seed), options.seconds / 4
    joins = [(growth * (number + 1) / (len(REGIONS) - FIRST), "join") for number in range(len(REGIONS) - FIRST)]
    changes, at = [], growth
    while (at := at + dice.uniform(0.5, 1.5) * options.churn_s) < options.seconds - options.churn_s:
        changes.append((at, "come" if len(changes) % 2 else dice.choice(["killed", "leaves"])))
    return dice, joins + changes


def disturb(swarm, options):
    """What the schedule says, each at its time."""
    dice, changes = schedule(options)
    began, pause = time.monotonic(), threading.Event()
    for at, what in changes:
        pause.wait(max(0.0, began + at - time.monotonic()))
        busy = {each.host for each in swarm.living()}
        if what in ("join", "come"):
            swarm.start(dice.choice([host for host in range(len(REGIONS)) if host not in busy]))
        else:
            members = [each for each in swarm.living()[1:] if each.said("joined")]
            provider = dice.choice(members)
            provider.end(what)
            swarm.note(what, provider)
    pause.wait(max(0.0, began + options.seconds - time.monotonic()))


# ── what came of it ──────────────────────────────────────────────────────────────────────────────────────────────────


def rounds_of(swarm):
    """By number: what the members of each said."""
    found = {}
    for provider in swarm.providers:
        for said in provider.said("round"):
            found.setdefault(said["round"], []).append(said)
    return dict(sorted(found.items()))


def shares_of(rounds):
    """By round: how much of its time its peers were in steps. The first one has the beginning of all in it."""
    return {
        number: statistics.mean(1 - each["waited_s"] / each["seconds"] for each in said)
        for number, said in rounds.items()
        if number > 1
    }


def report(swarm, sent_bytes, options):
    rounds, first = rounds_of(swarm), swarm.providers[0]
    shares, round_s = shares_of(rounds), options.every * options.step_s
    done = {each.number: each.said("done")[0] for each in swarm.living()}
    parameters = first.said("joined")[0]["parameters"]
    parallel = sum(2 * (said[0]["peers"] - 1) * 4 * parameters for said in rounds.values()) * options.every
    # The peer that came last has waited for no other: its reduction is what the network takes.
    network = [min(each["reduced_s"] for each in rounds[number]) for number in shares]
    whole = [shares[number] for number in shares if rounds[number][0]["peers"] == len(REGIONS)]
    losses = [said[0]["loss"] for said in rounds.values()]
    facts = {
        "peers": f"{FIRST} to {max(said[0]['peers'] for said in rounds.values())}",
        "rounds": len(rounds),
        "steps of a round": options.every,
        "seconds of a step": options.step_s,
        "utilisation, median of rounds": f"{statistics.median(shares.values()):.1%}",
        "of rounds with all 14": f"{statistics.median(whole):.1%}" if whole else "",
        "of all time, joins included": f"{statistics.mean(each['utilisation'] for each in done.values()):.1%}",
        "seconds of a reduction once all are there, median": round(statistics.median(network), 2),
        "utilisation if all were ready together": f"{statistics.median(round_s / (round_s + s) for s in network):.1%}",
        "MB that left all hosts": round(sent_bytes / 1e6, 1),
        "MB of data parallelism": round(parallel / 1e6, 1),
        "times fewer": round(parallel / sent_bytes),
        "loss, first and last round": f"{losses[0]:.2f}, {losses[-1]:.2f}",
        "validation loss at the end": round(done[0]["validation"], 3),
    }
    return facts | comings_and_goings(swarm, rounds, done), shares


def comings_and_goings(swarm, rounds, done):
    joined = [each.said("joined")[0]["seconds"] for each in swarm.providers if each.said("joined")]
    late = sum(each.said("round")[-1]["over"] for each in swarm.living())
    facts = {what: sum(each["what"] == what for each in swarm.events) for what in ("joins", "leaves", "killed")}
    return facts | {
        "seconds to join, median": round(statistics.median(joined), 1),
        "restarts of survivors": len(swarm.living()) - len(done) + sum(each["dropped"] for each in done.values()),
        "rounds in which digests differ": sum(len({each["digest"] for each in said}) > 1 for said in rounds.values()),
        "digests at the end": len({each["digest"] for each in done.values()}),
        "steps that took longer": f"{late} of {sum(each['steps'] for each in done.values())}",
        "load of this machine": round(os.getloadavg()[0], 1),
    }


def curves(swarm, shares, began):
    """By time: peers of each round, utilisation, loss."""
    found = {"peers": [], "utilisation": [], "loss": []}
    for number, said in rounds_of(swarm).items():
        at = max(each["at"] for each in said) - began
        found["peers"].append((at, said[0]["peers"]))
        found["loss"].append((at, said[0]["loss"]))
        if number in shares:
            found["utilisation"].append((at, 100 * shares[number]))
    return found


def main():
    from bench.intellect_plot import draw
    from bench.wanlab import Wan, WanLab

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--every", type=int, default=50, help="steps of a round")
    parser.add_argument("--step-s", type=float, default=0.4)
    parser.add_argument("--churn-s", type=float, default=40.0, help="from one change to the next, on average")
    parser.add_argument("--overlap", choices=["auto"], help="steps go on beside reductions; INTELLECT-1 had none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=ROOT / "build" / "intellect.svg")
    options = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench/intellect.py makes network namespaces, and only root may: run it with sudo")
    wan = Wan(len(REGIONS) + 1, NEAR_MS, RATE_MBIT, round_trips_ms=round_trips())
    with tempfile.TemporaryDirectory() as folder, WanLab(wan, "in") as lab:
        swarm = Swarm(lab, Path(folder), options)
        try:
            for host in (0, 5, 6, 10):
                swarm.start(host)
            swarm.until(lambda: all(each.said("joined") for each in swarm.living()), "the first members")
            before, began = sum(lab.sent_bytes), time.monotonic()
            disturb(swarm, options)
            swarm.end()
            facts, shares = report(swarm, sum(lab.sent_bytes) - before, options)
        finally:
            swarm.close()
        drawn = draw(curves(swarm, shares, began), [{**each, "at": each["at"] - began} for each in swarm.events])
    print(json.dumps({"bench": "intellect", **facts}))
    print("| | here | INTELLECT-1 |\n| --- | --- | --- |")
    for name, value in facts.items():
        print(f"| {name} | {value} | {THEIRS.get(name, '')} |")
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    options.plot.write_text(drawn)
    print(f"the plot is in {options.plot}")
    sys.exit(facts["restarts of survivors"] or facts["digests at the end"] != 1)


THEIRS = {
    "peers": "up to 14",
    "steps of a round": "100",
    "utilisation, median of rounds": "83 % (three continents) to 96 % (USA)",
    "times fewer": "400",
}
"""From arXiv 2412.01152: 10 billion parameters, int8."""


if __name__ == "__main__":
    main()
