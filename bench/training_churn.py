"""What churn costs a training run: a kill or a join every few seconds, and the master killed and started again.

    python bench/training_churn.py [--modes plain auto streaming] [--faults peers master] [--seconds 300] [--every 10]
                                   [--peers 4]
    python bench/training_churn.py --modes plain --faults peers       # one mode, peers alone
    python bench/training_churn.py --modes plain --faults master      # the master alone, every 10 s

With both faults the master is killed once, in the middle; each time at a moment of a round that is drawn.

Real processes train the char-GPT of the examples; the same number of rounds is then made undisturbed, for its loss:
that may be done on a busy machine. One JSON line for each mode, and a table at the end: peers that ended by themselves,
inner steps of survivors that no round has taken, rounds in which outer states differed; the last loss beside the
undisturbed one, and beside that of the undisturbed run when its peers together had made as many steps; and by how much
longer than in the median round survivors waited after a SIGKILL, with a join, and with the restart of the master.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples"), str(ROOT)]

MODES = {
    "plain": {"sync_every": 20, "quantize": "int8"},
    "auto": {"sync_every": 20, "quantize": "int8", "overlap": "auto"},
    "streaming": {"sync_every": 20, "quantize": "int4", "fragments": 4, "overlap": 4},
}
RESTART_S = 0.5
"""From the death of the master to the start of the next one: what a supervisor takes."""

PATIENCE_S = 180.0
"""For what must come: above every bound that is measured."""

# ── a peer ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def tell(event, **facts):
    print(json.dumps({"event": event, "at": time.monotonic(), **facts}), flush=True)


def be_peer(told):
    """Train until the word comes, or for so many rounds; say what each round was."""
    import torch
    from char_gpt import CharGPT, batch, text

    from pccl.training import DiLoCo

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, (train, valid) = CharGPT(), text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    chance = torch.Generator().manual_seed(told["number"])
    stop = threading.Event()
    tell("ready")
    sys.stdin.readline()
    threading.Thread(target=lambda: sys.stdin.readline() and stop.set(), daemon=True).start()
    run = DiLoCo(told["address"], model, optimizer, **told["options"])
    made = counted = diverged = 0
    land, last = run._meter.landed, None

    def landed(number, result, me):
        nonlocal counted, diverged
        counted += result.table.rows[result.table.peers.index(me)].steps
        diverged += len(result.table.diverged()) > 0
        land(number, result, me)

    run._meter.landed = landed
    with run:
        tell("joined", round=run.round)
        while run.round < told["rounds"] and not (stop.is_set() and run.step % told["options"]["sync_every"] == 0):
            optimizer.zero_grad()
            model.loss(*batch(train, 8, chance)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            time.sleep(told["step_s"])
            optimizer.step()
            made += 1
            metrics = run.metrics()
            if metrics.get("merged_round") != last:
                last = metrics["merged_round"]
                taken = {name: metrics[name] for name in ("peers", "waited_s", "reduced_s")}
                tell("round", round=last, **taken, sync_bytes=metrics["sync_bytes"])
                if last == told.get("mark"):
                    tell("mark", loss=outer_loss(run, valid))
    dropped = run.metrics()["dropped_rounds"]
    facts = {"lost": made - counted, "dropped": dropped, "diverged": diverged, "digest": run.outer_digest()}
    tell("done", round=run.round, loss=outer_loss(run, valid), **facts)


def outer_loss(run, valid):
    """Of the outer parameters, which are the same on all peers."""
    from char_gpt import CharGPT, validation_loss

    model = CharGPT()
    for name, value in run.outer_parameters().items():
        dict(model.named_parameters())[name].data.copy_(value)
    return validation_loss(model, valid)


class Peer:
    """Such a process, and all that it has said."""

    def __init__(self, told):
        self.said, self.news, self.killed_at = [], threading.Condition(), None
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--peer", json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.news:
                self.said.append(json.loads(line))
                self.news.notify_all()

    def of(self, event):
        return [each for each in self.said if each["event"] == event]

    def await_event(self, event):
        """The first of these."""
        with self.news:
            ended = self.news.wait_for(lambda: self.of(event) or self.over, PATIENCE_S)
        if not ended or self.over:
            raise SystemExit(f"a peer that should say {event!r} says nothing more: {self.said[-1:]}")

    @property
    def over(self):
        return self.process.poll() is not None

    def kill(self):
        self.killed_at = time.monotonic()
        self.process.kill()

    def order(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def end(self, patience_s=PATIENCE_S):
        self.process.wait(patience_s)
        self._reader.join()


# ── a run ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Run:
    """A master and its peers."""

    def __init__(self, options, settings, rounds=10**9, mark=None):
        from tests.e2e.harness import MasterProcess

        self._new_master, self._count = MasterProcess, 0
        self.master = MasterProcess()
        self._told = {"address": self.master.address, "options": settings, "rounds": rounds, "mark": mark}
        self._told["step_s"] = options.step_s
        self.peers = [self._next() for _ in range(options.peers)]
        for word in ("ready", "joined"):
            for peer in self.peers:
                peer.await_event(word)
            for peer in self.peers if word == "ready" else ():
                peer.order("go")

    def _next(self):
        self._count += 1
        return Peer({**self._told, "number": self._count})

    def start(self):
        """One more; returns when it has joined."""
        peer = self._next()
        peer.await_event("ready")
        self.peers.append(peer)
        peer.order("go")
        peer.await_event("joined")
        return peer

    def living(self):
        return [peer for peer in self.peers if peer.killed_at is None and not peer.over]

    def restart_master(self):
        self.master.kill()
        time.sleep(RESTART_S)
        self.master = self._new_master(self.master.address)

    def end(self):
        for peer in self.living():
            peer.order("stop")
        for peer in self.peers:
            peer.end()
        self.master.end()


def disturb(run, options, dice):
    """Kills and joins by turns, the master once in the middle or, by itself, each time; what was done, and when."""
    done, began = [], time.monotonic()
    number, middle = 0, max(1, int(options.seconds / options.every) // 2)
    while time.monotonic() < began + options.seconds:
        time.sleep(max(0.0, began + (number + 1) * options.every - time.monotonic()))
        number += 1
        if "master" in options.faults and ("peers" not in options.faults or number == middle):
            time.sleep(dice.uniform(0.0, options.every / 2))  # Rounds are shorter: steps and reductions are both met.
            done.append(("master", time.monotonic()))
            run.restart_master()
        elif len(run.living()) >= options.peers:
            victim = dice.choice(run.living())
            victim.kill()
            done.append(("kill", victim.killed_at))
        else:
            done.append(("join", run.start().of("joined")[0]["at"]))
    return done


def delays(run, done, kind):
    """How much longer than in most rounds a survivor waited in the one in which this happened; of all the worst."""
    found = []
    for at in (at for each, at in done if each == kind):
        late = []
        for peer in run.peers:
            rounds = peer.of("round")
            hit = [after["waited_s"] for before, after in pairwise(rounds) if before["at"] <= at <= after["at"]]
            if hit and peer.killed_at is None:
                late.append(hit[0] - statistics.median(each["waited_s"] for each in rounds))
        if late:
            found.append(max(late))
    return found


def measure(mode, options):
    options = argparse.Namespace(**vars(options))
    run = Run(options, MODES[mode])
    done = disturb(run, options, random.Random(options.seed))
    run.end()
    ended = [peer for peer in run.peers if peer.killed_at is None]
    last = [peer.of("done")[-1] for peer in ended if peer.of("done")]
    most = max(each["round"] for each in last)
    facts = {"mode": mode, "rounds": most, **{kind: sum(each == kind for each, _ in done) for kind in KINDS}}
    facts["ended by themselves"] = len(ended) - len(last)
    facts["lost steps"] = sum(each["lost"] for each in last)
    facts["dropped rounds"] = sum(each["dropped"] for each in last)
    facts["rounds that differ"] = sum(each["diverged"] for each in last)
    facts["digests"] = len({each["digest"] for each in last if each["round"] == most})
    rounds = [each for peer in run.peers for each in peer.of("round")]
    facts["s a reduction, median"] = round(statistics.median(each["reduced_s"] for each in rounds), 3)
    facts["MB of a join's sync, beside what was prefetched"] = round(
        max(each["sync_bytes"] for each in rounds) / 1e6, 3
    )
    for kind in KINDS:
        late = delays(run, done, kind)
        if late:
            facts[f"{kind}: waited longer by s, median and worst"] = [
                round(statistics.median(late), 2),
                round(max(late), 2),
            ]
    print(json.dumps({"bench": "churn, disturbed", **facts}), flush=True)
    # Without pauses, except where it depends on their length with which delay a round is merged.
    options.step_s *= MODES[mode].get("overlap") == "auto"
    present = {each["round"]: each["peers"] for each in rounds}
    mark = min(most - 1, round(sum(present.values()) / options.peers))
    calm = Run(options, MODES[mode], rounds=most, mark=mark)
    for peer in calm.peers:
        peer.end(PATIENCE_S + 2 * options.seconds)
    calm.master.end()
    loss = statistics.mean(each["loss"] for each in last if each["round"] == most)
    facts["peers in a round, mean"] = round(statistics.mean(present.values()), 2)
    first = calm.peers[0]
    alike = {"undisturbed": first.of("done")[-1]["loss"], "of as many steps": first.of("mark")[-1]["loss"]}
    against = {f"against {name}": f"{100 * (loss / each - 1):+.1f} %" for name, each in alike.items()}
    return {**facts, "loss": loss, **alike, **against}


KINDS = ("kill", "join", "master")
FAULTS = ("peers", "master")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=MODES)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--step-s", type=float, default=0.05, help="a pause in each step: peers share this machine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peer", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        be_peer(options.peer)
        return
    found = []
    for mode in options.modes:
        found.append(measure(mode, options))
        print(json.dumps({"bench": "churn", **found[-1]}), flush=True)
    names = list(dict.fromkeys(key for each in found for key in each))
    print("| " + " | ".join(["", *(each["mode"] for each in found)]) + " |")
    print("| --- " * (1 + len(found)) + "|")
    for name in names[1:]:
        print("| " + " | ".join([name, *(str(each.get(name, "")) for each in found)]) + " |")


if __name__ == "__main__":
    main()
