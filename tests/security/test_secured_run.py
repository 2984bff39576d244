"""A whole run behind a token: collectives, state, joins and a restarted master, all sealed."""

import contextlib
import threading

import numpy as np
import pytest

from pccl import Communicator, MasterNode, Refused, SharedState, TensorInfo
from tests.patience import HANG_S


def together(*calls):
    """Make these calls at the same time; their results, or the first failure."""
    results, failures = [None] * len(calls), []

    def run(place, call):
        try:
            results[place] = call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
    return results


@contextlib.contextmanager
def run_of(master, *planes, **more):
    """Peers with these data planes, all accepted."""
    address = f"pccl://127.0.0.1:{master.port}#{master.token}"
    with contextlib.ExitStack() as stack:
        peers = [Communicator(address, data_plane=plane, listen="127.0.0.1", **more) for plane in planes]
        stack.enter_context(peers[0])
        for count, peer in enumerate(peers[1:], 1):
            together(lambda peer=peer: stack.enter_context(peer), *(admit(each, count + 1) for each in peers[:count]))
        yield peers


def admit(peer, size):
    def call():
        while peer.world_size < size:
            peer.update_topology()

    return call


def summed(peers, count=300_000):
    """All-reduce of what differs from peer to peer."""
    tensors = [np.full(count, rank + 1, np.float32) for rank in range(len(peers))]
    together(*(lambda peer=peer, x=x: peer.all_reduce(x) for peer, x in zip(peers, tensors, strict=True)))
    return tensors


@pytest.mark.parametrize("planes", [("native", "native", "reference"), ("reference", "native")])
@pytest.mark.parametrize("lane_tls", ["on", "off"])
def test_planes_mix_in_one_ring(secured, planes, lane_tls):
    with run_of(secured, *planes, lane_tls=lane_tls) as peers:
        for count in (300_000, 10):
            for tensor in summed(peers, count):
                assert (tensor == sum(range(1, len(peers) + 1))).all()


def test_a_state_is_transferred(secured):
    with run_of(secured, "native", "native") as peers:
        tensors = [np.full(1 << 20, rank, np.float32) for rank in range(2)]
        states = [SharedState([TensorInfo.from_numpy(x, "x")]) for x in tensors]
        states[1].revision = 7
        together(*(lambda p=p, s=s: p.sync_shared_state(s) for p, s in zip(peers, states, strict=True)))
        assert (tensors[0] == 1).all()
        assert states[0].revision == 7


def test_the_run_goes_on_under_a_restarted_master(secured, secret):
    with run_of(secured, "native", "native") as peers:
        secured.interrupt()
        with MasterNode(f"127.0.0.1:{secured.port}", secret=secret):
            for tensor in summed(peers):
                assert (tensor == 3).all()


@pytest.mark.parametrize(("here", "comes"), [("on", "off"), ("off", "on")])
def test_peers_that_differ_in_sealing_are_told_so_when_they_join(secured, here, comes):
    """Both settings and both peers are named, and no peer has to vote for that."""
    address = f"pccl://127.0.0.1:{secured.port}#{secured.token}"
    with Communicator(address, listen="127.0.0.1", name="anna", lane_tls=here):
        other = Communicator(address, listen="127.0.0.1", name="bert", lane_tls=comes)
        with pytest.raises(Refused, match=rf"bert .*has lane_tls='{comes}' and anna .*has '{here}'"):
            other.connect()
        with pytest.raises(Refused, match=r"set lane_tls \(PCCL_LANE_TLS\) alike"):
            other.prefetch_shared_state(SharedState([TensorInfo.from_numpy(np.zeros(4, np.float32), "x")]))
