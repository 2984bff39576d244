"""One transaction with coded floats, exact integers and a row of each peer; and the commit says if a peer waits."""

import threading

import numpy as np
import pytest

from pccl import CallMismatch, Communicator, DataType, ErrorFeedback, MasterNode, ReduceOp, ShareWork, UsageError
from pccl.api.transaction import Order, Part
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.tensors.buffers import buffers
from tests.e2e.pairs import both
from tests.e2e.test_api import address, connect_two, wait_until


@pytest.fixture
def master():
    with MasterNode("127.0.0.1:0") as running:
        yield running


@pytest.fixture
def pair(master):
    communicators = connect_two(master)
    yield communicators
    for communicator in communicators:
        communicator.close()


def test_integers_beside_coded_floats_are_exact(pair):
    def call(communicator):
        mine = pair.index(communicator)
        deltas, counts = np.full(1000, 1e-4, np.float32), np.array([4096 + mine, -(2**40)])
        communicator.all_reduce_many([deltas, counts], quantize="int8")
        return deltas, counts

    for deltas, counts in both(pair, call):
        assert counts.tolist() == [8193, -(2**41)]
        assert np.allclose(deltas, 2e-4, rtol=0.02)


def test_feedback_is_kept_for_the_floats_alone(pair):
    feedbacks = {id(each): ErrorFeedback("int4") for each in pair}

    def call(communicator):
        tensors = [np.linspace(0, 1, 500, dtype=np.float32), np.ones(3, np.int64)]
        for _ in range(2):
            communicator.all_reduce_many(tensors, quantize=feedbacks[id(communicator)])
        return tensors[1].tolist()

    assert both(pair, call) == [[4, 4, 4]] * 2
    assert [len(each.state_dict()["residuals"]) for each in feedbacks.values()] == [1, 1]


def test_integers_alone_are_still_refused_a_codec(pair):
    with pytest.raises(UsageError, match="must be floats"):
        pair[0].all_reduce_many([np.ones(3, np.int64), np.ones(4, np.int64)], quantize="int8")


@pytest.mark.parametrize("tensors", [1, 2])
def test_each_row_stands_beside_the_peer_that_brought_it(pair, tensors):
    def call(communicator):
        row = np.array([pair.index(communicator), 2**50 + 1])
        info = communicator.all_reduce_many(made(tensors), gather=row)
        return {peer: each.tolist() for peer, each in zip(info.peers, info.gathered, strict=True)}

    def made(count):
        return [np.ones(300, np.float32) for _ in range(count)]

    expected = {each.peer_id: [number, 2**50 + 1] for number, each in enumerate(pair)}
    assert both(pair, call) == [expected, expected]


def test_what_has_no_library_is_gathered_as_bytes(pair):
    def call(communicator):
        info = communicator.all_reduce_many([np.ones(3, np.float32)], gather=bytearray([pair.index(communicator), 7]))
        return dict(zip(info.peers, map(bytes, info.gathered), strict=True))

    expected = {each.peer_id: bytes([number, 7]) for number, each in enumerate(pair)}
    assert both(pair, call) == [expected, expected]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("other", [None, 3])
def test_a_peer_that_gathers_something_else_or_nothing_is_a_mismatch_at_the_vote(pair, count, other):
    """At both, though one of them waits in a part that the other has not called; and the next call goes well."""

    def call(communicator):
        length = 2 if communicator is pair[0] else other
        row = None if length is None else np.ones(length)
        with pytest.raises(CallMismatch) as raised:
            communicator.all_reduce_many([np.ones(3, np.float32) for _ in range(count)], gather=row, retry=True)
        return str(raised.value)

    for reason in both(pair, call):
        assert all(name in reason for name in ("ALL_GATHER 2 x", "ALL_GATHER 3 x") if other), reason
        assert other or ", with gather=;" in reason or reason.endswith(", with gather="), reason
    again = both(pair, lambda each: each.all_reduce_many([np.ones(3, np.float32)], gather=np.ones(1)).world_size)
    assert again == [2, 2]


def test_the_commit_says_alike_whether_a_peer_waits(master, pair):
    def call(communicator):
        return communicator.all_reduce_many([np.ones(3, np.float32)]).pending

    assert both(pair, call) == [False, False]
    with Later(address(master)) as waits:
        wait_until(lambda: both(pair, call) == [True, True])
        both(pair, lambda communicator: communicator.update_topology())
        waits.accepted()
        assert len(pair[0].ring) == 3


class Later:
    """A peer that joins in a thread of its own."""

    def __init__(self, place):
        self._communicator = Communicator(place)
        self._thread = threading.Thread(target=self._communicator.connect)

    def __enter__(self):
        self._thread.start()
        return self

    def accepted(self):
        self._thread.join()

    def __exit__(self, *_):
        self._communicator.close()


def test_what_has_ended_before_its_handle_is_made_has_its_shares(pair):
    """A transaction that has ended lets its parts go, and a short one ends while its launch returns."""

    class Ended:
        order = Order("all_gather", 0, ())

    spec = CollectiveSpec(2, DataType.INT64, ReduceOp.SUM)
    order = Order("all_gather", 0, [Part(0, spec, buffers(*[np.ones(2, np.int64)] * 2))])
    assert ShareWork(order, Ended(), None, None, pair[0].peer_id)._spec is spec
