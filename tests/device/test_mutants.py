"""A mover that forgets one of its waits gives wrong values here: so the tests of values are tests of order, too."""

import pytest
import torch

from pccl.dataplane.tensors import mover
from pccl.dataplane.tensors.mover import Mover, Portion

FORGOTTEN = ["_await_caller", "_await_filled", "_await_free", "_await_done"]
SLOT_BYTES = 4096
LENGTH = 5 * SLOT_BYTES


@pytest.fixture
def small(monkeypatch, ours):
    """Slots so small that each is used several times, and copies so slow that a forgotten wait shows."""
    monkeypatch.setattr(mover, "SLOT_BYTES", SLOT_BYTES)
    monkeypatch.setattr(mover, "SLOT_BYTES_MIN", SLOT_BYTES)
    ours.switch(copy_us=20_000)
    return Mover(ours.first)


def portions(array):
    return [Portion(array, begin, SLOT_BYTES // 2) for begin in range(0, LENGTH, SLOT_BYTES // 2)]


def values():
    return torch.arange(LENGTH // 4, dtype=torch.float32)


def there_and_back(moving, device):
    """Whether bytes that a queued kernel makes are read, and bytes of the host written, as they should be."""
    source, target = values().to(device.first), torch.zeros(LENGTH // 4, device=device.first)
    device.settle()
    device.sleep(60)
    device.scale(source, 2)
    after, seen = moving.mark(), bytearray(LENGTH)

    def take(number, content):
        begin = number * SLOT_BYTES // 2
        seen[begin : begin + len(content)] = content

    moving.read(portions(source), after, take)
    right = bytes(seen) == (2 * values()).numpy().tobytes()
    content = memoryview(values().numpy().tobytes())

    def give(number, room):
        begin = number * SLOT_BYTES // 2
        room[:] = content[begin : begin + len(room)]

    moving.write(portions(target), None, give)
    with torch.Stream(device.first):  # which waits for nothing that is queued elsewhere
        right = right and bool(torch.equal(target.cpu(), values()))
    device.settle()
    return right


def test_nothing_forgotten(small, ours):
    assert there_and_back(small, ours)


@pytest.mark.parametrize("forgotten", FORGOTTEN)
def test_a_forgotten_wait_is_found(small, ours, monkeypatch, forgotten):
    monkeypatch.setattr(Mover, forgotten, lambda self, what: None)
    assert not there_and_back(small, ours)
