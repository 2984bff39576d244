"""How a peer's process ends: with a goodbye if there is time for one, and never late."""

import array
import signal
import time

import pytest

from pccl import Communicator, MasterNode, TooFewPeers
from tests.e2e.harness import PATIENCE_S, MasterProcess, Process
from tests.e2e.test_api import address, run_script, wait_until

PEER = """
import array, os, signal, sys, threading, time, pccl
c = pccl.Communicator(sys.argv[1])
"""
READY = "c.connect()\nprint('ready', flush=True)\n"
WAIT = "threading.Event().wait()\n"
WORK = "w = c.all_reduce(array.array('f', [1.0]), tag=4, async_op=True, retry=True)\n"


@pytest.fixture
def master():
    with MasterNode("127.0.0.1:0") as running:
        yield running


@pytest.fixture
def first(master):
    with Communicator(address(master)) as communicator:
        yield communicator


@pytest.fixture
def second(master, first):
    """Starts a script as second peer and admits it."""
    started = []

    def start(script):
        process = Process("-c", script, address(master))
        started.append(process)
        wait_until(first.are_peers_pending)
        first.update_topology()
        assert process.line() == "ready"
        return process

    yield start
    for process in started:
        process.end()


def test_sigterm_ends_it_with_a_goodbye(second, first, caplog):
    process = second(PEER + READY + WAIT)
    process.signal(signal.SIGTERM)
    assert process.process.wait(PATIENCE_S) == -signal.SIGTERM, "as its supervisor expects"
    wait_until(lambda: "it said goodbye" in caplog.text)


def test_sigterm_hands_a_running_collective_back(second, first):
    process = second(PEER + READY + WORK + "print('voted', flush=True)\nw.wait()\n")
    process.line()
    process.signal(signal.SIGTERM)
    assert process.process.wait(PATIENCE_S) == -signal.SIGTERM
    with pytest.raises(TooFewPeers):
        first.all_reduce(bytearray(4), tag=4, retry=True)


def test_ctrl_c_gives_up_the_wait_and_not_the_collective(second, first, master):
    script = "try:\n    print('voting')\n    c.all_reduce(x)\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    script += "while list(x) != [3.0]:\n    time.sleep(0.01)\nprint('reduced')\n"
    process = second(PEER + "x = array.array('f', [1.0])\n" + READY + script)
    assert process.line() == "voting"
    wait_until(lambda: any("collective tag 0" in reason for reason in master.explain()))
    process.signal(signal.SIGINT)
    assert process.line() == "interrupted"
    first.all_reduce(array.array("f", [2.0]))
    assert process.line() == "reduced"


def test_a_handler_of_the_user_stays(second, first, caplog):
    process = second(PEER + "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n" + READY + WAIT)
    process.signal(signal.SIGTERM)
    assert process.process.wait(PATIENCE_S) == 7
    wait_until(lambda: "is gone" in caplog.text)
    assert "it said goodbye" not in caplog.text


def test_it_can_be_switched_off(second, first, caplog):
    process = second(PEER.replace("sys.argv[1])", "sys.argv[1], sigterm=False)") + READY + WAIT)
    process.signal(signal.SIGTERM)
    assert process.process.wait(PATIENCE_S) == -signal.SIGTERM
    wait_until(lambda: "is gone" in caplog.text)
    assert "it said goodbye" not in caplog.text


def test_connecting_in_another_thread_sets_no_handler(master):
    script = PEER + "t = threading.Thread(target=c.connect)\nt.start()\nt.join()\n"
    script += "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
    process = run_script(script, address(master))
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("end", ["SIGTERM", "the end of its script", "an exception"])
def test_a_stopped_master_delays_no_end(end):
    """Frozen with the connection open, and a collective under way: it answers nothing."""
    master = MasterProcess()
    first = Communicator(master.address)
    first.connect()
    ends = {"SIGTERM": WAIT, "an exception": "raise SystemExit(5)\n", "the end of its script": ""}
    script = PEER + READY + WORK + "print('voted', flush=True)\nsys.stdin.readline()\n" + ends[end]
    process = Process("-c", script, master.address)
    try:
        wait_until(first.are_peers_pending)
        first.update_topology()
        assert [process.line(), process.line()] == ["ready", "voted"]
        master.stop()
        began = time.monotonic()
        process.process.stdin.write("\n")
        process.process.stdin.flush()
        if end == "SIGTERM":
            process.signal(signal.SIGTERM)
        expected = {"SIGTERM": -signal.SIGTERM, "an exception": 5}.get(end, 0)
        assert process.process.wait(PATIENCE_S) == expected
        assert time.monotonic() - began < 8.0
    finally:
        process.end()
        master.end()
        first.close()


def test_a_dropped_communicator_of_a_stopped_master_hangs_nothing():
    master = MasterProcess()
    script = PEER + READY + "sys.stdin.readline()\nbegan = time.monotonic()\ndel c\n"
    script += "assert time.monotonic() - began < 0.5\nprint('dropped', flush=True)\n"
    process = Process("-c", script, master.address)
    try:
        assert process.line() == "ready"
        master.stop()
        process.process.stdin.write("\n")
        process.process.stdin.flush()
        assert process.line() == "dropped"
        assert process.process.wait(PATIENCE_S) == 0
    finally:
        process.end()
        master.end()
