"""What the nursery bears is a process like any other, and nothing stays behind."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import PATIENCE_S, ROOT, PeerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no nursery")

NOBODY = "127.0.0.1:1"


@pytest.fixture
def pair(start_peers):
    return start_peers(2, NOBODY)


def test_it_is_our_child(pair):
    for peer in pair:
        assert f"\nPPid:\t{os.getpid()}\n" in Path(f"/proc/{peer.process.pid}/status").read_text()


def test_it_shares_no_descriptor_with_its_siblings_but_where_errors_go(pair):
    first, second = ({os.readlink(path) for path in Path(f"/proc/{peer.process.pid}/fd").iterdir()} for peer in pair)
    assert first & second <= {os.readlink("/proc/self/fd/2")}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it(pair, number):
    peer, other = pair
    peer.stop()
    with pytest.raises(subprocess.TimeoutExpired):
        peer.process.wait(0.01)
    peer.resume_after(0.0)
    assert peer.process.poll() is None
    peer.signal(number)
    assert peer.process.wait(PATIENCE_S) == peer.process.poll() == peer.process.returncode == -number
    peer.signal(number)  # To nobody.
    assert other.process.poll() is None


def test_it_ends_with_its_input(pair):
    peer, _ = pair
    peer.process.stdin.close()
    assert peer.process.wait(PATIENCE_S) == 0


def test_settings_are_its_own(start_peers, processes):
    refused = PeerProcess(NOBODY, settings={"PCCL_LANES": "many"})
    processes.append(refused)
    assert "PCCL_LANES" in refused.expect("failed")["reason"]
    start_peers(1, NOBODY)


def test_the_nursery_ends_with_whoever_started_it():
    """Killed, so that nothing could be tidied up."""
    script = "import tests.e2e.harness as it\nit.PeerProcess('127.0.0.1:1')\nprint(it.nursery().pid)\ninput()"
    command = [sys.executable, "-u", "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        nursery = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    assert select.select([nursery], [], [], PATIENCE_S)[0]
    os.close(nursery)
