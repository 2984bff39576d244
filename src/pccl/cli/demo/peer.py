"""One peer of the demo, in a process of its own: trains with the others, and prints each step as a line of JSON.

Must not know the story that it is part of. Ends, together with all others, when its standard input says so, or ends.
"""

import json
import random
import select
import sys
import time
from array import array
from contextlib import suppress

from pccl import Communicator, PCCLError, Retryable, SharedStateSyncInfo, TooFewPeers
from pccl.cli.demo.model import Model

THOUGHT_S = 0.01
"""Stands for a larger model: without it, two hundred steps would be over before a person has read the first line."""

SYNC_ATTEMPTS = 5
"""A sync fails when the only holder of a state dies in it; five such deaths in a row are no accident."""


def tell(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def synced(communicator: Communicator, model: Model) -> SharedStateSyncInfo:
    """From here on this peer holds what all others hold."""
    for _ in range(SYNC_ATTEMPTS - 1):
        try:
            return communicator.sync_shared_state(model.state)
        except Retryable:
            continue
    return communicator.sync_shared_state(model.state)


def train(communicator: Communicator, model: Model) -> None:
    """What a training script does; the newcomer's first call is the sync, for that is where the others are."""
    newcomer, told_to_end, began = True, False, time.monotonic()
    while True:
        if not newcomer and communicator.are_peers_pending():
            communicator.update_topology()
        info = synced(communicator, model)
        if newcomer:
            tell("synced", revision=model.state.revision, loss=model.loss(), received_bytes=info.rx_bytes)
        newcomer = False
        gradient = model.gradient(random.Random(f"{communicator.peer_id} {model.state.revision}"))
        # All must end after the same step: who was told to end tells the others along with its gradient.
        told_to_end = told_to_end or bool(select.select([sys.stdin], [], [], THOUGHT_S)[0])
        averaged = array("d", [*gradient, float(told_to_end)])
        with suppress(TooFewPeers):  # Alone: its own gradient will do.
            communicator.all_reduce(averaged, op="avg", retry=True)
        model.step(averaged[:-1])
        now = time.monotonic()
        facts = {"revision": model.state.revision, "loss": model.loss(), "size": len(communicator.ring)}
        tell("step", **facts, took_s=now - began)
        began = now
        if averaged[-1] > 0.0:
            return


def main() -> int:
    communicator = Communicator(sys.argv[1])
    model = Model(random.Random())
    try:
        communicator.connect()
        tell("accepted", peer=communicator.peer_id, loss=model.loss())
        train(communicator, model)
    except PCCLError as error:
        tell("failed", error=type(error).__name__, reason=str(error))
        return 1
    tell("ended", digest=model.digest(), loss=model.loss())
    communicator.close()
    tell("left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
