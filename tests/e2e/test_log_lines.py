"""What an operator reads: each event once, its end as well as its beginning, in sentences that are true."""

import logging
import re
import threading

import numpy as np

from pccl import MasterNode, SharedState, TensorInfo
from tests.e2e.test_api import connect_two, wait_until
from tests.patience import HANG_S


def together(peers, call):
    calls = [threading.Thread(target=call, args=(peer,)) for peer in peers]
    for each in calls:
        each.start()
    for each in calls:
        each.join(HANG_S)


def test_a_transfer_is_told_from_beginning_to_end(caplog):
    caplog.set_level(logging.INFO, logger="pccl")
    with MasterNode("127.0.0.1:0") as master:
        one, other = connect_two(master)
        states = {one: 3, other: 0}

        def sync(peer):
            weights = np.full(1000, states[peer], np.float32)
            state = SharedState([TensorInfo.from_numpy(weights, "weights")])
            state.revision = states[peer]
            peer.sync_shared_state(state)

        together([one, other], sync)
        assert "revision 3 goes from" in caplog.text
        assert re.search(rf"revision 3 has reached \S+ \({other.peer_id[:8]}\), after \d+\.\d s", caplog.text)
        assert re.search(r"transfer of shared state is over; 4,000 bytes received in \d+\.\d s", caplog.text)
        wait_until(lambda: "is over; 4,000 bytes sent in" in caplog.text)
        other.close()
        one.close()


def test_one_peer_is_one(caplog):
    caplog.set_level(logging.INFO, logger="pccl")
    with MasterNode("127.0.0.1:0") as master:
        one, other = connect_two(master)
        other.close()
        wait_until(lambda: "is gone" in caplog.text)
        one.close()
    assert "1 peers" not in caplog.text
    assert "; 1 peer" in caplog.text
