"""What is kept for peers in C between their calls, which cannot keep it themselves."""

import ctypes

import pytest

from pccl import SharedState, SharedStateSyncInfo, SyncFailed
from pccl.c_api.layouts import CSharedState, CTensorInfo
from pccl.c_api.peers import CPeer


class Breaking:
    """A communicator whose syncs fail in the middle, until they are let through."""

    def __init__(self):
        self.fails = True
        self.offered_torn = []

    def sync_shared_state(self, state: SharedState, strategy: int) -> SharedStateSyncInfo:
        self.offered_torn.append(state.torn)
        if self.fails:
            state.interrupted(pulled=True)
            raise SyncFailed("every holder was lost")
        state.revision += 1
        return SharedStateSyncInfo(0, 4)


@pytest.fixture
def peer():
    made = CPeer("127.0.0.1:1", 0, 0)
    made.communicator = Breaking()
    return made


def test_a_mixture_is_known_as_one_until_a_sync_succeeds_or_its_revision_changes(peer):
    value = ctypes.c_float(1.0)
    info = CTensorInfo(b"w", ctypes.addressof(value), 1, 10, 0, False)
    state = CSharedState(7, 1, ctypes.addressof(info))
    for _ in range(2):
        with pytest.raises(SyncFailed):
            peer.sync(state, 0)
        assert state.revision == 7, "as it was"
    state.revision = 8
    with pytest.raises(SyncFailed):
        peer.sync(state, 0)
    peer.communicator.fails = False
    assert peer.sync(state, 0).rx_bytes == 4
    assert state.revision == 9
    peer.sync(state, 0)
    assert peer.communicator.offered_torn == [False, True, False, True, False]
