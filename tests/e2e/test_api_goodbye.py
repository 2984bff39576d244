"""How a peer's process ends: with a goodbye if there is time for one, and never late."""

import array
import signal
import subprocess
import sys
import time

import pytest

from pccl import Communicator, MasterNode, TooFewPeers
from tests.e2e.harness import PATIENCE_S, MasterProcess, Process
from tests.e2e.test_api import address, environment, run_script, wait_until
from tests.patience import allow

PEER = """
import array, os, signal, sys, threading, time, pccl
from tests.patience import allow
c = pccl.Communicator(sys.argv[1])
"""
READY = "c.connect()\nprint('ready', flush=True)\n"
WAIT = "threading.Event().wait()\n"
WORK = "w = c.all_reduce(array.array('f', [1.0]), tag=4, async_op=True, retry=True)\n"


LOCAL = """
import array, sys, pccl
def main():
    c = pccl.Communicator(sys.argv[1])
    c.connect()
    c.all_reduce(array.array('f', [1.0]))
main()
"""
CALL_IN_C = """
import ctypes
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
libc.pthread_mutex_init(mutex, None)
libc.pthread_mutex_lock(mutex)
print('in the call', flush=True)
libc.pthread_mutex_lock(mutex)
"""
"""Returns for no signal, and lets go of Python's lock."""
ENDS = 20


@pytest.fixture(autouse=True)
def news(caplog):
    """A goodbye is news, not a warning."""
    caplog.set_level("INFO", "pccl")


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
    script += "while list(x) != [3.0]:\n    time.sleep(0.01)\nprint('reduced')\n" + WAIT
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


def test_a_communicator_that_only_main_holds_says_goodbye_every_time(master, first, caplog):
    """It is collected when main returns, a moment before the process ends."""
    for end in range(1, ENDS + 1):
        script = [sys.executable, "-W", "error", "-c", LOCAL, address(master)]
        with subprocess.Popen(script, env=environment(), stderr=subprocess.PIPE, text=True) as process:
            wait_until(first.are_peers_pending)
            first.update_topology()
            first.all_reduce(array.array("f", [1.0]))
            _, errors = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, errors) == (0, "")
        wait_until(lambda: len(first.ring) == 1)
        told = [record.getMessage() for record in caplog.records if record.name == "pccl.master"]
        assert sum("it said goodbye" in line for line in told) == end


def test_sigterm_ends_it_with_a_goodbye_while_its_main_thread_is_in_a_call_of_c(second, first, caplog):
    process = second(PEER + READY + CALL_IN_C)
    assert process.line() == "in the call"
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.process.wait(PATIENCE_S) == -signal.SIGTERM
    assert time.monotonic() - began < allow(8.0)
    wait_until(lambda: "it said goodbye" in caplog.text)


@pytest.mark.parametrize("handler", ["its own", "its own, which calls ours"])
def test_a_handler_that_was_set_after_connect_is_what_sigterm_runs(second, first, caplog, handler):
    """Although the signal wakes our thread first: the handler finds the membership as it was."""
    script = PEER + READY + "ours = signal.getsignal(signal.SIGTERM)\n"
    script += (
        "def own(number, frame):\n    print('handled', flush=True)\n    c.all_reduce(array.array('f', [1.0]))\n    "
    )
    script += {"its own": "os._exit(7)\n", "its own, which calls ours": "ours(number, frame)\n"}[handler]
    script += "signal.signal(signal.SIGTERM, own)\nprint('set', flush=True)\n"
    process = second(script + WAIT)
    assert process.line() == "set"
    process.signal(signal.SIGTERM)
    assert process.line() == "handled"
    values = array.array("f", [2.0])
    first.all_reduce(values)
    assert list(values) == [3.0]
    assert process.process.wait(PATIENCE_S) == (7 if handler == "its own" else -signal.SIGTERM)
    wait_until(lambda: len(first.ring) == 1)
    assert ("it said goodbye" in caplog.text) == (handler != "its own")


def test_a_program_that_uses_the_wakeup_descriptor_keeps_it(second, first, caplog):
    script = "r, w = os.pipe()\nos.set_blocking(w, False)\nsignal.set_wakeup_fd(w)\n"
    process = second(PEER + script + READY + "print(signal.set_wakeup_fd(w) == w, flush=True)\n" + WAIT)
    assert process.line() == "True"
    process.signal(signal.SIGTERM)
    assert process.process.wait(PATIENCE_S) == -signal.SIGTERM
    wait_until(lambda: "it said goodbye" in caplog.text)


def test_sigterm_to_forked_children_ends_them_and_not_their_parent(second, first):
    """At once, so that some are not yet themselves when it comes."""
    script = "for _ in range(100):\n    child = os.fork()\n    if not child:\n        threading.Event().wait()\n"
    script += "    os.kill(child, signal.SIGTERM)\n"
    script += "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM\n"
    process = second(PEER + READY + script + "print('alone again', flush=True)\n" + WAIT)
    assert process.line() == "alone again"
    assert len(first.ring) == 2
    process.signal(signal.SIGTERM)
    assert process.process.wait(PATIENCE_S) == -signal.SIGTERM


@pytest.mark.parametrize("end", ["SIGTERM", "SIGTERM in a call of C", "the end of its script", "an exception"])
def test_a_stopped_master_delays_no_end(end):
    """Frozen with the connection open, and a collective under way: it answers nothing."""
    master = MasterProcess()
    first = Communicator(master.address)
    first.connect()
    ends = {"SIGTERM": WAIT, "SIGTERM in a call of C": CALL_IN_C, "an exception": "raise SystemExit(5)\n"}
    script = PEER + READY + WORK + "print('voted', flush=True)\nsys.stdin.readline()\n" + ends.get(end, "")
    process = Process("-c", script, master.address)
    try:
        wait_until(first.are_peers_pending)
        first.update_topology()
        assert [process.line(), process.line()] == ["ready", "voted"]
        master.stop()
        began = time.monotonic()
        process.process.stdin.write("\n")
        process.process.stdin.flush()
        if end == "SIGTERM in a call of C":
            assert process.line() == "in the call"
        if "SIGTERM" in end:
            process.signal(signal.SIGTERM)
        expected = 5 if end == "an exception" else -signal.SIGTERM if "SIGTERM" in end else 0
        assert process.process.wait(PATIENCE_S) == expected
        assert time.monotonic() - began < allow(8.0)
    finally:
        process.end()
        master.end()
        first.close()


def test_a_dropped_communicator_of_a_stopped_master_hangs_nothing():
    """Dropping it does not wait for its goodbye, which takes 3 s here."""
    master = MasterProcess()
    script = PEER + READY + "sys.stdin.readline()\nbegan = time.monotonic()\ndel c\n"
    script += "assert time.monotonic() - began < 2.5\nprint('dropped', flush=True)\n"
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


def test_sigterm_ends_a_master_wherever_its_main_thread_is():
    """That thread looks around without a pause here, so that the signal finds it in the middle of it."""
    serve = "raise SystemExit(master.serve('127.0.0.1:0', None, False))"
    script = f"from pccl.cli import master\nmaster.LOOK_S = 0.0\n{serve}\n"
    for _ in range(10):
        process = Process("-c", script)
        try:
            assert "listens" in process.line()
            process.signal(signal.SIGTERM)
            assert process.process.wait(PATIENCE_S) == 0
        finally:
            process.end()
