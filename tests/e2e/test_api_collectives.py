"""What a user of collectives can rely on beside the numbers: handles, threads, and errors that say what to do."""

import array
import gc
import os
import threading

import pytest

import pccl
from pccl import (
    CallMismatch,
    Communicator,
    DataType,
    MasterLost,
    MasterNode,
    PCCLError,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    TooFewPeers,
    UnfinishedCollectives,
    UsageError,
)
from tests.e2e.test_api import address, connect_two, run_script, wait_until
from tests.patience import HANG_S

WAIT_S = HANG_S


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


def floats(*values):
    return array.array("f", values)


def both(pair, call):
    """The same call on both, at once; what each returned or raised."""
    told = [None, None]

    def make(number):
        try:
            told[number] = call(pair[number])
        except PCCLError as error:
            told[number] = error

    threads = [threading.Thread(target=make, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return told


# ── handles ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_wait_may_end_before_the_work_and_be_made_again(pair):
    one, other = pair
    mine, theirs = floats(1, 2), floats(3, 4)
    work = one.all_reduce(mine, async_op=True, tag=7)
    with pytest.raises(TimeoutError, match=r"all_reduce tag 7 is not finished after 0\.05 s.*wait again"):
        work.wait(0.05)
    assert not work.done()
    with pytest.raises(UsageError, match="result: all_reduce tag 7 is not finished"):
        work.result()
    other.all_reduce(theirs, tag=7)
    info = work.wait(WAIT_S)
    assert work.done()
    assert work.result() == work.wait() == info
    assert set(info.peers) == {one.peer_id, other.peer_id}
    assert list(mine) == list(theirs) == [4, 6]


def test_a_work_keeps_its_buffers_and_its_communicator(master):
    one, other = connect_two(master)
    work = one.all_reduce(floats(1), async_op=True)
    del one
    gc.collect()
    theirs = floats(2)
    other.all_reduce(theirs)
    assert list(theirs) == [3]
    work.wait(WAIT_S)
    del work
    gc.collect()
    wait_until(lambda: len(other.ring) == 1)
    other.close()


def test_a_work_that_nobody_holds_goes_on(pair):
    one, other = pair
    mine, theirs = floats(1), floats(2)
    one.all_reduce(mine, async_op=True)
    gc.collect()
    other.all_reduce(theirs)
    wait_until(lambda: list(mine) == [3])


def test_closing_ends_what_is_pending(pair):
    one, _ = pair
    mine, many = floats(1), [floats(2), array.array("q", [3])]
    works = [one.all_reduce(mine, async_op=True, tag=1), one.all_reduce_many(many, tag=2, async_op=True, retry=True)]
    handle = one.all_reduce_async(floats(5), tag=3)
    one.close()
    for work in works:
        with pytest.raises(UsageError, match="closed"):
            work.wait(WAIT_S)
    assert handle.wait()[:2] == (False, Result.INVALID_USAGE)
    assert (list(mine), list(many[0]), list(many[1])) == ([1], [2], [3])


def test_a_lost_master_ends_what_is_pending(master):
    one, _other = connect_two(master, master_timeout_s=0.5)
    mine = floats(1)
    work = one.all_reduce(mine, async_op=True, retry=True)
    master.interrupt()
    with pytest.raises(MasterLost):
        work.wait(WAIT_S)
    assert list(mine) == [1]
    with pytest.raises(MasterLost):
        one.all_reduce(mine)


def test_a_forked_child_has_no_part_in_a_work(pair):
    one, other = pair
    work = one.all_reduce(floats(1), async_op=True)
    child = os.fork()
    if child == 0:
        try:
            work.wait(WAIT_S)
        except UsageError:
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    other.all_reduce(floats(2))
    work.wait(WAIT_S)


# ── alone, or left alone ─────────────────────────────────────────────────────────────────────────────────────────────


def test_alone_every_form_says_so_at_once(master):
    with Communicator(address(master)) as alone:
        mine = floats(1)
        descriptor = ReduceDescriptor(1, ReduceOp.SUM, 0, ReduceOperandDescriptor(DataType.FLOAT), NOTHING)
        described = ReduceOpDescriptor.from_numpy(mine, mine, descriptor)
        for call in (
            lambda: alone.all_reduce(mine),
            lambda: alone.all_reduce(mine, async_op=True, retry=True),
            lambda: alone.all_reduce_async(mine, mine, op=ReduceOp.SUM),
            lambda: alone.all_reduce_many([mine, floats(2)]),
            lambda: alone.all_reduce_multiple_with_retry([described]),
        ):
            with pytest.raises(TooFewPeers, match="no other accepted peer; admit one with update_topology") as raised:
                call()
            assert raised.value.result == Result.TOO_FEW_PEERS
        assert alone.all_reduce_multiple_with_retry([]).local_world_size == 1


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_the_last_one_left_is_told(master, leave):
    one, other = connect_two(master)
    mine, many = floats(1), [floats(2), array.array("q", [3])]
    works = [
        one.all_reduce(mine, retry=True, async_op=True, tag=1),
        one.all_reduce_many(many, retry=True, async_op=True, tag=2),
    ]
    if leave == "close":
        other.close()
    del other
    gc.collect()
    for work in works:
        with pytest.raises(TooFewPeers):
            work.wait(WAIT_S)
    assert (list(mine), list(many[0]), list(many[1])) == ([1], [2], [3])
    one.close()


def test_the_loop_of_scripts_written_for_pccl_never_raises(master):
    """They read a size, launch, and wait. The others are lost at any time, also between the first two."""
    one, other = connect_two(master)
    size, mine = one.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE), floats(1)
    other.close()
    wait_until(lambda: len(one.ring) == 1)
    handles = [one.all_reduce_async(floats(1), tag=tag) for tag in range(1, 4)]
    said = []
    while size > 1:
        handle = handles.pop(0) if handles else one.all_reduce_async(mine, mine, op=ReduceOp.SUM)
        said.append(handle.wait())
        size = one.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE)
    (told,) = said
    assert size == 1
    assert told[:2] == (False, Result.TOO_FEW_PEERS)
    assert told[2].local_world_size == 1
    assert [handle.wait()[:2] for handle in handles] == [(False, Result.TOO_FEW_PEERS)] * 2
    assert list(mine) == [1]
    # Who was told to be alone and launches all the same is wrong, as in PCCL.
    with pytest.raises(TooFewPeers):
        one.all_reduce_async(mine, mine)
    one.close()


@pytest.mark.parametrize("reads", [False, True], ids=["reads no size", "reads the size"])
def test_a_launch_after_the_others_are_lost_gives_a_failed_handle_once(master, reads):
    """A script may read a size of one and launch all the same, since in PCCL sizes do not change between two calls."""
    one, other = connect_two(master)
    mine = floats(1)
    other.close()
    wait_until(lambda: len(one.ring) == 1)
    if reads:
        assert one.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) == 1
    assert one.all_reduce_async(mine, mine).wait()[:2] == (False, Result.TOO_FEW_PEERS)
    with pytest.raises(TooFewPeers):
        one.all_reduce_async(mine, mine)
    one.close()


# ── rules, and what breaking them says ───────────────────────────────────────────────────────────────────────────────

NOTHING = QuantizationOptions(algorithm=pccl.QuantizationAlgorithm.NONE)


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


# ── without numpy and torch ──────────────────────────────────────────────────────────────────────────────────────────

WITHOUT = """
import sys
sys.modules["numpy"] = sys.modules["torch"] = None  # as if they were not installed
import array, threading, pccl
one, other = pccl.Communicator(sys.argv[1]), pccl.Communicator(sys.argv[1])
one.connect()
joining = threading.Thread(target=other.connect)
joining.start()
while not one.are_peers_pending():
    pass
one.update_topology()
joining.join()
mine, theirs = array.array("d", [1, 2]), array.array("d", [3, 4])
work = one.all_reduce(mine, op="avg", async_op=True)
other.all_reduce(theirs, op="avg")
work.wait()
assert list(mine) == list(theirs) == [2, 3]
assert not hasattr(pccl, "torch") and not hasattr(pccl, "np")
import pccl.cuda
assert not pccl.cuda.is_available()
"""


def test_neither_numpy_nor_torch_is_needed(master):
    process = run_script(WITHOUT, address(master))
    assert (process.returncode, process.stderr) == (0, "")


def test_importing_loads_neither_numpy_nor_torch_nor_the_native_part():
    script = "import sys, pccl\nprint([m for m in ('numpy', 'torch', 'pccl._native') if m in sys.modules])"
    assert run_script(script).stdout.strip() == "[]"
