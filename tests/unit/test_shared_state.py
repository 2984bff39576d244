"""Entries of a shared state: where they lie at each sync, and how long what they were made of is kept."""

import numpy as np
import pytest

from pccl import DataType, UsageError
from pccl.api.shared_state import SharedState, TensorInfo, hashed
from pccl.dataplane.state.digests import memory

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


def test_a_bare_address_is_what_it_was_made_of():
    values = np.arange(3, dtype=np.int64)
    state = SharedState([TensorInfo("w", values.ctypes.data, numel=3, dtype=DataType.INT64)])
    _, (entry,) = hashed(state)
    assert (entry.dtype, entry.count, entry.tensor.owner) == (DataType.INT64, 3, None)
    assert bytes(memory(entry.tensor)) == values.tobytes()
