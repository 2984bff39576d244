"""A peer in a process of its own whose tensors lie on the device, for a test that kills it: reduces without end, and
prints a line for each round."""

import itertools
import sys

from pccl import Communicator
from tests.device import hardware


def reduce_once(communicator, where):
    """One round of tensors whose sums tell how many peers they are of; that number."""
    tensors = [hardware.torch.full((400_000,), 1.0, device=where), hardware.torch.full((7,), 2.0, device=where)]
    size = communicator.all_reduce_many(tensors, retry=True).local_world_size
    assert tensors[0].cpu().eq(size).all()
    assert tensors[1].cpu().eq(2 * size).all()
    return size


def main(address):
    device = hardware.find()
    with Communicator(address) as communicator:
        for number in itertools.count():
            print(f"round {number} {reduce_once(communicator, device.first)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
