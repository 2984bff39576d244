"""A peer that answers every ping and never votes is named to all who wait, and an operator or a limit removes it."""

import pytest

from tests.e2e.harness import PeerProcess, all_do, join
from tests.e2e.test_commands import pccl

NAMES = ("tokyo", "oslo", "idle")


@pytest.fixture
def start_three(start_master, processes):
    def start(**limits):
        master = start_master(explain_after_s=0.3, **limits)
        peers = [PeerProcess(master.address, settings={"PCCL_NAME": name}) for name in NAMES]
        processes.extend(peers)
        return master, join([], peers)

    return start


def test_an_operator_removes_who_never_votes(start_three):
    master, (tokyo, oslo, idle) = start_three()
    for peer in (tokyo, oslo):
        peer.order("pending")
    master.expect_said("are_peers_pending waits for idle")
    told = pccl("kick", "idle", master.address, "--reason", "it holds everybody up")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == f"idle ({idle.peer}) is out of the run\n"
    for peer in (tokyo, oslo):
        peer.expect("pending")
    idle.order("pending")
    failed = idle.expect("failed")
    assert failed["error"] == "Kicked"
    assert "an operator removed it: it holds everybody up" in failed["reason"]
    assert {facts["size"] for facts in all_do((tokyo, oslo), "facts")} == {2}


def test_who_is_meant_must_be_clear(start_three):
    master, peers = start_three()
    told = pccl("kick", "nobody", master.address)
    assert told.returncode == 2
    assert all(name in told.stderr for name in NAMES)
    twin = PeerProcess(master.address, settings={"PCCL_NAME": "oslo"})
    try:
        join(peers, [twin])
        told = pccl("kick", "oslo", master.address)
        assert told.returncode == 2
        assert "2 peers are meant" in told.stderr
        assert peers[1].peer in told.stderr
        assert twin.peer in told.stderr
        assert pccl("kick", twin.peer[:10], master.address, "--reason", "twin").returncode == 0
    finally:
        twin.end()


def test_a_limit_removes_who_never_votes(start_three):
    _, (tokyo, oslo, idle) = start_three(vote_timeout_s=1.0)
    for peer in (tokyo, oslo):
        peer.order("pending")
    for peer in (tokyo, oslo):
        peer.expect("pending")
    idle.order("pending")
    failed = idle.expect("failed")
    assert failed["error"] == "Kicked"
    assert "others waited for it in are_peers_pending for 1 s (vote_timeout_s)" in failed["reason"]
