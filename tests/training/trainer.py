"""A peer that trains, as a process: what it is told by arguments, what it does by lines of JSON."""

import json
import logging
import sys
import threading
import time

import torch

from pccl import training
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


def main():
    told = json.loads(sys.argv[1])
    torch.set_num_threads(told.get("threads", 1))
    logging.getLogger("pccl.training").addHandler(Lines(logging.WARNING))
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    pause, stop = threading.Event(), threading.Event()
    threading.Thread(target=lambda: sys.stdin.readline() and stop.set(), daemon=True).start()
    kind = getattr(training, told.get("kind", "DiLoCo"))
    run = kind(told["address"], model, optimizer, **told.get("options", {}))
    checkpoint = told.get("checkpoint")
    if checkpoint:
        run.checkpoint(checkpoint)
        run.resume(checkpoint)
    say("ready")
    with run:
        say("joined", round=run.round, peer=run.communicator.peer_id)
        last, at = merged(run), time.monotonic()
        while run.round < told["rounds"] and not stop.is_set():
            pause.wait(told.get("step_s", 0.0))
            oracle.inner_step(model, optimizer, told["number"], run.step)
            if merged(run) != last:
                last, now = merged(run), time.monotonic()
                digest = run.outer_digest()
                say("round", round=last, digest=digest, peers=run.metrics()["peers"], seconds=now - at)
                at = now
    say("done", round=run.round, digest=run.outer_digest(), dropped=run.metrics()["dropped_rounds"])


if __name__ == "__main__":
    main()
