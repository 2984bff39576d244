"""A whole run whose lanes are secured: collectives over the ring and by parcels, and a shared state, in one process.

Stands on what the settings of a Communicator lead to: keys from the master, pins in identities, shells that prove.
"""

import functools
import secrets
import threading

import numpy as np
import pytest
from msgspec.structs import replace

import pccl
from pccl.api import master_node, membership
from pccl.api.lane_security import make_lane_security
from pccl.core.master.master import Master
from pccl.net.peer_shell import PeerShell
from tests.patience import HANG_S


@pytest.fixture
def securing(monkeypatch):
    """Every master gives keys, and every peer proves itself, with its own plane and this setting of `lane_tls`."""

    def secure(lane_tls):
        keys = functools.partial(Master, link_keys=lambda number: secrets.token_bytes(32))
        monkeypatch.setattr(master_node, "Master", keys)
        identity = membership.Membership._identity
        made = {}

        def shell(plane, *rest):
            name = "native" if "Native" in type(plane).__name__ else "reference"
            made[threading.get_ident()] = security = make_lane_security(name, lane_tls)
            this = PeerShell(plane, *rest)
            this.secure_lanes(security)
            return this

        def pinned(self, port, visits):
            return replace(identity(self, port, visits), pin=made[threading.get_ident()].pin)

        monkeypatch.setattr(membership, "PeerShell", shell)
        monkeypatch.setattr(membership.Membership, "_identity", pinned)

    return secure


def in_threads(works):
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
        assert not thread.is_alive(), "it hangs"
    assert not failures


@pytest.mark.parametrize("lane_tls", [True, False])
@pytest.mark.parametrize("planes", [("native", "native"), ("native", "reference"), ("reference", "native", "native")])
def test_a_run_with_secured_lanes(securing, planes, lane_tls):
    securing(lane_tls)
    size = len(planes)
    together = threading.Barrier(size)
    with pccl.MasterNode("127.0.0.1:0") as master:

        def peer(rank, plane):
            with pccl.Communicator(f"127.0.0.1:{master.port}", data_plane=plane) as comm:
                while comm.world_size < size:
                    comm.update_topology()
                together.wait(HANG_S)
                for count in (3, 2000, 1_000_003):  # by parcels, and around the ring
                    values = np.full(count, rank + 1.0, np.float32)
                    comm.all_reduce(values, op=pccl.ReduceOp.SUM)
                    assert np.all(values == size * (size + 1) / 2)
                weights = np.full(300_000, float(rank), np.float32)
                state = pccl.SharedState([pccl.TensorInfo.from_numpy(weights, "w")])
                state.revision = 5 if rank == 0 else 1
                comm.sync_shared_state(state)
                assert np.all(weights == 0.0)
                together.wait(HANG_S)

        in_threads([functools.partial(peer, rank, plane) for rank, plane in enumerate(planes)])
