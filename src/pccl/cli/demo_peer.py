"""One peer of the demo, in a process of its own: admits whoever waits, and tells each new epoch as a line of JSON.

Must not know the story that it is part of. Ends when its standard input says so, or ends.
"""

import json
import select
import sys

from pccl import Communicator, PCCLError

STEP_S = 0.05
"""Stands for a step of training."""


def tell(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def train(communicator: Communicator) -> None:
    """What every training script does between its steps, and nothing else."""
    epoch = 0
    while not select.select([sys.stdin], [], [], STEP_S)[0]:
        if communicator.epoch != epoch:
            epoch = communicator.epoch
            tell("epoch", epoch=epoch, size=len(communicator.ring))
        if communicator.are_peers_pending():
            communicator.update_topology()


def main() -> int:
    communicator = Communicator(sys.argv[1])
    try:
        communicator.connect()
        tell("accepted", peer=communicator.peer_id, rank=communicator.rank)
        train(communicator)
    except PCCLError as error:
        tell("failed", error=type(error).__name__, reason=str(error))
        return 1
    communicator.close()
    tell("left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
