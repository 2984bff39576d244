"""The providers of `bench/intellect.py`: processes forked from one that has imported torch, each on its own host.

Told by lines of JSON on standard input which to start; each writes what it does to a file of its own, in lines of JSON.
Must not know the schedule.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "examples"), str(ROOT)]

CLONE_NEWNET = 0x40000000
"""From linux/sched.h."""

BATCH, RATE = 2, 3e-3


class Teller:
    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, event, **facts):
        os.write(self._file, json.dumps({"event": event, "at": time.monotonic(), **facts}).encode() + b"\n")


def enter(namespace):
    """Be on another host: this process has one thread."""
    with open(f"/run/netns/{namespace}", "rb") as entry:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(entry.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")


def train(told, tell):
    """Until the file `stop` names a round that is over, or SIGTERM. Each step takes the stated time, however long this
    machine computes for it: peers share its processors, and must not share their slowness."""
    import torch
    from char_gpt import CharGPT, batch, text, validation_loss

    from pccl.training import DiLoCo

    model, (learn, valid) = CharGPT(), text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    chance, pause, last = torch.Generator().manual_seed(told["seed"]), threading.Event(), None
    parameters = sum(each.numel() for each in model.parameters())
    asked_at = time.monotonic()
    with DiLoCo(told["address"], model, optimizer, **told["options"]) as run:
        tell("joined", round=run.round, seconds=time.monotonic() - asked_at, parameters=parameters)
        due, made, over = time.monotonic(), 0, 0
        while not is_over(told, run):
            due = max(due + told["step_s"], time.monotonic())
            loss = model.loss(*batch(learn, BATCH, chance))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            run.note_loss(loss.item())
            over += time.monotonic() > due
            pause.wait(due - time.monotonic())
            optimizer.step()
            optimizer.zero_grad()
            made += 1
            metrics = run.metrics()
            if metrics.get("merged_round") != last:
                last, due = metrics["merged_round"], time.monotonic()
                names = ("peers", "seconds", "waited_s", "waited_for", "reduced_s", "bytes", "loss")
                tell(
                    "round", round=last, over=over, digest=run.outer_digest(), **{name: metrics[name] for name in names}
                )
        dropped, utilisation = run.metrics()["dropped_rounds"], run.metrics()["utilisation"]
    facts = {"dropped": dropped, "utilisation": utilisation, "digest": run.outer_digest(), "steps": made}
    tell("done", round=run.round, validation=validation_loss(model, valid) if told["first"] else None, **facts)


def is_over(told, run):
    stop = Path(told["stop"])
    return stop.exists() and run.round >= int(stop.read_text())


def be(told):
    """In the child."""
    os.close(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    tell = Teller(told["said"])
    try:
        tell("started", pid=os.getpid())
        enter(told["namespace"])
        train(told, tell)
    except SystemExit:
        tell("left")
    except BaseException:
        tell("failed", text=traceback.format_exc())
    os._exit(0)


def main():
    import torch
    import torch._dynamo  # the first optimizer would import it, in every child
    from char_gpt import text

    import pccl.training.diloco

    assert pccl.training.diloco
    assert text
    torch.set_num_threads(1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Children are not waited for: their files say how they ended.
    print("ready", flush=True)
    for line in sys.stdin:
        if os.fork() == 0:
            be(json.loads(line))


if __name__ == "__main__":
    main()
