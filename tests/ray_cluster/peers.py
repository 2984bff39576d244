"""What a peer does in a worker or an actor of Ray: trains, and writes what each round was to a file of its own."""

import json
import os
import threading
from pathlib import Path

EVERY = 5


def train(told):
    """Until the file `stop` names a round that is over."""
    import torch

    from pccl.training import DiLoCo
    from tests.training import oracle

    torch.set_num_threads(1)
    folder, pause = Path(told["folder"]), threading.Event()
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    said = (folder / f"{told['kind']}-{os.getpid()}.jsonl").open("a", buffering=1)
    with said as file, DiLoCo(os.environ["PCCL_MASTER"], model, optimizer, sync_every=EVERY) as run:
        write(file, event="joined", round=run.round, kind=told["kind"])
        number, last = int(run.communicator.peer_id[:4], 16), None
        while not is_over(folder, run.round):
            pause.wait(0.01)
            oracle.inner_step(model, optimizer, number, run.step)
            metrics = run.metrics()
            if metrics.get("merged_round") != last:
                last = metrics["merged_round"]
                write(file, event="round", round=last, peers=metrics["peers"], digest=run.outer_digest())
        dropped = run.metrics()["dropped_rounds"]
        write(file, event="done", round=run.round, digest=run.outer_digest(), dropped=dropped)


def write(file, **facts):
    file.write(json.dumps(facts) + "\n")


def is_over(folder, number):
    stop = folder / "stop"
    return stop.exists() and number >= int(stop.read_text())


def train_as_worker(told):
    """What Ray Train calls."""
    train({**told, "kind": "worker"})
