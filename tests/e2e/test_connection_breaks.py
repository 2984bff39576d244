"""Real connections to a master that lives break, by themselves or in every moment of a step: nobody loses its place."""

import threading

import pytest

from tests.e2e.harness import join
from tests.e2e.test_master_restart import LARGE, SMALL, expect_sum, order_all, reduce_all
from tests.stress.network import Network

DOOR = "to the master"


@pytest.fixture
def network(tmp_path):
    network = Network(tmp_path)
    yield network
    network.child.end()


@pytest.fixture
def cast(start_master, start_peers, network):
    """A master and three peers, of which the last one reaches the master through a door that can be shut."""

    def start(**settings):
        master = start_master(**settings)
        port = network.open(DOOR)
        network.lead(DOOR, master.port)
        peers = join([], start_peers(2, master.address, token=False))
        peers = join(peers, start_peers(1, f"127.0.0.1:{port}", token=False))
        reduce_all(peers, SMALL)
        return master, peers

    return start


def cut(network, kind="reset", seconds=0.0):
    network.cut(kind=kind, doors=DOOR, pick=0.0, sides=[0], seconds=seconds)


@pytest.mark.parametrize("kind", ["reset", "close"])
def test_a_peer_comes_back_to_its_place(cast, network, kind):
    master, peers = cast()
    before = [peer.do("await_size", size=3) for peer in peers]
    for _ in range(3):
        cut(network, kind)
        master.expect_said(peers[2].peer[:8], "is back after")
        reduce_all(peers, SMALL)
    after = [peer.do("await_size", size=3) for peer in peers]
    assert [(each["peer"], each["epoch"]) for each in after] == [(each["peer"], each["epoch"]) for each in before]


def test_a_collective_goes_on_and_is_not_started_over(cast, network):
    master, peers = cast()
    order_all(peers, LARGE, tell_at=1 << 20)
    peers[2].expect("moving")
    cut(network)
    assert [each["attempts"] for each in expect_sum(peers)] == [1, 1, 1]
    master.expect_said("is back")


def test_votes_and_answers_cross_the_breaks(cast, network):
    """Ten steps while the connection breaks again and again, at whatever moment that is."""
    master, peers = cast()
    over = threading.Event()

    def strike():
        while not over.wait(0.05):
            cut(network)

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        for _ in range(10):
            assert [each["attempts"] for each in reduce_all(peers, SMALL)] == [1, 1, 1]
            assert [each["attempts"] for each in reduce_all(peers, LARGE // 64)] == [1, 1, 1]
    finally:
        over.set()
        striker.join()
    master.expect_said("is back")


def test_who_is_killed_while_it_is_away_is_gone_at_once(cast, network):
    """The others would wait for a minute, did they not see its lanes go."""
    master, peers = cast(silence_s=60.0)
    order_all(peers, LARGE, tell_at=1 << 20)
    peers[2].expect("moving")
    network.lead(DOOR, 1)  # Nobody listens there: it cannot come back.
    cut(network)
    master.expect_said(peers[2].peer[:8], "is away")
    peers[2].kill()
    for peer in peers[:2]:
        failed = peer.expect("failed")
        assert (failed["error"], failed["lost"]) == ("CollectiveAborted", [peers[2].peer])
    reduce_all(peers[:2], SMALL)


def test_a_connection_that_is_open_at_one_end_only_is_replaced(cast, network):
    """The peer's end is closed, and the master knows nothing of it: it takes the next connection for what it is."""
    master, peers = cast()
    cut(network, "half-open", seconds=30.0)
    reduce_all(peers, SMALL)
    master.expect_said(peers[2].peer[:8], "is back")
    reduce_all(peers, LARGE // 16)


def test_a_newcomer_does_not_take_the_place_of_the_last_one(start_master, start_peers, network):
    master, port = start_master(), network.open(DOOR)
    network.lead(DOOR, master.port)
    (last,) = join([], start_peers(1, f"127.0.0.1:{port}", token=False))
    (newcomer,) = start_peers(1, master.address, token=False)
    newcomer.order("connect")
    master.expect_said("wait for", "update_topology")
    cut(network)
    master.expect_said(last.peer[:8], "is back")
    assert last.do("update")["size"] == 2
    newcomer.expect("connect")
    reduce_all([last, newcomer], SMALL)


def test_who_has_lost_its_neighbours_a_moment_ago_keeps_its_place(cast, network, start_peers):
    """Nobody is left who could tell that it lives."""
    master, peers = cast()
    for peer in peers[:2]:
        peer.kill()
    cut(network)
    master.expect_said(peers[2].peer[:8], "is back")
    alone = peers[2].do("await_size", size=1)
    assert alone["peer"] == peers[2].peer
    survivors = join(peers[2:], start_peers(1, master.address, token=False))
    reduce_all(survivors, SMALL)
