"""A peer that trains, as a process: what it is told by arguments, what it does by lines of JSON."""

import json
import logging
import sys
import threading
import time

import torch

from pccl import Communicator, training
from tests.training import oracle


def say(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


class Lines(logging.Handler):
    """Warnings of the run, as events."""

    def emit(self, record):
        say("log", level=record.levelname, text=record.getMessage())


def merged(run):
    """The last round whose result is in the outer state; with overlap, peers merge it after steps of their own."""
    return run.metrics().get("merged_round")


def count_landed(run):
    """Steps made here that rounds have taken, whatever the library thinks of them: from the rows that all have."""
    counted, land = [0], run._meter.landed

    def landed(number, result, me):
        counted[0] += result.table.rows[result.table.peers.index(me)].steps
        land(number, result, me)

    run._meter.landed = landed
    return counted


def is_hurried(run):
    """Others have waited for this peer for longer than they should."""
    patience_s = run.settings.patience_s
    awaited = None if patience_s is None else run.communicator.awaited
    return awaited is not None and awaited.seconds >= patience_s


LENGTHS = [30, 0, 41, 7, 22, 50]
"""Of shards."""


def read(shard, offset):
    """Items of a shard, numbered through all shards."""
    return iter(range(sum(LENGTHS[:shard]) + offset, sum(LENGTHS[: shard + 1])))


def leased(run, kind):
    """Batches of numbers; what each committed round has used of each peer is said."""
    dataset = training.Shards(len(LENGTHS), read) if kind == "shards" else list(range(sum(LENGTHS)))
    landed = run.data.landed

    def say_and_land(number, table):
        rows = zip(table.peers, table.rows, strict=True)
        say("committed", round=number, taken={peer: row.taken for peer, row in rows})
        landed(number, table)

    run.data.landed = say_and_land
    return run.batches(dataset, 3, epochs=2)


def train_leased(run, batches, model, optimizer, told):
    """Slowly until all are there that shall share the data: on a busy machine they take long to come."""
    pause = threading.Event()
    for numbers in batches:
        say("took", round=run.round + 1, peer=run.communicator.peer_id, numbers=numbers.tolist())
        pause.wait(told["step_s"] if run.communicator.world_size >= told["peers"] else 0.1)
        oracle.inner_step(model, optimizer, told["number"], run.step)


def train_each(told):
    """One run after the other, in the modes that it was told; the digests of each after its rounds."""
    for mode, options in told["each"].items():
        model = oracle.make_model()
        optimizer, digests = oracle.make_optimizer(model), []
        with training.DiLoCo(told["address"], model, optimizer, min_peers=told["peers"], **options) as run:
            while run.round < told["rounds"]:
                at = run.round
                oracle.inner_step(model, optimizer, told["number"], run.step)
                if run.round != at:
                    digests.append(run.outer_digest())
        say("did", mode=mode, digests=[*digests, run.outer_digest()])


def main():
    told = json.loads(sys.argv[1])
    torch.set_num_threads(told.get("threads", 1))
    if "each" in told:
        train_each(told)
        return
    logging.getLogger("pccl.training").addHandler(Lines(logging.WARNING))
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model, told.get("lr", oracle.STEADY))
    pause, stop = threading.Event(), threading.Event()
    threading.Thread(target=lambda: sys.stdin.readline() and stop.set(), daemon=True).start()
    kind = getattr(training, told.get("kind", "DiLoCo"))
    place = Communicator(told["address"]) if told.get("own_communicator") else told["address"]
    run = kind(place, model, optimizer, **told.get("options", {}))
    checkpoint = told.get("checkpoint")
    if checkpoint:
        run.checkpoint(checkpoint, every=told.get("every", 1))
        run.resume(checkpoint)
    batches = leased(run, told["data"]) if "data" in told else None
    say("ready")
    counted, made = count_landed(run), 0
    with run:
        say("joined", round=run.round, peer=run.communicator.peer_id)
        last, at, late = merged(run), time.monotonic(), 0
        if batches is not None:
            train_leased(run, batches, model, optimizer, told)
            stop.set()
        while run.round < told["rounds"] and not stop.is_set():
            pause.wait(told.get("step_s", 0.0))
            round, hurried = run.round, is_hurried(run)
            oracle.inner_step(model, optimizer, told["number"], run.step)
            made += 1
            late += hurried and run.round == round
            if merged(run) != last:
                last, now = merged(run), time.monotonic()
                digest = run.outer_digest()
                metrics = run.metrics()
                facts = {key: metrics[key] for key in ("peers", "steps", "waited_for")}
                say("round", round=last, digest=digest, seconds=now - at, **facts)
                at = now
    outer = {name: each.tolist() for name, each in run.outer_parameters().items()} if told.get("outer") else None
    dropped = run.metrics()["dropped_rounds"]
    lost = made - counted[0] - run.round_step
    say("done", round=run.round, digest=run.outer_digest(), dropped=dropped, lost=lost, late=late, outer=outer)


if __name__ == "__main__":
    main()
