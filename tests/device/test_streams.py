"""Order and time: what waits for the caller's kernels, what must not, and that each forgotten wait is found."""

import time

import pytest
import torch

from pccl import CollectiveTimedOut, MasterNode, PCCLError
from tests.device.conftest import succeed
from tests.e2e.test_api import connect_two

COUNT = 200_000


def test_the_input_is_what_the_callers_stream_makes_it(pair, device):
    for stream in (None, torch.Stream(device.first)):
        mine, theirs = torch.ones(COUNT, device=device.first), torch.ones(COUNT)
        device.settle()
        with stream or torch.accelerator.current_stream(device.first):
            device.sleep(50)
            device.scale(mine, 0, 5)
            work = pair[0].all_reduce(mine, async_op=True)
        pair[1].all_reduce(theirs)
        work.wait()
        assert theirs.eq(6).all()
        assert mine.cpu().eq(6).all()


@pytest.mark.parametrize("source", ["cpu", "first"])
def test_a_result_comes_after_what_the_callers_stream_had_at_the_launch(pair, device, source):
    """The kernel that fills `recv` was queued before: it must not come after the result."""
    where = device.second if source == "first" else device.first
    mine = torch.ones(COUNT, device=source if source == "cpu" else device.first)
    result, stream = torch.zeros(COUNT, device=where), torch.Stream(where)
    device.settle()
    with stream:
        device.sleep(150, where)
        device.scale(result, 0, -1)
        work = pair[0].all_reduce(mine, result, async_op=True)
    pair[1].all_reduce(torch.ones(COUNT))
    work.wait()
    assert result.cpu().eq(2).all()
    device.settle()
    assert result.cpu().eq(2).all()


def test_a_launch_does_not_wait_for_kernels(pair, device):
    mine = torch.ones(COUNT, device=device.first)
    device.settle()
    took = []
    for tag in range(3):  # one of three, for the machine may stand still at any time
        device.sleep(400)
        began = time.monotonic()
        work = pair[0].all_reduce(mine, async_op=True, tag=tag)
        took.append(time.monotonic() - began)
        pair[1].all_reduce(torch.ones(COUNT), tag=tag)
        work.wait()
    assert min(took) < 0.2, "it waited for what was queued before it"


def test_a_wait_does_not_wait_for_kernels_queued_after_the_launch(pair, device):
    if device.kind == "mps":
        pytest.skip("it has one stream")
    mine, theirs, more = (torch.ones(COUNT, device=device.first) for _ in range(3))
    device.settle()
    took = []
    for tag in range(3):
        began = time.monotonic()
        works = [c.all_reduce(t, async_op=True, tag=tag) for c, t in zip(pair, (mine, theirs), strict=True)]
        device.sleep(700)
        device.scale(more, 2)
        for work in works:
            work.wait()
        took.append(time.monotonic() - began)
        device.settle()
    assert min(took) < 0.5, "it waited for what was queued after it"


def test_a_later_launch_does_not_hold_up_an_earlier_one(pair, device):
    """The second one's input is not ready for long; the first one must be delivered meanwhile."""
    if device.kind == "mps":
        pytest.skip("it has one stream")
    first, second = (torch.ones(COUNT, device=device.first) for _ in range(2))
    device.settle()
    took = []
    for _ in range(3):
        began = time.monotonic()
        early = pair[0].all_reduce(first, async_op=True, tag=1)
        device.sleep(700)
        late = pair[0].all_reduce(second, async_op=True, tag=2)
        pair[1].all_reduce(torch.ones(COUNT), tag=1)
        early.wait()
        took.append(time.monotonic() - began)
        pair[1].all_reduce(torch.ones(COUNT), tag=2)
        late.wait()
    assert min(took) < 0.5


def test_all_streams_see_the_result_after_wait(pair, device):
    mine, other = torch.ones(COUNT, device=device.first), torch.Stream(device.first)
    succeed([lambda: pair[0].all_reduce(mine), lambda: pair[1].all_reduce(torch.ones(COUNT))])
    with other:
        assert mine.cpu().eq(2).all()


def test_time_that_ends_before_the_input_is_ready(pair, device):
    mine = torch.ones(COUNT, device=device.first)
    device.settle()
    device.sleep(150)
    with pytest.raises(CollectiveTimedOut, match=r"had not started after 0\.02 s"):
        pair[0].all_reduce(mine, timeout=0.02)
    succeed([lambda: pair[0].all_reduce(mine), lambda: pair[1].all_reduce(torch.ones(COUNT))])
    assert mine.cpu().eq(2).all()


def test_a_communicator_that_is_closed_before_the_input_is_ready(device):
    with MasterNode("127.0.0.1:0") as master:
        pair = connect_two(master)
        mine = torch.ones(COUNT, device=device.first)
        device.settle()
        device.sleep(150)
        work = pair[0].all_reduce(mine, async_op=True)
        pair[0].close()
        with pytest.raises(PCCLError):
            work.wait()
        assert mine.cpu().eq(1).all()
        pair[1].close()
