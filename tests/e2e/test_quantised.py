"""Quantised all-reduces as calls: equal bits on all peers, fewer bytes, feedback, and refusals that say why."""

import threading
from functools import partial

import numpy as np
import pytest
import torch

import pccl
from pccl import (
    CallMismatch,
    Codec,
    Communicator,
    DataType,
    ErrorFeedback,
    MasterNode,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    UsageError,
)
from pccl.codec import CODES
from tests.e2e.pairs import both
from tests.e2e.test_api import address, wait_until
from tests.patience import HANG_S

COUNT = 100_003
SMALL = 50
WAIT_S = HANG_S


@pytest.fixture(scope="module")
def master():
    with MasterNode("127.0.0.1:0") as running:
        yield running


@pytest.fixture(scope="module")
def pair(master):
    """One of each data plane."""
    made = [Communicator(address(master)), Communicator(address(master), data_plane="reference")]
    made[0].connect()
    joining = threading.Thread(target=made[1].connect)
    joining.start()
    wait_until(made[0].are_peers_pending)
    made[0].update_topology()
    joining.join(WAIT_S)
    yield made
    for communicator in made:
        communicator.close()


def shares(count, dtype=np.float32):
    return [np.random.default_rng(seed).standard_normal(count).astype(dtype) for seed in (1, 2)]


def reduce(pair, arrays, call):
    """Reduce these in place; what each call returned."""
    told = both(pair, lambda it: call(it, arrays[it is pair[1]]))
    for each in told:
        if isinstance(each, Exception):
            raise each
    return told


@pytest.mark.parametrize("count", [COUNT, SMALL])
@pytest.mark.parametrize("name", CODES)
def test_equal_bits_and_fewer_bytes(pair, name, count):
    arrays = shares(count)
    exact = arrays[0].astype(np.float64) + arrays[1]
    infos = reduce(pair, arrays, lambda it, array: it.all_reduce(array, quantize=name))
    assert arrays[0].tobytes() == arrays[1].tobytes()
    error = np.linalg.norm(arrays[0] - exact) / np.linalg.norm(exact)
    assert error < (0.3 if CODES[name].bits == 4 else 0.02)
    wire = Codec(name).coded_bytes(count, DataType.FLOAT)
    for info in infos:
        assert wire <= info.tx_bytes < wire * 1.02 + 40 * 8


@pytest.mark.parametrize("count", [COUNT, SMALL, 1])
@pytest.mark.parametrize("name", CODES)
def test_equal_values_are_exact(pair, name, count):
    """As a user of PCCL may expect it: 42 and 43 are 85."""
    arrays = [np.full(count, 42, np.float32), np.full(count, 43, np.float32)]
    reduce(pair, arrays, lambda it, array: it.all_reduce(array, quantize=Codec(name, stochastic=True)))
    assert np.all(arrays[0] == 85)
    assert np.all(arrays[1] == 85)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_tensors_of_torch(pair, dtype):
    arrays = [torch.from_numpy(array).to(getattr(torch, dtype)) for array in shares(5_000)]
    exact = arrays[0].double() + arrays[1].double()
    reduce(pair, arrays, lambda it, array: it.all_reduce(array, quantize=Codec("int8", 512, stochastic=True), op="avg"))
    assert torch.equal(arrays[0], arrays[1])
    assert (arrays[0].double() - exact / 2).abs().max() < 0.1


PCCL = [
    (QuantizationAlgorithm.MIN_MAX, DataType.UINT8),
    (QuantizationAlgorithm.MIN_MAX, DataType.UINT16),
    (QuantizationAlgorithm.ZERO_POINT_SCALE, DataType.UINT8),
    (QuantizationAlgorithm.ZERO_POINT_SCALE, DataType.INT8),
    (QuantizationAlgorithm.ZERO_POINT_SCALE, DataType.UINT16),
]


@pytest.mark.parametrize(("algorithm", "quantized"), PCCL)
def test_names_of_pccl(pair, algorithm, quantized):
    options = QuantizationOptions(quantized, algorithm)

    def described(it, array):
        operand = ReduceOperandDescriptor(DataType.FLOAT)
        descriptor = ReduceDescriptor(len(array), ReduceOp.SUM, 4, operand, options)
        return it.all_reduce_multiple_with_retry([ReduceOpDescriptor.from_numpy(array, array, descriptor)])

    def in_flight(it, array):
        ok, status, info = it.all_reduce_async(array, array, op=ReduceOp.SUM, quantization_options=options).wait()
        assert ok, status
        return info

    results = []
    for call in (described, in_flight, lambda it, array: it.all_reduce(array, quantization_options=options)):
        arrays = shares(COUNT)
        infos = reduce(pair, arrays, call)
        assert infos[0].tx_bytes < COUNT * 4 * 0.6
        assert arrays[0].tobytes() == arrays[1].tobytes()
        results.append(arrays[0].tobytes())
    assert len(set(results)) == 1, "each way is the same"


def test_many_tensors(pair):
    first, second = shares(COUNT), shares(300, np.float64)
    exact = [first[0] + first[1], second[0] + second[1]]
    lists = list(zip(first, second, strict=True))
    feedback = [ErrorFeedback("int8"), ErrorFeedback("int8")]
    infos = both(pair, lambda it: it.all_reduce_many(lists[it is pair[1]], quantize=feedback[it is pair[1]], tag=9))
    for got, wanted in zip(lists[0], exact, strict=True):
        np.testing.assert_allclose(got, wanted, atol=0.1)
    assert [a.tobytes() for a in lists[0]] == [a.tobytes() for a in lists[1]]
    assert infos[0].tx_bytes < COUNT * 1.1 + 600
    assert len(feedback[0].state_dict()["residuals"]) == 2


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_peers_that_choose_differently_are_told(pair):
    for one, other in (("int8", "int4"), ("int8", None), (Codec("int8", 512), "int8"), (Codec("int8", seed=1), "int8")):
        told = both(pair, lambda it, one=one, other=other: it.all_reduce(
            np.ones(COUNT, np.float32), quantize=other if it is pair[1] else one))  # fmt: skip
        if str(one) == "int8.256":  # a seed without random rounding makes no difference
            assert not any(isinstance(each, Exception) for each in told)
            continue
        assert all(isinstance(each, CallMismatch) for each in told), told
        assert "codec=" in str(told[0])


@pytest.mark.parametrize(
    ("arguments", "dtype", "sentence"),
    [
        ({"quantize": "int8"}, np.int32, "all_reduce: elements must be floats for codec int8, got INT32"),
        ({"quantize": "int8", "op": "prod"}, np.float32, "op must be SUM, AVG, MAX or MIN for codec int8, got PROD"),
        ({"quantize": "minmax16"}, np.float16, "elements must be longer than codes of minmax16, got FLOAT16"),
        ({"quantize": "int7"}, np.float32, "all_reduce: quantize: a codec must be one of int8, int4"),
        ({"quantize": ErrorFeedback("int4"), "op": "max"}, np.float32, "error feedback is for sums and averages"),
        (
            {"quantize": "int8", "quantization_options": QuantizationOptions()},
            np.float32,
            "pass quantize or quantization_options, not both",
        ),
        (
            {"quantization_options": QuantizationOptions(DataType.INT8)},
            np.float32,
            "MIN_MAX to INT8 is not there; choose one of UINT8, UINT16",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_moves(pair, arguments, dtype, sentence):
    with pytest.raises(UsageError, match=sentence):
        pair[0].all_reduce(np.ones(10, dtype), **arguments)


def test_integers_among_many_travel_exactly(pair):
    tensors = [[np.ones(3, np.float32), np.full(3, 2**40 + 1, np.int64)] for _ in pair]
    reduce(pair, tensors, lambda it, each: it.all_reduce_many(each, quantize="int8"))
    assert all(each[1].tolist() == [2**41 + 2] * 3 for each in tensors)


def test_what_is_refused_among_many_leaves_the_memory_free(pair):
    tensors = [np.ones(3, np.float32), np.ones(3, np.float32)]
    for _ in range(3):
        with pytest.raises(UsageError, match="op must be SUM, AVG, MAX or MIN for codec int8, got PROD"):
            pair[0].all_reduce_many(tensors, quantize="int8", op="prod")


# ── feedback ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [COUNT, SMALL])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_feedback_makes_good_what_was_lost(pair, op, count):
    """The same contributions again and again: the mean of results comes near with feedback, and stays off without."""
    given, rounds = shares(count), 12
    exact = (given[0].astype(np.float64) + given[1]) / (2 if op == "avg" else 1)
    off = {}
    for kind in ("plain", "feedback"):
        ways = [ErrorFeedback("int4") if kind == "feedback" else "int4" for _ in pair]
        total = np.zeros(count)
        for _ in range(rounds):
            arrays = [array.copy() for array in given]
            reduce(pair, arrays, lambda it, array, ways=ways: it.all_reduce(
                array, quantize=ways[it is pair[1]], op=op, tag=count))  # fmt: skip
            assert arrays[0].tobytes() == arrays[1].tobytes()
            total += arrays[0]
        off[kind] = np.abs(total / rounds - exact).mean()
    assert off["feedback"] < off["plain"] / 5


@pytest.mark.parametrize("count", [SMALL, COUNT])
def test_random_rounding_of_the_same_values_differs_from_round_to_round(pair, count):
    """Also in an exchange, which is coded before it has a number: else averages over rounds would gain nothing."""
    rounds, given = 16, shares(count)[0]
    results = []
    for _ in range(rounds):
        arrays = [given.copy(), given.copy()]
        reduce(pair, arrays, lambda it, array: it.all_reduce(array, op="avg", quantize=Codec("int4", stochastic=True)))
        assert arrays[0].tobytes() == arrays[1].tobytes()
        results.append(arrays[0])
    off = [np.abs(each - given).mean() for each in (results[0], np.mean(results, axis=0))]
    assert off[1] < off[0] / 2


def test_feedback_is_untouched_by_what_is_not_committed(pair):
    """Of all the ways to fail, one whose run had begun is in `test_kills.py`; here the other peer disagrees."""
    feedback = [ErrorFeedback("int4"), ErrorFeedback("int4")]
    arrays = shares(COUNT)
    reduce(pair, arrays, lambda it, array: it.all_reduce(array, quantize=feedback[it is pair[1]], tag=3))
    kept = feedback[0].state_dict()["residuals"][3].tobytes()
    assert np.abs(np.frombuffer(kept, np.float32)).max() > 0
    told = both(pair, lambda it: it.all_reduce(
        np.ones(COUNT, np.float32), quantize=feedback[0] if it is pair[0] else "int8", tag=3))  # fmt: skip
    assert all(isinstance(each, CallMismatch) for each in told)
    assert feedback[0].state_dict()["residuals"][3].tobytes() == kept


def test_feedback_can_be_saved_and_loaded(pair):
    def play(interrupted):
        feedback = [ErrorFeedback("int4"), ErrorFeedback("int4")]
        results = []
        for step in range(4):
            if step == 2 and interrupted:
                states = [each.state_dict() for each in feedback]
                feedback = [ErrorFeedback(Codec("int4")), ErrorFeedback("int4")]
                for each, state in zip(feedback, states, strict=True):
                    each.load_state_dict(state)
            arrays = shares(3_000, np.float64)
            reduce(pair, arrays, lambda it, array, ways=feedback: it.all_reduce(array, quantize=ways[it is pair[1]]))
            results.append(arrays[0].tobytes())
        return results

    assert play(False) == play(True)
    with pytest.raises(UsageError, match=r"the state must be of codec 'int8\.256', got 'int4\.256'"):
        ErrorFeedback("int8").load_state_dict(ErrorFeedback("int4").state_dict())


def test_feedback_of_another_tensor_is_refused(pair):
    feedback = ErrorFeedback("int8")
    feedback.lend(5, 100, DataType.FLOAT)
    feedback.keep(5)
    with pytest.raises(
        UsageError, match=r"tag 5 must need residuals of 100 x FLOAT.*, got .* 3 x FLOAT.*reset that tag"
    ):
        pair[0].all_reduce(np.ones(3, np.float32), quantize=feedback, tag=5)
    feedback.reset(5)
    assert feedback.state_dict()["residuals"] == {}


def test_names_are_public():
    assert {"Codec", "ErrorFeedback"} <= set(pccl.__all__)
    assert partial(ErrorFeedback, "int8")().codec == Codec("int8")
