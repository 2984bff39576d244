"""The lives of collectives over real lanes: start, outcome, abort by SIGKILL, rewiring. A token is the tensor."""

import pytest

from tests.e2e.harness import all_do, join
from tests.e2e.token_plane import HOLD, LONG
from tests.patience import allow


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_collective_is_committed_everywhere(master, start_peers, size):
    peers = join([], start_peers(size, master.address))
    for _ in range(3):
        answers = all_do(peers, "collective", tag=5)
        assert len({(each["attempt"], tuple(each["ring"])) for each in answers}) == 1
        assert len(answers[0]["ring"]) == size


def test_alone_there_is_nobody_to_reduce_with(master, start_peers):
    (peer,) = start_peers(1, master.address)
    peer.do("connect")
    peer.order("collective")
    failed = peer.expect("failed")
    assert (failed["error"], failed["result"]) == ("TooFewPeers", 5)


def test_disagreement_names_both_sides(master, start_peers):
    peers = join([], start_peers(2, master.address))
    peers[0].order("collective", count=LONG)
    peers[1].order("collective", count=2 * LONG)
    for peer in peers:
        failed = peer.expect("failed", timeout_s=allow(5.0))
        assert failed["error"] == "CallMismatch"
        assert f"{LONG} x FLOAT" in failed["reason"]
        assert f"{2 * LONG} x FLOAT" in failed["reason"]
    all_do(peers, "collective")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_death_inside_a_collective_aborts_it_for_all(master, start_peers, size):
    peers = join([], start_peers(size, master.address))
    for peer in peers:
        peer.order("collective", tag=7, count=HOLD)
    for peer in peers:
        peer.expect("started", tag=7)
    victim = peers.pop(1)
    victim.kill()
    for peer in peers:
        failed = peer.expect("failed", timeout_s=allow(5.0))
        assert failed["error"] == "CollectiveAborted"
        assert failed["lost"] == [victim.peer]
    # The ring is whole again before anybody was answered.
    if size > 2:
        answers = all_do(peers, "collective", tag=7)
        assert {len(each["ring"]) for each in answers} == {size - 1}


def test_death_before_the_vote_on_a_collective(master, start_peers):
    peers = join([], start_peers(3, master.address))
    victim = peers.pop()
    for peer in peers:
        peer.order("collective", tag=1)
    victim.kill()
    answers = [peer.expect("collective", timeout_s=allow(5.0)) for peer in peers]
    assert {len(each["ring"]) for each in answers} == {2}


def test_calls_that_cannot_complete_together(master, start_peers):
    one, other = join([], start_peers(2, master.address))
    one.order("update")
    other.order("collective")
    for peer in (one, other):
        failed = peer.expect("failed", timeout_s=allow(5.0))
        assert failed["error"] == "CallMismatch"
        assert "update_topology" in failed["reason"]
    all_do([one, other], "collective")


def test_newcomers_reduce_with_everybody(master, start_peers):
    peers = join([], start_peers(2, master.address))
    all_do(peers, "collective")
    peers = join(peers, start_peers(2, master.address))
    answers = all_do(peers, "collective")
    assert {len(each["ring"]) for each in answers} == {4}
