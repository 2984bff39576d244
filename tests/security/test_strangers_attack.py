"""What a stranger can do to a run, S1 to S8 of the threat model, by the attack itself over real sockets.

Where the secret is the protection the same attack runs against a master without one, and must succeed there: else it
would show nothing. docs/security.md has the table of all attacks and their tests.
"""

import contextlib
import socket
import threading

import numpy as np
import pytest

from pccl import CollectiveAborted, Communicator, Kicked, PCCLError, ProtocolError, SharedState, TensorInfo
from pccl.core.fields import Identity
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.report import Answered, LinkReport, ReportPart
from pccl.core.messages.to_master import Leave, LinkDown, Resume
from pccl.core.messages.to_peer import Resumed, Welcome
from pccl.types import PeerId
from tests.e2e.test_api import wait_until
from tests.patience import HANG_S
from tests.security.attacker import Gone, LaneOffer, join, lane_port
from tests.security.conftest import OPEN, SECURED, Tap
from tests.security.test_secured_run import admit, summed, together


def connect(*peers):
    """All of them, one after the other."""
    peers[0].connect()
    for count, peer in enumerate(peers[1:], 1):
        together(peer.connect, *(admit(each, count + 1) for each in peers[:count]))


def resume(run, me, *, epoch=7, size=2, secret=""):
    """What a peer of a run reports that never was."""
    answered = Answered(last_number=90, accepted_at=1, topology=50, updated=50)
    return Resume(Identity(PeerId(me), 0, "", 9, 1, secret=secret), run, epoch, size, 9, answered)


def state(value, revision=0):
    tensor = np.full(1000, value, np.float32)
    shared = SharedState([TensorInfo.from_numpy(tensor, "weights")])
    shared.revision = revision
    return tensor, shared


def ask_for_ever(peer):
    """Until it fails."""
    while True:
        peer.are_peers_pending()


def test_s1_a_story_that_makes_no_sense_does_not_end_the_master(start, kind):
    """Two numbers of one pair, of which one is then said to be down. Closed by the core, with a secret or without."""
    run = start(follows=True)
    one, other = "a" * 32, "b" * 32
    for me, peer in ((one, other), (other, one)):
        attacker = run.attacker()
        links = tuple(LinkReport(number, PeerId(peer), me < peer, 1) for number in (4, 5))
        attacker.say(resume("madeup", me), ReportPart(ring=(PeerId(one), PeerId(other)), links=links))
        attacker.say(ReportPart(last=True))
    with contextlib.suppress(Gone):
        attacker.hear(Resumed)
        assert kind == OPEN, "a stranger was taken in"
    attacker.say(*(LinkDown(number, "it broke") for number in (4, 5)), Leave())
    attacker.close()
    assert run.master.serving
    peer = run.peer("anna")
    if kind == SECURED:
        peer.connect()
        assert peer.are_peers_pending() is False


def test_s2_a_made_up_run_takes_over_a_young_one(start, kind):
    run = start(follows=True)
    anna = run.peer("anna")
    anna.connect()
    ids = tuple(PeerId(letter * 32) for letter in "ab")
    for me in ids:
        attacker = run.attacker()
        attacker.say(resume("madeup", me), ReportPart(ring=ids, last=True))
        attacker.pong_for_ever()
    if kind == OPEN:
        with pytest.raises(Kicked):
            ask_for_ever(anna)
    else:
        assert anna.are_peers_pending() is False


def test_s3_a_lie_at_the_restart_of_a_master_ends_a_run(start, kind):
    run = start(follows=True, reunion_s=2.0)
    gate = Tap(run.port)
    anna = run.peer("anna", gate.address, master_timeout_s=30.0)
    anna.connect()
    name = run.master._core.lead.run
    gate.shut()
    run.restart()
    attacker = run.attacker()
    me = PeerId("a" * 32)
    attacker.say(resume(name, me, epoch=2**62, size=1), ReportPart(ring=(me,), last=True))
    with contextlib.suppress(Gone):
        attacker.hear(Resumed)
        attacker.pong_for_ever()
    gate.open()
    if kind == OPEN:
        with pytest.raises(PCCLError):
            anna.are_peers_pending()
    else:
        assert anna.are_peers_pending() is False
    gate.close()


def test_s4_all_weights_are_read(start, kind):
    run = start()
    anna = run.peer("anna")
    anna.connect()
    _, held = state(42.0)
    anna.sync_shared_state(held)
    stolen, empty = state(0.0)
    stranger = Communicator(f"127.0.0.1:{run.port}", token="", listen="127.0.0.1")
    if kind == OPEN:
        stranger.prefetch_shared_state(empty)
    else:
        with pytest.raises(ProtocolError, match="this master wants a token"):
            stranger.prefetch_shared_state(empty)
    assert (stolen == 42.0).all() == (kind == OPEN)


def test_s5_the_model_is_replaced(start, kind):
    run = start()
    anna, bert = run.peer("anna"), run.peer("bert")
    connect(anna, bert)
    (hers, held), (_, same) = state(1.0, 1), state(1.0, 1)
    together(lambda: anna.sync_shared_state(held), lambda: bert.sync_shared_state(same))
    evil = Communicator(f"127.0.0.1:{run.port}", token="", listen="127.0.0.1")
    over = threading.Event()

    def replace():
        try:
            evil.connect(n_attempts=1)
            evil.sync_shared_state(state(666.0, held.revision + 1)[1])
        except PCCLError:
            assert kind == SECURED
        finally:
            over.set()

    def train(peer, held):
        def step():
            while peer.world_size < 3 and not over.is_set():
                if peer.are_peers_pending():
                    peer.update_topology()
            peer.sync_shared_state(held)

        return step

    if kind == OPEN:
        together(replace, train(anna, held), train(bert, same))
    else:
        replace()
        together(lambda: anna.sync_shared_state(held), lambda: bert.sync_shared_state(same))
    evil.close()
    assert (hers == 666.0).all() == (kind == OPEN)


def test_s6_every_vote_is_held_for_ever(start, kind):
    run = start(explain_after_s=0.1, reunion_s=0.1)
    anna = run.peer("anna")
    anna.connect()
    attacker = run.attacker()
    attacker.say(join(group=7))
    with contextlib.suppress(Gone):
        attacker.hear(Welcome)
        assert kind == OPEN
    attacker.pong_for_ever()
    if kind == SECURED:
        assert anna.are_peers_pending() is False
        return
    anna.update_topology()
    asking = threading.Thread(target=anna.are_peers_pending)
    asking.start()
    wait_until(lambda: "are_peers_pending" in " ".join(run.master.explain()))
    assert asking.is_alive()
    attacker.close()
    asking.join(HANG_S)


def test_s7_a_replay_throws_a_peer_out(start, kind):
    run = start()
    tap = Tap(run.port)
    anna = run.peer("anna", tap.address)
    anna.connect()
    recorded = bytes(tap.up)
    with socket.create_connection(("127.0.0.1", run.port), HANG_S) as replay:
        replay.sendall(recorded)
        replay.recv(1)
        if kind == OPEN:
            with pytest.raises(PCCLError):
                ask_for_ever(anna)
        else:
            assert anna.are_peers_pending() is False
    tap.close()


def test_s8_lanes_of_others_are_taken(start, kind):
    """A link breaks, and the lanes of the next one have been offered by a stranger already."""
    run = start(redial_s=0.2)
    anna, bert = (run.peer(name, early_offer_s=HANG_S) for name in ("anna", "bert"))
    connect(anna, bert)
    name = run.master._core.lead.run
    with contextlib.ExitStack() as stack:
        offers = []
        for port, sender, receiver in ((lane_port(anna), bert, anna), (lane_port(bert), anna, bert)):
            hellos = [LaneHello(name, sender.peer_id, receiver.peer_id, link, 0) for link in range(2, 5)]
            offers += [stack.enter_context(contextlib.closing(LaneOffer(port, hello))) for hello in hellos]
        anna._membership._thread.post(lambda: anna._membership._shell._lanes.close((1, 0)))
        if kind == OPEN:
            wait_until(lambda: any(offer.accepted(timeout_s=0.01) for offer in offers))
            return
        assert not any(offer.accepted() for offer in offers)
    wait_until(lambda: min(peer._membership.core._links.newest for peer in (anna, bert)) > 1)
    assert all((tensor == 3).all() for tensor in reduced_at_last(anna, bert))


def reduced_at_last(*peers):
    """A collective during which a link may break."""
    while True:
        with contextlib.suppress(CollectiveAborted):
            return summed(peers, 100_000)
