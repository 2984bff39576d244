"""Two machines of two peers each, as real processes: in together, out together, and half of one stalls no peer."""

import json

import pytest

from tests.e2e.harness import PeerProcess, all_do
from tests.e2e.test_commands import pccl


@pytest.fixture
def start_rank(start_master, processes):
    """A master, and what starts a peer: `rank("a", 1)` is in group 1 of the machine a."""
    master = start_master(explain_after_s=0.3)

    def rank(machine, group, **arguments):
        settings = {"PCCL_NAME": f"{machine}{group}", "PCCL_PARTY": f"machine-{machine}", "PCCL_PARTY_SIZE": "2"}
        peer = PeerProcess(master.address, settings=settings, peer_group=group, **arguments)
        processes.append(peer)
        return peer

    rank.master = master
    return rank


def come(ranks):
    """Let them connect; they are waited for by `are_in`."""
    for each in ranks:
        each.order("connect")


def are_in(ranks):
    for each in ranks:
        each.expect("connect")


@pytest.fixture
def two_machines(start_rank):
    first, second = ([start_rank(machine, group) for group in (0, 1)] for machine in "ab")
    come(first)
    are_in(first)
    come(second)
    all_do(first, "await_pending")
    all_do(first, "update")
    are_in(second)
    return start_rank, first, second


def test_half_a_machine_is_not_let_in_and_stalls_no_peer(two_machines):
    start_rank, first, second = two_machines
    members = [*first, *second]
    half = start_rank("c", 0)
    come([half])
    start_rank.master.expect_said("c0", "waits for 1 more rank of party machine-c")
    status = json.loads(pccl("status", start_rank.master.address, "--json").stdout)
    assert any("waits for 1 more rank of party machine-c" in each["sentence"] for each in status["waits"])
    assert sorted(each["party"] for each in status["peers"]) == [f"machine-{name}" for name in "aabbc"]
    assert {each["pending"] for each in all_do(members, "pending")} == {False}
    assert {each["size"] for each in all_do(members, "update")} == {4}
    assert {len(each["ring"]) for each in all_do(members, "collective")} == {2}
    other = start_rank("c", 1)
    come([other])
    all_do(members, "await_pending")
    assert {each["size"] for each in all_do(members, "update")} == {6}
    are_in([half, other])


def test_a_killed_rank_takes_its_machine_out_and_the_others_go_on(two_machines):
    start_rank, first, (gone, mate) = two_machines
    mate.order("collective")
    gone.kill()
    failed = mate.expect("failed")
    assert failed["error"] == "Kicked"
    assert f"b0 ({gone.peer[:8]})" in failed["reason"]
    assert "of its party machine-b, is gone" in failed["reason"]
    assert {each["size"] for each in all_do(first, "await_size", size=2)} == {2}
    again = [start_rank("b", group) for group in (0, 1)]
    come(again)
    all_do(first, "await_pending")
    assert {each["size"] for each in all_do(first, "update")} == {4}
    are_in(again)
    for told in all_do([*first, *again], "parties"):
        assert told["parties"] == ["machine-a", "machine-b"]


def test_a_machine_that_closes_is_no_loss_to_any_peer(two_machines):
    start_rank, first, second = two_machines
    all_do(second, "close")
    assert {each["size"] for each in all_do(first, "await_size", size=2)} == {2}
    master, goodbye = start_rank.master, "is gone: it said goodbye"
    while not all(any(rank in line and goodbye in line for line in master.said) for rank in ("b0", "b1")):
        master.expect_said(goodbye)  # In whichever order.
    assert not any("party machine-b, is gone" in line for line in master.said)
    all_do(first, "close")


def test_the_machines_survive_a_restarted_master_as_a_whole_or_not_at_all(two_machines, start_master):
    start_rank, first, (gone, mate) = two_machines
    start_rank.master.kill()
    gone.kill()
    port = start_rank.master.port
    start_master(f"127.0.0.1:{port}", silence_s=5.0, reunion_s=1.0, newborn_s=0.5)
    assert {each["size"] for each in all_do(first, "await_size", size=2)} == {2}
    mate.order("pending")
    failed = mate.expect("failed")
    assert failed["error"] == "Kicked"
    assert "the rest of its party machine-b did not come back" in failed["reason"]
