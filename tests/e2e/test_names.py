"""Who is who: names in sentences, in what a Communicator tells of itself, and in a notebook cell that was run twice."""

import os
import threading

import pytest

from pccl import Communicator, MasterNode, UsageError
from tests.e2e.test_api import wait_until
from tests.patience import HANG_S

HOSTILE = "\x1b[31m<b>" + "x" * 10_000 + "\n"


def connected(master, *names):
    """Peers of these names, all admitted."""
    peers = [Communicator(f"127.0.0.1:{master.port}", name=name) for name in names]
    peers[0].connect()
    for number, peer in enumerate(peers[1:], start=1):
        joining = threading.Thread(target=peer.connect)
        joining.start()
        voting = [threading.Thread(target=admit, args=(each,)) for each in peers[:number]]
        for thread in voting:
            thread.start()
        for thread in (*voting, joining):
            thread.join(HANG_S)
    return peers


def admit(peer):
    while not peer.are_peers_pending():
        pass
    peer.update_topology()


def test_a_communicator_says_who_and_where_it_is():
    with MasterNode("127.0.0.1:0") as master:
        tokyo, oslo = connected(master, "tokyo-2", "oslo")
        assert (tokyo.name, oslo.name, tokyo.world_size) == ("tokyo-2", "oslo", 2)
        where = f"rank {tokyo.rank} of 2 in group 0, epoch {tokyo.epoch}, master 127.0.0.1:{master.port}"
        assert repr(tokyo) == f"<Communicator tokyo-2 ({tokyo.peer_id[:8]}): {where}>"
        oslo.close()
        assert repr(oslo) == f"<Communicator oslo: closed, master 127.0.0.1:{master.port}>"
        tokyo.close()


def test_a_communicator_that_is_outside_says_so(monkeypatch):
    monkeypatch.setenv("PCCL_MASTER", "127.0.0.1")
    monkeypatch.setenv("PCCL_NAME", HOSTILE)
    peer = Communicator()
    assert peer.name == "?[31m<b>" + "x" * 39 + "…"
    assert repr(peer) == f'<Communicator "{peer.name}": not connected, master 127.0.0.1:48148>'
    with pytest.raises(UsageError, match="world_size: call connect first"):
        _ = peer.world_size


def test_sentences_have_names(caplog):
    with MasterNode("127.0.0.1:0", explain_after_s=0.1) as master:
        tokyo, oslo = connected(master, "tokyo-2", "os lo")
        asking = threading.Thread(target=tokyo.are_peers_pending)
        asking.start()
        missing = f'are_peers_pending waits for "os lo" ({oslo.peer_id[:8]}) (1 of 2 peers have called it)'
        wait_until(lambda: missing in caplog.text)
        wait_until(lambda: sum(record.name == "pccl.peer" for record in caplog.records) > 0)
        assert missing in master.explain()
        oslo.are_peers_pending()
        asking.join(HANG_S)
        oslo.close()
        tokyo.close()


def test_a_second_communicator_of_a_process_is_named_as_such(caplog):
    with MasterNode("127.0.0.1:0", explain_after_s=0.1) as master:
        (old,) = connected(master, "cell")
        again = Communicator(f"127.0.0.1:{master.port}", name="cell")
        joining = threading.Thread(target=again.connect)
        joining.start()
        words = f"are two Communicators of one process (pid {os.getpid()} on "
        wait_until(lambda: any(words in each for each in master.explain()))
        (wait,) = master.explain()
        assert wait.endswith("): close() the older one")
        assert f"cell ({old.peer_id[:8]}) and cell (" in wait
        wait_until(lambda: words in caplog.text)
        old.close()
        joining.join(HANG_S)
        assert again.world_size == 1
        again.close()
