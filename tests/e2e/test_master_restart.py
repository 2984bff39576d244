"""A real master is killed and started again: the same Communicators go on, nothing is lost that was done."""

import signal
import socket
import time

import pytest

from pccl import Communicator
from pccl.net import sockets
from tests.e2e.harness import all_do, behind_the_name, join
from tests.patience import allow

SMALL, LARGE = 100, 16 << 20
SHARES = (1.0, 10.0, 100.0)
BOUND_S = 15.0
"""Python takes a second to start a master on a busy machine; the peers dial it every second."""


@pytest.fixture
def cast(start_master, start_peers):
    """A master and some peers that have taken part in a collective."""

    def start(count=3, **settings):
        master = start_master()
        peers = join([], start_peers(count, master.address, token=False, **settings))
        reduce_all(peers, SMALL)
        return master, peers

    return start


@pytest.fixture
def restart(start_master):
    def restart(master):
        master.kill()
        return start_master(f"127.0.0.1:{master.port}")

    return restart


def order_all(peers, count, **arguments):
    for peer, share in zip(peers, SHARES, strict=False):
        peer.order("reduce", count=count, share=share, **arguments)


def order_large(peers):
    """A collective that is in its midst everywhere: one whose start not everybody has heard of is aborted."""
    order_all(peers, LARGE, tell_at=1 << 20)
    for peer in peers:
        peer.expect("moving")


def expect_sum(peers):
    """Everybody has the same sum of all of them."""
    said = [peer.expect("reduce") for peer in peers]
    assert [each["surplus"] for each in said] == [[sum(SHARES[: len(peers)])] * 2] * len(peers)
    assert len({each["digest"] for each in said}) == 1
    return said


def reduce_all(peers, count, **arguments):
    order_all(peers, count, **arguments)
    return expect_sum(peers)


def test_idle_peers_come_back_to_the_next_master(cast, restart):
    master, peers = cast()
    before = [peer.do("await_size", size=3) for peer in peers]
    began = time.monotonic()
    restart(master).expect_said("goes on", "3 peers")
    reduce_all(peers, SMALL)
    print(f"\nmaster killed to the next good all-reduce: {time.monotonic() - began:.2f} s")
    assert time.monotonic() - began < allow(BOUND_S)
    reduce_all(peers, LARGE // 16)
    after = [peer.do("await_size", size=3) for peer in peers]
    assert [(each["peer"], each["ring"]) for each in after] == [(each["peer"], each["ring"]) for each in before]
    assert min(each["epoch"] for each in after) > max(each["epoch"] for each in before)


def test_many_masters_one_after_the_other(cast, restart):
    master, peers = cast()
    for _ in range(3):
        order_all(peers, SMALL)
        master = restart(master)
        expect_sum(peers)


def test_a_collective_goes_on_without_a_master_and_is_not_started_over(cast, restart):
    master, peers = cast()
    order_large(peers)
    restart(master)
    assert [each["attempts"] for each in expect_sum(peers)] == [1, 1, 1]


def test_a_collective_that_was_called_without_a_master_starts_with_the_next_one(cast, start_master):
    master, peers = cast()
    master.kill()
    order_all(peers, LARGE // 16)
    start_master(f"127.0.0.1:{master.port}")
    expect_sum(peers)


def test_many_tags_are_settled_one_way_for_all(cast, restart):
    master, peers = cast()
    for _ in range(3):
        for peer, share in zip(peers, SHARES, strict=True):
            peer.order("end_of", call="flight", share=share)
        master = restart(master)
        ends = [peer.expect("end_of")["ends"] for peer in peers]
        for tag in ends[0]:
            errors = {each[tag]["error"] for each in ends}
            assert errors in ({None}, {"CollectiveAborted"}), ends
            if errors == {None}:
                assert len({each[tag]["digest"] for each in ends}) == 1
                assert ends[0][tag]["values"] == [sum(SHARES)]
            else:
                assert all(each[tag]["intact"] for each in ends)
        reduce_all(peers, SMALL)


def test_a_newcomer_and_those_who_let_it_in(cast, restart, start_peers):
    master, peers = cast(count=2)
    (newcomer,) = start_peers(1, master.address, token=False)
    newcomer.order("connect")
    all_do(peers, "await_pending")
    peers[0].order("update")
    master.expect_said("update_topology", peers[1].peer[:8])
    restart(master)
    sizes = {peers[1].do("update")["size"], peers[0].expect("update")["size"]}
    while sizes != {3}:  # The newcomer may join the next master a moment after the others have voted.
        assert sizes == {2}
        sizes = {each["size"] for each in all_do(peers, "update")}
    newcomer.expect("connect")
    reduce_all([*peers, newcomer], SMALL)


def test_a_sync_goes_on_by_itself_and_the_revision_is_kept(cast, start_master):
    """The master dies in the middle of a transfer: no caller hears of it, whether it lacks the state or not."""
    master, peers = cast()
    model = [["weights", 24 << 20, "float32"]]
    for peer, revision in zip(peers, (7, 7, 0), strict=True):
        peer.do("hold", entries=model, seed=1 if revision else 2, revision=revision)
    *holders, puller = peers
    for peer in holders:
        peer.order("sync")
    puller.order("sync", stop_at=1 << 20)
    puller.expect("ending")
    puller.await_stop()
    master.kill()
    puller.signal(signal.SIGCONT)
    start_master(f"127.0.0.1:{master.port}")
    said = [peer.expect("sync", timeout_s=60.0) for peer in peers]
    assert {each["revision"] for each in said} == {7}
    assert len({each["digest"] for each in said}) == 1
    assert [each["rx"] for each in said[:2]] == [0, 0]
    assert 96 << 20 <= said[2]["rx"] < 192 << 20, "what came before the master was lost is not fetched again"
    reduce_all(peers, SMALL)


def test_a_peer_that_dies_with_the_master_is_lost_and_nobody_else(cast, start_master):
    master, peers = cast()
    order_large(peers)
    master.kill()
    peers[2].kill()
    next_master = start_master(f"127.0.0.1:{master.port}")
    for peer in peers[:2]:
        failed = peer.expect("failed")
        assert (failed["error"], failed["lost"]) == ("CollectiveAborted", [peers[2].peer])
    next_master.expect_said("goes on", "2 peers")
    reduce_all(peers[:2], SMALL)


def test_without_a_master_calls_end_with_their_tensors_intact(cast):
    master, peers = cast(master_timeout_s=3.0)
    master.kill()
    began = time.monotonic()
    order_all(peers, LARGE // 16)
    for peer in peers:
        assert peer.expect("input")["intact"]
        assert peer.expect("failed")["error"] == "MasterLost"
        assert peer.do("await_size", size=1)["group_size"] == 1
    assert time.monotonic() - began < 3.0 + allow(BOUND_S / 2)


def test_a_master_that_moves_is_found_behind_its_name(monkeypatch, start_master):
    """The name is looked up at every dial, and all that it stands for is tried."""
    first = start_master()
    known = [("127.0.0.1", first.port)]
    monkeypatch.setattr(sockets, "look_up", behind_the_name(known))
    with Communicator("master.test:1", master_timeout_s=30.0) as communicator:
        communicator.update_topology()
        second = start_master()
        first.kill()
        known[:] = [("127.0.0.1", first.port), ("127.0.0.1", second.port)]
        communicator.update_topology()
        second.expect_said("goes on", "1 peer")
        # A machine that hangs takes connections and says nothing: the other address is tried next.
        with socket.create_server(("127.0.0.1", 0)) as hangs:
            third = start_master()
            second.kill()
            known[:] = [hangs.getsockname(), ("127.0.0.1", third.port)]
            communicator.update_topology()
            third.expect_said("goes on", "1 peer")


def test_peers_of_a_run_displace_nobody_and_find_no_other_run(cast, start_master, start_peers):
    """Another run has begun at the address of their master while they could not look."""
    master, peers = cast(count=2)
    for peer in peers:
        peer.stop()
    master.kill()
    other = start_master(f"127.0.0.1:{master.port}", silence_s=0.5)
    others = join([], start_peers(3, other.address, token=False))
    for peer in peers:
        peer.resume_after(0.0)
        peer.order("pending")
    for peer in peers:
        failed = peer.expect("failed")
        assert failed["error"] == "Kicked"
        assert "another run" in failed["reason"]
    reduce_all(others, SMALL)
