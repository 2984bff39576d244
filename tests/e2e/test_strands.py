"""Large tensors of peers that have several threads: divided, with the same bits. Of deaths: `test_all_reduce.py`."""

import numpy as np
import pytest

from pccl import MasterNode
from tests.e2e.pairs import both
from tests.e2e.test_api import connect_two

COUNT = 4 << 20
"""16 MiB, so that each of two chunks has enough for eight threads."""


@pytest.fixture
def master():
    with MasterNode("127.0.0.1:0") as node:
        yield node


def reduced(master, threads, lanes=0, **call):
    """What two peers get that pass these settings; and their `ReduceInfo`."""
    pair = connect_two(master, lane_threads=threads, p2p_connection_pool_size=lanes)
    draw = np.random.default_rng(5)
    given = [draw.standard_normal(COUNT).astype(np.float32) for _ in pair]
    results = [np.zeros_like(array) for array in given]

    def reduce(communicator):
        place = pair.index(communicator)
        return communicator.all_reduce(given[place], results[place], **call)

    infos = both(pair, reduce)
    for communicator in pair:
        communicator.close()
    assert results[0].tobytes() == results[1].tobytes()
    return results[0], given, infos


@pytest.mark.parametrize("quantize", ["", "int8"])
def test_threads_bring_lanes_and_the_same_bits(master, quantize):
    call = {"quantize": quantize} if quantize else {}
    whole, given, infos = reduced(master, 1, **call)
    assert [info.lanes for info in infos] == [1, 1]
    if not quantize:
        assert np.array_equal(whole, given[0] + given[1])
    divided, _, infos = reduced(master, 3, **call)
    assert [info.lanes for info in infos] == [3, 3]
    assert divided.tobytes() == whole.tobytes()


def test_one_lane_that_was_asked_for_is_one(master):
    whole, given, infos = reduced(master, 8, lanes=1)
    assert [info.lanes for info in infos] == [1, 1]
    assert np.array_equal(whole, given[0] + given[1])
