"""Commands against real runs: their words, their JSON and their exit codes."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.e2e.harness import ROOT, MasterProcess, PeerProcess, all_do, join
from tests.e2e.test_api import wait_until
from tests.patience import HANG_S

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")} | {
    "PYTHONPATH": str(ROOT / "src")
}
HOSTILE = "\x1b[31m<b>[red]x\n" + "y" * 10_000


def pccl(*arguments, **settings):
    """Run a command to its end."""
    command = [sys.executable, "-m", "pccl", *arguments]
    environment = ENVIRONMENT | settings
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S, cwd="/")


@pytest.fixture
def run():
    master = MasterProcess(explain_after_s=0.5)
    peers = [PeerProcess(master.address, settings={"PCCL_NAME": name}) for name in ("tokyo-2", "oslo", HOSTILE)]
    try:
        yield master, join([], peers)
    finally:
        for process in (*peers, master):
            process.end()


def test_bare_pccl_is_help_with_examples():
    told = pccl()
    assert told.returncode == 0
    assert told.stdout.count("  pccl master  ") == 1
    assert "examples:" in told.stdout
    assert "exit codes: 0 done, 1 broke, 2 usage, 3 waiting for a peer, 4 unreachable, 130 interrupted" in told.stdout


def test_version():
    told = pccl("version")
    assert told.returncode == 0
    assert told.stdout.startswith("pccl ")
    assert "protocol version" in told.stdout


def test_an_address_is_needed_and_must_be_one():
    assert "PCCL_MASTER" in pccl("status").stderr
    assert pccl("status").returncode == 2
    assert pccl("status", "tcp://x:1").returncode == 2
    assert pccl("nonsense").returncode == 2


def test_status_of_nothing_is_unreachable():
    told = pccl("status", "127.0.0.1:1")
    assert told.returncode == 4
    assert "no master at 127.0.0.1:1: Connection refused" in told.stderr


def test_status_names_peers_and_whom_they_wait_for(run):
    master, peers = run
    well = pccl("status", PCCL_MASTER=master.address)
    assert well.returncode == 0, well.stderr
    assert "3 peers; healthy" in well.stdout
    assert f"tokyo-2 ({peers[0].peer[:8]})" in well.stdout
    assert "\x1b" not in well.stdout
    assert "y" * 100 not in well.stdout
    for peer in peers[:2]:
        peer.order("pending")
    waits = None

    def waiting():
        nonlocal waits
        waits = pccl("status", master.address, "--json")
        return waits.returncode == 3

    wait_until(waiting)
    facts = json.loads(waits.stdout)
    (wait,) = facts["waits"]
    assert wait["missing"] == [peers[2].peer]
    assert wait["call"] == "are_peers_pending"
    assert facts["health"].startswith("waiting for ?[31m<b>[red]x?")
    assert (facts["version"], facts["healthy"], facts["epoch"]) == (1, False, 3)
    assert {each["stage"] for each in facts["links"]} == {"standing"}
    peers[2].do("pending")
    for peer in peers[:2]:
        peer.expect("pending")
    wait_until(lambda: pccl("status", master.address).returncode == 0)
    # Looking has changed nothing.
    assert json.loads(pccl("status", master.address, "--json").stdout)["epoch"] == 3


def test_status_has_the_last_round_and_events(run):
    master, peers = run
    all_do(peers, "collective")
    facts = json.loads(pccl("status", master.address, "--json").stdout)
    (last,) = facts["rounds"]
    assert (last["number"], last["kind"], last["peers"]) == (1, "all_reduce", 3)
    assert last["waited_for"] in {peer.peer for peer in peers}
    assert [each["event"] for each in facts["events"]][:3] == ["joined", "joined", "joined"]


def test_top_outlives_its_master(run):
    master, _ = run
    command = [sys.executable, "-u", "-m", "pccl", "top", master.address]
    top = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        assert "3 peers; healthy" in top.stdout.readline()
        master.kill()
        assert "no master at" in top.stdout.readline()
        with_another = MasterProcess(master.address)
        try:
            while "3 peers" not in (line := top.stdout.readline()):
                assert line, "top ended"
        finally:
            with_another.end()
        top.send_signal(signal.SIGINT)
        assert top.wait(HANG_S) == 130
    finally:
        top.kill()
        top.wait()
        top.stdout.close()
