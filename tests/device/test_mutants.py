"""A mover that forgets one of its waits gives wrong values: so the tests of values are tests of order, too.

Each wait is forgotten in turn, while what it should wait for is held: not by a sleep, which may be over, but until the
copies that came too early have been made."""

import threading

import pytest
import torch

from pccl.dataplane.tensors import mover
from pccl.dataplane.tensors.mover import Mover, Portion

SLOT_BYTES = 4096
LENGTH = 5 * SLOT_BYTES
"""Each slot is used several times."""


@pytest.fixture
def moving(monkeypatch, ours):
    monkeypatch.setattr(mover, "SLOT_BYTES", SLOT_BYTES)
    monkeypatch.setattr(mover, "SLOT_BYTES_MIN", SLOT_BYTES)
    return Mover(ours.first)


@pytest.fixture
def forget(monkeypatch):
    """One of its waits is over before it begins; `instead` happens there."""

    def forgotten(wait, instead=lambda: None):
        monkeypatch.setattr(Mover, wait, lambda self, what: instead())

    return forgotten


def values(length=LENGTH):
    return torch.arange(length // 4, dtype=torch.float32)


def portions(array):
    nbytes = array.numel() * 4
    return [Portion(array, begin, SLOT_BYTES // 2) for begin in range(0, nbytes, SLOT_BYTES // 2)]


def read(moving, source, after=None):
    seen = bytearray(source.numel() * 4)

    def take(number, content):
        begin = number * SLOT_BYTES // 2
        seen[begin : begin + len(content)] = content

    moving.read(portions(source), after, take)
    return torch.frombuffer(seen, dtype=torch.float32)


def write(moving, target):
    content = memoryview(values(target.numel() * 4).numpy().tobytes())

    def give(number, room):
        begin = number * SLOT_BYTES // 2
        room[:] = content[begin : begin + len(room)]

    moving.write(portions(target), None, give)


def seen_elsewhere(target):
    """As a stream sees it that waits for nothing."""
    with torch.Stream(target.device):
        return target.cpu()


def made_later(ours, moving):
    """A tensor that a kernel doubles as soon as it is released, and the mark behind that kernel."""
    source = values().to(ours.first)
    ours.settle()
    ours.hold()
    ours.scale(source, 2)
    return source, moving.mark()


def test_nothing_is_forgotten(moving, ours):
    ours.switch(copy_us=5000)
    source, after = made_later(ours, moving)
    releasing = threading.Timer(0.05, ours.release)
    releasing.start()
    assert torch.equal(read(moving, source, after), 2 * values())
    releasing.join()
    target = torch.zeros(LENGTH // 4, device=ours.first)
    write(moving, target)
    assert torch.equal(seen_elsewhere(target), values())


def test_the_callers_stream_is_not_waited_for(moving, ours, forget):
    forget("_await_caller")
    source, after = made_later(ours, moving)
    assert torch.equal(read(moving, source, after), values()), "of before the kernel"
    ours.release()


def hold_copies(moving, ours):
    """Copies of the mover wait until they are released."""
    with moving._stream:
        ours.hold()


def test_a_slot_is_read_before_its_event(moving, ours, forget):
    source = values().to(ours.first)
    ours.settle()
    read(moving, torch.zeros(LENGTH // 4, device=ours.first))
    forget("_await_filled")
    hold_copies(moving, ours)
    assert not torch.equal(read(moving, source), values())
    ours.release()


def test_a_slot_is_used_again_before_its_event(moving, ours, forget):
    target = torch.zeros(LENGTH // 4, device=ours.first)
    ours.settle()
    forget("_await_free")
    forget("_await_done", lambda: (ours.release(), ours.settle()))
    hold_copies(moving, ours)
    write(moving, target)
    assert not torch.equal(target.cpu(), values())


def test_a_result_is_given_out_before_it_is_there(moving, ours, forget):
    target = torch.zeros(SLOT_BYTES // 4, device=ours.first)
    ours.settle()
    forget("_await_done")
    hold_copies(moving, ours)
    write(moving, target)
    assert not torch.equal(seen_elsewhere(target), values(SLOT_BYTES))
    ours.release()
