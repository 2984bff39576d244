"""What a user of collectives can rely on beside the numbers: handles, threads, and errors that say what to do."""

import array
import gc
import os

import pytest

import pccl
from pccl import (
    Communicator,
    DataType,
    MasterLost,
    MasterNode,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    TooFewPeers,
    UsageError,
)
from tests.e2e.pairs import WAIT_S, floats
from tests.e2e.test_api import address, connect_two, run_script, wait_until

# ── handles ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        operand, exact = ReduceOperandDescriptor(DataType.FLOAT), pccl.QuantizationOptions()
        descriptor = ReduceDescriptor(1, ReduceOp.SUM, 0, operand, exact)
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
