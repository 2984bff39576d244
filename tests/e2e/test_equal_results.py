"""What is committed is the same bits at all peers: one that lies to its neighbours, or whose memory is bad, makes a
collective that is aborted and says so, never one that leaves different tensors behind."""

import threading

import numpy as np
import pytest

from pccl import CollectiveAborted, Communicator, MasterNode, PCCLError
from pccl.dataplane import reference
from pccl.dataplane.reference import ReferencePlane
from pccl.dataplane.ring import reference_ring
from pccl.dataplane.ring.parcels import wrap
from pccl.net.express import Express
from tests.e2e.test_api import address, wait_until
from tests.patience import HANG_S

LONG, SHORT = 100_000, 10
"""Elements that go around the ring, and that go along with the vote."""


class Liar(ReferencePlane):
    """Its data plane can change bytes where no check of a lane notices it."""

    memory_is_bad = False

    def reduce_all(self, spec, contributions, out):
        super().reduce_all(spec, contributions, out)
        if self.memory_is_bad:
            reference_ring.memory(out)[0] ^= 1


class LyingRing(reference_ring.Ring):
    """What it passes on of the result is another one than it keeps, with a check that fits."""

    def _announced(self, hop, index, payload):
        if hop > self._route.reducing_hops:
            payload = payload.copy()
            payload[0] ^= 1
        return super()._announced(hop, index, payload)


def lying_send(honest):
    """A parcel that is another one for each receiver."""

    def send(self, effect):
        if not isinstance(self._data_plane, Liar):
            return honest(self, effect)
        buffers = self._data_plane.offers.find(effect.tag)
        contribution = self._data_plane.contribution(effect.spec, buffers, 1)
        self._sent[effect.parcel] = contribution
        for number, key in enumerate(effect.lanes):
            told = contribution[:2] + bytes([contribution[2] ^ number << 4]) + contribution[3:]  # more than rounding
            self._lanes[key].send(wrap(effect.parcel, effect.oldest, told, self._data_plane.check(told)))

    return send


@pytest.fixture
def master():
    with MasterNode("127.0.0.1:0") as running:
        yield running


@pytest.fixture
def peers(master):
    """Three, of which the last one may lie."""
    planes = {"anna": "native", "bert": "reference", "carl": "reference"}
    made = [Communicator(address(master), name=name, data_plane=plane) for name, plane in planes.items()]
    made[2]._data_plane = Liar(60.0)
    made[0].connect()
    for here in (1, 2):
        joining = threading.Thread(target=made[here].connect, daemon=True)
        joining.start()
        wait_until(lambda: "candidates" in " ".join(master.explain()))
        all_call(made[:here], lambda rank, peer: peer.update_topology())
        joining.join(HANG_S)
    yield made
    for each in made:
        each.close()


def all_call(peers, call):
    """The same call at all of them at once; what each returned or raised."""
    told = [None] * len(peers)

    def make(rank):
        try:
            told[rank] = call(rank, peers[rank])
        except PCCLError as error:
            told[rank] = error

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(len(peers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()
    return told


def reduce_all(peers, count):
    arrays = [np.full(count, rank + 1, np.float32) for rank in range(len(peers))]
    return arrays, all_call(peers, lambda rank, peer: peer.all_reduce(arrays[rank], tag=7))


def assert_aborted_and_untouched(arrays, told, peers):
    for rank, error in enumerate(told):
        assert isinstance(error, CollectiveAborted), error
        assert "results differ between peers" in str(error)
        assert all(peer.name in str(error) for peer in peers), "who is in which camp"
        assert (arrays[rank] == rank + 1).all()


def assert_works(peers, count):
    arrays, told = reduce_all(peers, count)
    assert not [each for each in told if isinstance(each, PCCLError)]
    assert all((array == 6).all() for array in arrays)


@pytest.fixture
def parcels(peers, monkeypatch):
    """What is short goes along with the vote by now: all links stand, and round trips were measured."""
    started, start = [], Express.start

    def noted(self, effect):
        started.append(effect)
        start(self, effect)

    monkeypatch.setattr(Express, "start", noted)

    def used():
        assert_works(peers, SHORT)
        return len(started) >= len(peers)

    wait_until(used)


def test_a_peer_that_sends_each_neighbour_another_parcel(peers, parcels, monkeypatch):
    with monkeypatch.context() as lie:
        lie.setattr(Express, "send", lying_send(Express.send))
        assert_aborted_and_untouched(*reduce_all(peers, SHORT), peers)
    assert_works(peers, SHORT)


def test_a_peer_that_passes_on_another_result_than_it_keeps(peers, monkeypatch):
    made = reference.Ring

    def choose(effect, buffers, *lanes):
        lies = peers[2]._data_plane.offers._buffers.get(effect.tag)
        return (LyingRing if lies is not None and lies.send.address == buffers.send.address else made)(
            effect, buffers, *lanes
        )

    with monkeypatch.context() as lie:
        lie.setattr(reference, "Ring", choose)
        assert_aborted_and_untouched(*reduce_all(peers, LONG), peers)
    assert_works(peers, LONG)


def test_a_peer_with_bad_memory(peers, parcels):
    peers[2]._data_plane.memory_is_bad = True
    assert_aborted_and_untouched(*reduce_all(peers, SHORT), peers)
    peers[2]._data_plane.memory_is_bad = False
    assert_works(peers, SHORT)


def test_every_kind_agrees(peers):
    """No kind of collective, and no codec, is taken for different when it is not."""
    root = peers[1].peer_id
    calls = (
        lambda rank, peer: peer.broadcast(np.full(LONG, rank, np.float32), root),
        lambda rank, peer: peer.all_gather(np.full(1000, rank, np.float32)),
        lambda rank, peer: peer.reduce_scatter(np.full(LONG, rank, np.float32)),
        lambda rank, peer: peer.all_reduce(np.linspace(0, rank, LONG, dtype=np.float32), quantize="int8"),
        lambda rank, peer: peer.all_reduce(np.linspace(0, rank, SHORT, dtype=np.float32), quantize="int4"),
        lambda rank, peer: peer.all_reduce_many([np.ones(LONG), np.ones(SHORT, np.int32), np.ones(3, np.float32)]),
    )
    for number, call in enumerate(calls):
        failed = [each for each in all_call(peers, call) if isinstance(each, PCCLError)]
        assert not failed, (number, failed)
