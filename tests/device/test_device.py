"""The test device itself is what it claims: the host cannot touch its memory, and its streams run by themselves."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TOUCH = """
import ctypes, torch
from tests.device import hardware
device = hardware.find()
there = torch.ones(4, device=device.first)
print(there.sum().item(), flush=True)
ctypes.string_at(there.data_ptr(), 4)
"""


def test_host_access_ends_the_process(ours):
    done = subprocess.run([sys.executable, "-c", TOUCH], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "4.0\n"
    assert done.returncode == -signal.SIGSEGV


def test_kernels_run_after_the_call_and_in_order(ours):
    there = torch.zeros(3, device=ours.first)
    ours.hold()
    ours.scale(there, 0, 5)
    ran = torch.Event(ours.first)
    ran.record(torch.accelerator.current_stream(ours.first))
    assert not ran.query()
    ours.release()
    assert there.tolist() == [5, 5, 5]
    assert ran.query()


def test_a_kernel_takes_its_time(ours):
    began = time.monotonic()
    ours.sleep(100)
    ours.settle()
    assert time.monotonic() - began >= 0.1


def test_a_copy_that_does_not_wait_comes_later(ours):
    there, here = torch.full((3,), 2.0, device=ours.first), torch.zeros(3, pin_memory=True)
    ours.hold()
    here.copy_(there, non_blocking=True)
    assert here.tolist() == [0, 0, 0]
    done = torch.Event(ours.first)
    done.record(torch.accelerator.current_stream(ours.first))
    ours.release()
    done.synchronize()
    assert here.tolist() == [2, 2, 2]


def test_other_streams_do_not_wait_unless_they_are_told_to(ours):
    there, other = torch.zeros(3, device=ours.first), torch.Stream(ours.first)
    ours.hold()
    ours.scale(there, 0, 5)
    ran = torch.Event(ours.first)
    ran.record(torch.accelerator.current_stream(ours.first))
    with other:
        assert there.tolist() == [0, 0, 0]
        other.wait_event(ran)
        ours.release()
        assert there.tolist() == [5, 5, 5]


def test_copies_waits_and_memory_are_counted(ours):
    ours.reset()
    there = torch.ones(1 << 20, device=ours.first)
    assert ours.count("memory_peak") - ours.count("memory") in range(0, 5 << 20)
    before = ours.counts()
    here = torch.empty(1 << 20, pin_memory=True)
    here.copy_(there, non_blocking=True)
    ours.settle()
    after = ours.counts()
    assert after["bytes_out"] - before["bytes_out"] == 4 << 20
    assert after["copies_out"] - before["copies_out"] == 1
    assert after["waits"] == before["waits"]
    assert after["pinned"] - before["pinned"] == 4 << 20
    there.cpu()
    assert ours.count("waits") == before["waits"] + 1


@pytest.mark.parametrize("switch", ["no_pinning", "pinned_is_ours"])
def test_memory_of_the_host_may_not_be_what_it_should(ours, switch):
    ours.switch(**{switch: 1})
    if switch == "no_pinning":
        with pytest.raises(RuntimeError, match="no pinned memory"):
            torch.empty(4, pin_memory=True)
    else:
        assert torch.empty(4, pin_memory=True).device == ours.first
