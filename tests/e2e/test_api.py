"""What a user of `MasterNode` and `Communicator` can rely on, inside one process and at its end."""

import contextlib
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import pccl
from pccl import Attribute, Communicator, MasterLost, MasterNode, PCCLError, Result, UsageError
from tests.e2e.harness import ROOT, Process
from tests.patience import HANG_S, allow


@pytest.fixture
def master():
    with MasterNode("127.0.0.1:0") as running:
        yield running


def address(master):
    return f"127.0.0.1:{master.port}"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def threads():
    """Of memberships and masters; the one that waits for SIGTERM is the process's, for good."""
    names = {thread.name for thread in threading.enumerate()}
    return {name for name in names if name.startswith("pccl")} - {"pccl-sigterm"}


# ── the master ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_master_runs_and_is_interrupted():
    master = MasterNode(listen_address="127.0.0.1:0")
    assert not master.serving
    master.run()
    assert master.serving
    assert master.explain() == ()
    master.interrupt()
    master.interrupt()
    assert not master.serving
    assert master.explain() == ()
    assert "pccl-master" not in threads()


def test_its_port_is_free_at_once():
    port = free_port()
    for _ in range(3):
        newborn = MasterNode(f"127.0.0.1:{port}", newborn_s=0.1)
        with newborn as master, Communicator(address(master)) as communicator:
            # An open connection would keep the port in TIME_WAIT for a minute.
            assert communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE) == 1


def test_a_port_in_use_is_a_usage_error(master):
    with pytest.raises(UsageError, match=rf"cannot listen on 127\.0\.0\.1:{master.port}.*in use") as raised:
        MasterNode(address(master)).run()
    assert raised.value.result == Result.INVALID_USAGE


def test_a_master_runs_once(master):
    with pytest.raises(UsageError, match="runs already"):
        master.run()


def test_a_script_that_runs_a_master_goes_on_serving():
    script = "import pccl\nm = pccl.MasterNode('127.0.0.1:0')\nm.run()\nprint(m.port, flush=True)\n"
    process = Process("-c", script)
    try:
        with Communicator(f"127.0.0.1:{process.line()}") as communicator:
            assert communicator.rank == 0
        assert process.process.poll() is None
    finally:
        process.end()


def test_a_script_that_interrupts_its_master_ends():
    script = "import pccl\nm = pccl.MasterNode('127.0.0.1:0')\nm.run()\nm.interrupt()\ndel m\n"
    assert run_script(script).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_on_a_signal(number):
    process = Process("-m", "pccl.cli", "master", "--listen", "127.0.0.1:0")
    try:
        process.line()
        process.signal(number)
        assert process.process.wait(HANG_S) == 0
    finally:
        process.end()


def test_the_command_says_why_it_cannot_listen(master):
    process = subprocess.run(
        [sys.executable, "-m", "pccl.cli", "master", "--listen", address(master)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert process.returncode == 2
    assert "in use" in process.stderr


def test_the_demo_tells_its_story():
    process = subprocess.run(
        [sys.executable, "-m", "pccl.cli", "demo"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stderr == "", "the story is all that a person reads"
    assert "summary: 6 peers joined, 1 was killed, 5 hold the same bits" in process.stdout
    digests = [line.split()[-1] for line in process.stdout.splitlines() if "digest" in line]
    assert len(digests) == 5
    assert len(set(digests)) == 1
    assert process.stdout.count("and received 784 bytes") == 5  # all but the first to come: weights and momentum
    assert re.search(r"pccl://127\.0\.0\.1:\d+#[\w-]{40,}", process.stdout), "the join address is part of the story"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_of_the_demo_has_a_token_in_arguments_or_variables():
    """Others on the machine can read both. A token of a run of the user's own is not handed on, either."""
    own = "of-a-run-of-the-users-own"
    command = [sys.executable, "-m", "pccl.cli", "demo"]
    with subprocess.Popen(
        command, env={**environment(), "PCCL_TOKEN": own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        token, looked_at = "", set()
        for line in demo.stdout:
            token = token or line.partition("#")[2].strip() * ("pccl://" in line)
            for child in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split() if token else ():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    # In this order: arguments of the new program mean that the variables are its own, too.
                    arguments, variables = (
                        Path(f"/proc/{child}/{what}").read_bytes() for what in ("cmdline", "environ")
                    )
                    if arguments.endswith(b"demo\0"):
                        continue  # Forked, and not yet another program.
                    shown = variables + arguments
                    assert token.encode() not in shown
                    assert own.encode() not in shown
                    looked_at.add(child)
        assert demo.wait(HANG_S) == 0
    assert len(token) > 40
    assert len(looked_at) == 7, "a master and six peers"


# ── the communicator ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_works_before_connect():
    communicator = Communicator("127.0.0.1:48148")
    for call in (
        communicator.update_topology,
        communicator.are_peers_pending,
        lambda: communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE),
        lambda: communicator.ring,
        lambda: communicator.rank,
        lambda: communicator.epoch,
        lambda: communicator.peer_id,
    ):
        with pytest.raises(PCCLError, match="call connect first") as raised:
            call()
        assert raised.value.result == Result.INVALID_USAGE
    communicator.close()


def test_nothing_works_after_close(master):
    communicator = Communicator(address(master))
    communicator.connect()
    communicator.close()
    communicator.close()
    for call in (communicator.update_topology, communicator.connect, lambda: communicator.epoch):
        with pytest.raises(UsageError, match="was closed"):
            call()


def test_connect_twice(master):
    with Communicator(address(master)) as communicator:
        with pytest.raises(UsageError, match="connected already"):
            communicator.connect()
        assert communicator.get_attribute(Attribute.LOCAL_WORLD_SIZE) == 1


def test_connect_gives_up_with_the_cause():
    port = free_port()
    communicator = Communicator(f"127.0.0.1:{port}")
    began = time.monotonic()
    with pytest.raises(MasterLost, match=rf"127\.0\.0\.1:{port} after 2 attempts.*refused") as raised:
        communicator.connect(n_attempts=2)
    assert 0.9 < time.monotonic() - began < allow(5.0)
    assert raised.value.result == Result.MASTER_CONNECTION_FAILED


def test_connect_bridges_the_start_of_the_master():
    port = free_port()
    communicator = Communicator(f"127.0.0.1:{port}")
    master = MasterNode(f"127.0.0.1:{port}")
    starting = threading.Timer(0.3, master.run)
    starting.start()
    try:
        communicator.connect(n_attempts=15)
        assert communicator.rank == 0
        communicator.close()
    finally:
        starting.join()
        master.interrupt()


def test_a_failed_connect_may_be_tried_again():
    port = free_port()
    communicator = Communicator(f"127.0.0.1:{port}")
    with pytest.raises(MasterLost):
        communicator.connect(n_attempts=1)
    with MasterNode(f"127.0.0.1:{port}"):
        communicator.connect()
        communicator.close()


def test_a_communicator_outlives_its_master():
    master = MasterNode("127.0.0.1:0")
    master.run()
    communicator = Communicator(address(master), master_timeout_s=0.5)
    communicator.connect()
    master.interrupt()
    with pytest.raises(MasterLost):
        communicator.update_topology()
    assert communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE) == 1
    began = time.monotonic()
    communicator.close()
    assert time.monotonic() - began < allow(1.0)


def test_a_dropped_communicator_leaves(master):
    stays, goes = connect_two(master)
    del goes
    gc.collect()
    wait_until(lambda: stays.get_attribute(Attribute.GLOBAL_WORLD_SIZE) == 1)
    stays.close()
    wait_until(lambda: "pccl-control" not in threads())


def test_dropping_after_the_master_does_not_hang():
    master = MasterNode("127.0.0.1:0")
    master.run()
    communicator = Communicator(address(master))
    communicator.connect()
    master.interrupt()
    del master
    del communicator
    gc.collect()
    wait_until(lambda: not threads())


def test_close_from_another_thread_ends_a_call(master):
    one, other = connect_two(master)
    failures = []

    def call():
        try:
            one.update_topology()
        except PCCLError as error:
            failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    wait_until(lambda: master.explain() != ())
    one.close()
    caller.join(HANG_S)
    assert isinstance(failures[0], UsageError)
    other.close()


def test_bad_settings_are_named():
    with pytest.raises(UsageError, match="announce"):
        Communicator("127.0.0.1:48148", announce="::1:80")
    with pytest.raises(UsageError, match="dial_timeout_s"):
        Communicator("127.0.0.1:48148", dial_timeout_s=-1)
    communicator = Communicator("127.0.0.1:48148", listen="203.0.113.1:0")
    with pytest.raises(UsageError, match=r"listen.*203\.0\.113\.1"):
        communicator.connect()


def test_the_names_are_there():
    assert set(pccl.__all__) <= set(dir(pccl))
    assert isinstance(pccl.__version__, str)
    with pytest.raises(AttributeError):
        _ = pccl.no_such_name


# ── the end of a process ─────────────────────────────────────────────────────────────────────────────────────────────

JOIN = "import os, signal, sys, threading, pccl\nc = pccl.Communicator(sys.argv[1])\nc.connect()\n"


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def run_script(script, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_a_script_that_just_ends_says_goodbye(master):
    process = run_script(JOIN, address(master))
    assert (process.returncode, process.stderr) == (0, "")
    wait_until(lambda: master.explain() == ())


def test_a_script_ends_although_its_master_is_stopped():
    """The master is frozen with the connection open: neither close nor the end of the process waits for it."""
    master = Process("-c", "import pccl\nm = pccl.MasterNode('127.0.0.1:0')\nm.run()\nprint(m.port, flush=True)\n")
    try:
        script = JOIN + "os.kill(int(sys.argv[2]), signal.SIGSTOP)\n"
        began = time.monotonic()
        process = run_script(script, f"127.0.0.1:{master.line()}", str(master.process.pid))
        assert (process.returncode, process.stderr) == (0, "")
        assert time.monotonic() - began < allow(10.0)
    finally:
        master.end()


def test_ctrl_c_interrupts_a_call(master):
    first = Communicator(address(master))
    first.connect()
    process = Process("-c", "print('here', flush=True)\n" + JOIN, address(master))
    try:
        process.line()
        wait_until(first.are_peers_pending)
        process.signal(signal.SIGINT)
        assert process.process.wait(HANG_S) != 0
        wait_until(lambda: not first.are_peers_pending())
    finally:
        process.end()
        first.close()


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def wait_until(holds, timeout_s=HANG_S):
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, "it did not come to hold"
        pause.wait(0.005)


def connect_two(master, **limits):
    one, other = (Communicator(address(master), **limits) for _ in range(2))
    one.connect()
    joining = threading.Thread(target=other.connect)
    joining.start()
    wait_until(one.are_peers_pending)
    one.update_topology()
    joining.join(HANG_S)
    return one, other
