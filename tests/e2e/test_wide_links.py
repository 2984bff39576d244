"""Links that get more lanes than they began with, between real peers: the next master goes on with them, parcels that
were on their way are not missed, and where descriptors have run out there are fewer instead of an end."""

import itertools
import socket
import threading

import numpy as np
import pytest

from pccl import CollectiveAborted, MasterNode
from pccl.cli.ask import find_entrance, status_of
from pccl.core.rules.lanes import Tuner
from tests.e2e.harness import all_do, join
from tests.e2e.pairs import both
from tests.e2e.test_api import connect_two, wait_until

LARGE, SMALL = 1 << 20, 100
DESCRIPTORS, WIDE = 256, 13
"""What `net/bounds.py` allows a neighbour of so few."""


def lanes_of(master):
    """How many the one group has, and why."""
    (told,) = status_of(find_entrance(f"127.0.0.1:{master.port}")).lanes
    return told.lanes, told.reason


def reduce_all(peers, count=LARGE):
    for peer in peers:
        peer.order("reduce", count=count, share=1.0)
    said = [peer.expect("reduce") for peer in peers]
    assert [each["surplus"] for each in said] == [[len(peers)] * 2] * len(peers)
    return said


# ── the next master ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_number_survives_the_master(start_master, start_peers):
    """The next one would begin a run with four."""
    master = start_master(default_lanes=12)
    peers = join([], start_peers(2, master.address, token=False))
    newcomers = start_peers(1, master.address, token=False)
    reduce_all(peers)
    master.kill()
    master = start_master(f"127.0.0.1:{master.port}", default_lanes=4)
    master.expect_said("goes on", "2 peers")
    reduce_all(peers)
    assert lanes_of(master) == (12, "as under an earlier master")
    # The links of a candidate have four, until it is a member.
    peers = join(peers, newcomers)
    reduce_all(peers)
    assert [each["attempts"] for each in reduce_all(peers)] == [1] * 3
    assert lanes_of(master) == (12, "as under an earlier master")


def test_near_neighbours_keep_what_they_have(master, start_peers):
    """Buffers hold their lanes up, for none are faster than memory; but a collective of near ones gets one lane."""
    peers = join([], start_peers(2, master.address, token=False))
    for _ in range(6):
        reduce_all(peers, 16 * LARGE)
    assert lanes_of(master) == (4, "as a run begins")


# ── descriptors ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def all_that_there_are(monkeypatch):
    """The master chooses as many as the members' descriptors allow, whatever was measured, unless it had to give up."""

    def judge(self, seen, most, now):
        self.lanes = self.lanes if now < self._held_until else most
        return "as this test wants"

    monkeypatch.setattr(Tuner, "judge", judge)


@pytest.fixture
def few(all_that_there_are, start_peers):
    """A master, and two peers with few descriptors; the younger one dials."""
    with MasterNode("127.0.0.1:0") as master:
        address = f"127.0.0.1:{master.port}"
        yield master, join([], start_peers(2, address, token=False, descriptors=DESCRIPTORS))


def test_links_get_as_many_as_descriptors_allow(few):
    master, peers = few
    reduce_all(peers)
    assert lanes_of(master) == (WIDE, f"4 → {WIDE}: as this test wants")
    assert [each["attempts"] for each in reduce_all(peers)] == [1, 1]


@pytest.mark.parametrize("poor", [0, 1], ids=["who is dialled", "who dials"])
def test_where_they_have_run_out_there_are_fewer_and_no_end(few, poor):
    """A training script has opened files since it joined: all but a few of its descriptors are taken."""
    master, peers = few
    assert peers[poor].do("hold_files", left=4)["held"] > DESCRIPTORS / 2
    for _ in range(3):
        assert [each["attempts"] for each in reduce_all(peers)] == [1, 1]
    assert lanes_of(master) == (4, f"{WIDE} → 4: a link of more could not be made")
    assert [each["group_size"] for each in all_do(peers, "await_size", size=2)] == [2, 2]


# ── what is on its way ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pair(all_that_there_are):
    with MasterNode("127.0.0.1:0") as master:
        communicators = connect_two(master)
        yield communicators
        for communicator in communicators:
            communicator.close()


def test_parcels_on_their_way_over_links_that_are_made_again_are_not_missed(pair, monkeypatch):
    """Each burst of collectives, of which the short ones send parcels, is followed by other links."""
    numbers, chosen = itertools.cycle([9, 5]), []

    def judge(self, seen, most, now):
        self.lanes = next(numbers)
        chosen.append(self.lanes)
        return "as this test wants"

    monkeypatch.setattr(Tuner, "judge", judge)

    def train(communicator):
        wrong = []
        for number in range(40):
            long = np.full(LARGE, number, np.float32)
            short = [np.full(SMALL, number + tag, np.float32) for tag in range(1, 9)]
            works = [communicator.all_reduce_async(long, tag=0)]
            works += [communicator.all_reduce_async(each, tag=tag) for tag, each in enumerate(short, 1)]
            for work in works:
                work.wait()
            sums = [each[-1] for each in (long, *short)]
            wrong += [sums] if sums != [2 * (number + tag) for tag in range(9)] else []
        return wrong

    assert both(pair, train) == [[], []]
    assert len(chosen) >= 5


def lent_lanes(communicator):
    """Sockets of lanes that a collective has."""
    return [lane.sock for lane in list(communicator._membership._shell._lanes._lanes.values()) if lane.lent]


def test_a_lane_that_breaks_under_a_collective_costs_that_one_only(pair):
    values = [np.ones(8 * LARGE, np.float32) for _ in pair]

    def call(communicator):
        return communicator.all_reduce(values[pair.index(communicator)])

    both(pair, call)
    assert all(each[0] == 2.0 for each in values)

    def cut():
        wait_until(lambda: max(pair[0]._data_plane.moved_bytes(), default=0) > LARGE)
        lent_lanes(pair[0])[0].shutdown(socket.SHUT_RDWR)

    cutting = threading.Thread(target=cut)
    cutting.start()
    told = both(pair, call)
    cutting.join()
    assert [type(each) for each in told] == [CollectiveAborted] * 2
    assert all((each == 2.0).all() for each in values)
    assert [info.attempts for info in both(pair, call)] == [1, 1]
    assert all((each == 4.0).all() for each in values)
