"""Rules of collectives, and what breaking them says: refused before any vote, with the argument and the remedy."""

import array
import threading

import pytest

import pccl
from pccl import (
    CallMismatch,
    DataType,
    MasterNode,
    PCCLError,
    QuantizationOptions,
    ReduceOp,
    ReduceOperandDescriptor,
    Result,
    UnfinishedCollectives,
    UsageError,
)
from tests.e2e.pairs import WAIT_S, both, floats
from tests.e2e.test_api import connect_two, wait_until

NOTHING = QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.NONE)


@pytest.fixture
def master():
    with MasterNode("127.0.0.1:0", tags_max=8) as running:
        yield running


@pytest.fixture
def pair(master):
    both = connect_two(master)
    yield both
    for communicator in both:
        communicator.close()


def test_surplus_is_refused_before_the_vote_and_nobody_is_kicked(pair):
    one, other = pair
    works = [one.all_reduce(floats(1), tag=tag, async_op=True) for tag in range(7)]
    for call in (
        lambda: one.all_reduce_many([floats(1), array.array("q", [2])], tag=8),
        lambda: [one.all_reduce(floats(1), tag=tag, async_op=True) for tag in (20, 21)],
    ):
        with pytest.raises(
            UsageError, match=r"too many collectives: . in flight, . more, and the master allows 8 \(tags_max\)"
        ):
            call()
    for tag in (*range(7), 20):
        other.all_reduce(floats(1), tag=tag)
    for work in works:
        work.wait(WAIT_S)
    assert both(pair, lambda it: it.are_peers_pending()) == [False, False]


def test_update_topology_needs_collectives_to_be_finished(pair):
    one, other = pair
    work = one.all_reduce(floats(1), tag=3, async_op=True)
    with pytest.raises(UnfinishedCollectives, match="unfinished are those with tag 3") as raised:
        one.update_topology()
    assert raised.value.result == Result.PENDING_ASYNC_OPS
    other.all_reduce(floats(1), tag=3)
    work.wait(WAIT_S)
    assert both(pair, lambda it: it.update_topology()) == [None, None]


def test_nothing_is_launched_while_update_topology_waits(pair, master):
    one, other = pair
    voting = threading.Thread(target=one.update_topology)
    voting.start()
    wait_until(lambda: master.explain() != ())
    with pytest.raises(UsageError, match="launched while update_topology waits"):
        one.all_reduce(floats(1))
    with pytest.raises(UsageError, match="already waiting in another thread"):
        one.update_topology()
    other.update_topology()
    voting.join(WAIT_S)


def test_a_tag_and_memory_have_one_owner_at_a_time(pair):
    one, other = pair
    mine = floats(1, 2, 3, 4)
    work = one.all_reduce(mine, tag=1, async_op=True)
    with pytest.raises(UsageError, match="tag 1 is in flight; wait for it, or choose another tag") as raised:
        one.all_reduce(floats(1), tag=1)
    assert raised.value.result == Result.INVALID_ARGUMENT
    for wrong in (mine, memoryview(mine)[2:]):
        with pytest.raises(UsageError, match="tag 2 would work on memory that the collective with tag 1"):
            one.all_reduce(wrong, tag=2)
    with pytest.raises(UsageError, match="tag 1"):
        one.all_reduce_many([floats(1), array.array("q", [1])], tag=1)
    other.all_reduce(floats(1, 2, 3, 4), tag=1)
    work.wait(WAIT_S)

    # The same input may be read by several at a time.
    def twice(it):
        mine = floats(it is one)
        works = [it.all_reduce(mine, recv, tag=tag, async_op=True) for tag, recv in enumerate((floats(0), floats(0)))]
        return [work.wait(WAIT_S).local_world_size for work in works]

    assert both(pair, twice) == [[2, 2], [2, 2]]


def state():
    return pccl.SharedState([pccl.TensorInfo.from_numpy(floats(1), "weights")])


@pytest.mark.parametrize("data_plane", ["native", "reference"])
@pytest.mark.parametrize("tag", [2**56, 2**56 + 1, 2**58, 2**63 - 1])
def test_every_tag_of_63_bits_will_do(master, tag, data_plane):
    pair = connect_two(master, data_plane=data_plane)
    long = 40_000  # elements: too many to travel with the votes

    def call(it):
        tensors = [floats(1), floats(1) * long, *(array.array(kind, [2]) * long for kind in "dqf")]
        for alone in tensors[:2]:
            it.all_reduce(alone, tag=tag)
        it.all_reduce_many(tensors[2:], tag=tag)
        return [set(each) for each in tensors]

    assert both(pair, call) == [[{2}, {2}, {4}, {4}, {4}]] * 2
    for communicator in pair:
        communicator.close()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda it: it.all_reduce(floats(1), op="mean"), "all_reduce: op: it must be one of SUM, AVG, .* got MEAN"),
        (lambda it: it.all_reduce(floats(1), op=9), "all_reduce: op: it must be one of SUM, AVG, .* got 9"),
        (
            lambda it: it.all_reduce(floats(1), tag=-1),
            r"all_reduce: tag must be an integer from 0 to 2\^63 - 1, got -1",
        ),
        (lambda it: it.all_reduce(floats(1), tag=2**63), "all_reduce: tag must be .* got 9223372036854775808"),
        (lambda it: it.all_reduce(floats(1), floats(1, 2)), "send holds 1 x FLOAT, recv 2 x FLOAT; make them alike"),
        (
            lambda it: it.all_reduce(b"abc"),
            "all_reduce: send, which is written because there is no recv: this bytes is read-only",
        ),
        (
            lambda it: it.all_reduce(floats(1), quantization_options=QuantizationOptions(DataType.UINT32)),
            "quantization_options: MIN_MAX to UINT32 is not there; choose one of UINT8, UINT16",
        ),
        (
            lambda it: it.all_reduce(floats(1), operand_descriptor=ReduceOperandDescriptor(DataType.DOUBLE)),
            "operand_descriptor says DOUBLE, but the tensors hold FLOAT",
        ),
        (lambda it: it.all_reduce_many([]), "all_reduce_many: there is no tensor to reduce"),
        (
            lambda it: it.all_reduce_many([floats(1), [2.0]]),
            r"tensors\[1\]: it must be a tensor, got a list",
        ),
        (lambda it: it.all_reduce_many([floats(1)], tag="a"), "all_reduce_many: tag must be an integer"),
        (lambda it: it.all_reduce_multiple_with_retry([], max_in_flight=0), "max_in_flight must be at least 1, got 0"),
        (
            lambda it: it.all_reduce_multiple_with_retry([floats(1)]),
            "each descriptor must be a ReduceOpDescriptor, got an array; make it by ReduceOpDescriptor.from_torch",
        ),
        (
            lambda it: it.all_reduce(floats(1), quantization_options="UINT8"),
            'quantization_options must be a QuantizationOptions, got a str; or pass quantize="int8"',
        ),
        (
            lambda it: it.all_reduce_async(floats(1), quantization_options=QuantizationOptions("UINT8")),
            r"all_reduce_async: quantization_options: quantized_datatype must be a DataType \(UINT8, .* got 'UINT8'",
        ),
        (
            lambda it: it.all_reduce(floats(1), operand_descriptor=DataType.FLOAT),
            "operand_descriptor must be a ReduceOperandDescriptor, got a DataType",
        ),
        (
            lambda it: it.sync_shared_state({"weights": floats(1)}),
            r"sync_shared_state: shared_state must be a SharedState, got a dict; make one of named tensors: ",
        ),
        (
            lambda it: it.sync_shared_state(state(), "SEND_ONLY"),
            "strategy must be a SharedStateSyncStrategy .* 'SEND_ONLY'",
        ),
        (lambda it: it.sync_shared_state(state(), ReduceOp.AVG), "strategy must be a SharedStateSyncStrategy"),
        (lambda it: it.get_attribute("LOCAL_WORLD_SIZE"), "get_attribute: attribute must be an Attribute"),
        (lambda it: pccl.SharedState([floats(1)]), "each of tensors must be a TensorInfo, got an array; make each by"),
        (lambda it: pccl.SharedState({"weights": floats(1)}), "each of tensors must be a TensorInfo, got a str"),
        (lambda it: pccl.TensorInfo.from_numpy(floats(1), 5), "TensorInfo: name must be a str, got an int"),
        (lambda it: pccl.TensorInfo("w", 8, numel="3", dtype=DataType.FLOAT), "'w': numel must be an int, got a str"),
        (lambda it: pccl.TensorInfo("w", 8, numel=1, dtype="float"), "'w': dtype must be a DataType"),
    ],
)
def test_wrong_calls_are_refused_with_the_argument_and_the_remedy(pair, call, sentence):
    with pytest.raises(UsageError, match=sentence):
        call(pair[0])


def test_different_tensors_of_the_same_total_are_noticed(pair):
    def call(it):
        lengths = (1, 2) if it is pair[0] else (2, 1)
        return it.all_reduce_many([floats(*range(length)) for length in lengths])

    for error in both(pair, call):
        assert isinstance(error, CallMismatch)
        assert "the peers disagree on tag 0" in str(error)


def test_errors_are_those_of_pccl_too():
    with pytest.raises(PCCLError, match="launch failed with error: TOO_FEW_PEERS") as raised:
        PCCLError.check(5, "launch")
    assert raised.value.result is Result.TOO_FEW_PEERS
    PCCLError.check(0, "launch")
    assert PCCLError(Result.INVALID_USAGE, "f").result is Result.INVALID_USAGE
