"""Entries of a shared state: where they lie at each sync, and how long what they were made of is kept."""

import weakref

import numpy as np
import pytest

from pccl import UsageError
from pccl.api.shared_state import SharedState, TensorInfo, hashed, keep
from pccl.dataplane.state.digests import memory
from pccl.dataplane.state.manifest import Holding
from tests.unit.devices import DeviceTensor

COUNT = 8 << 20
"""Elements: so much memory goes back to the kernel as soon as it is freed, and reading it is the end of the process."""


def parameter():
    torch = pytest.importorskip("torch")
    return torch, torch.nn.Parameter(torch.ones(COUNT))


def test_memory_that_a_parameter_leaves_stays_for_visitors_and_the_next_sync_looks_at_the_new():
    torch, weights = parameter()
    state = SharedState([TensorInfo.from_torch(weights, "w")])
    before, entries = hashed(state)
    weights.data = torch.full((COUNT,), 2.0)
    assert memory(entries[0].tensor)[:4].tobytes() == np.float32(1).tobytes()
    after, entries = hashed(state)
    assert entries[0].tensor.address == weights.data_ptr()
    assert after.content != before.content


@pytest.mark.parametrize("change", ["length", "type"])
def test_an_entry_that_became_another_is_refused_by_name(change):
    torch, weights = parameter()
    state = SharedState([TensorInfo.from_torch(weights, "w")])
    weights.data = torch.ones(3) if change == "length" else torch.ones(COUNT, dtype=torch.bfloat16)
    with pytest.raises(UsageError, match="'w' was made of 8388608 x FLOAT, and its tensor holds"):
        hashed(state)


def test_copies_of_a_device_go_before_new_ones_are_made(monkeypatch):
    made, most = weakref.WeakSet(), []
    device = DeviceTensor([1.0, 2.0])
    new_empty = device.new_empty

    def counted(*shape, **how):
        host = new_empty(*shape, **how)
        made.add(host)
        most.append(len(made))
        return host

    monkeypatch.setattr(device, "new_empty", counted)
    state = SharedState([TensorInfo.from_torch(device, "w")])
    for _ in range(3):
        manifest, entries = hashed(state)
        kept = keep(state, Holding(entries, manifest))
        del entries
    assert kept() is not None
    assert max(most) == 1


def test_what_was_pulled_goes_back_to_the_device():
    device = DeviceTensor([1.0, 2.0])
    state = SharedState([TensorInfo.from_torch(device, "w")])
    _, entries = hashed(state)
    memory(entries[0].tensor)[:] = memoryview(np.array([3.0, 4.0], np.float32)).cast("B")
    state.take()
    assert device.values.tolist() == [3.0, 4.0]
