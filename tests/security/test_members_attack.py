"""What an admitted peer can do to a run, A1 to A12 of the threat model, by the attack itself over real sockets.

It has a token, which is no protection against it: each attack is bounded by the protocol, and what is left is said in
docs/security.md, which has the table of all attacks and their tests.
"""

import contextlib
import re
import socket
import threading

import numpy as np
import pytest

from pccl import CallMismatch, Communicator, Kicked, PCCLError, SharedStateSyncStrategy
from pccl.cli import main
from pccl.core.fields import CollectiveSpec, LinkSpec, Party
from pccl.core.master.ration import LINES_MAX
from pccl.core.messages.report import ReportPart
from pccl.core.messages.to_master import (
    AskPending,
    Done,
    Failed,
    Fetch,
    Initiate,
    Leave,
    LinkDown,
    SyncEnded,
    VoteTopology,
)
from pccl.core.messages.to_peer import Kick, Topology, Waiting, Welcome, Wire
from pccl.net.thread import LoopEnded
from pccl.security import tokens
from pccl.security.secret import load
from pccl.security.tokens import Claim, Role
from pccl.types import DataType, PeerId, ReduceOp
from pccl.wire.codec import encode
from pccl.wire.framing import Purpose, frame, preamble
from tests.e2e.test_api import wait_until
from tests.patience import HANG_S
from tests.security.attacker import Gone, Run, join
from tests.security.test_secured_run import admit, summed, together
from tests.security.test_strangers_attack import ask_for_ever, connect, state


@pytest.fixture
def start(tmp_path):
    """Starts a run with a secret."""
    with contextlib.ExitStack() as stack:
        yield lambda **limits: Run(stack, tmp_path / "secret", **limits)


def token_of(run, role=Role.PEER):
    """Another one than the master prints."""
    return tokens.mint(load(run.secret), Claim(role, b"abcdef"), tokens.parse(run.token).pin).text()


def sync(peer, held, strategy=SharedStateSyncStrategy.ENFORCE_POPULAR):
    def call():
        try:
            return peer.sync_shared_state(held, strategy)
        except PCCLError as error:
            return error

    return call


@pytest.mark.parametrize("how", ["a higher revision", "SEND_ONLY"])
@pytest.mark.parametrize("right", [False, True], ids=["a guest", "the first token"])
def test_a2_the_model_is_replaced(start, how, right):
    """Once the run has agreed on a state, only a token with the right to bring one replaces it."""
    run = start()
    anna, bert = run.peer("anna"), run.peer("bert")
    evil = run.peer("evil", token=run.token if right else token_of(run))
    connect(anna, bert, evil)
    tensors, states = zip(*(state(1.0, 1) for _ in range(3)), strict=True)
    together(*(sync(peer, held) for peer, held in zip((anna, bert, evil), states, strict=True)))
    tensors[2][:] = 666.0
    strategies = [SharedStateSyncStrategy.ENFORCE_POPULAR] * 3
    if how == "SEND_ONLY":
        strategies = [*[SharedStateSyncStrategy.RECEIVE_ONLY] * 2, SharedStateSyncStrategy.SEND_ONLY]
    states[2].revision += how != "SEND_ONLY"
    calls = zip((anna, bert, evil), states, strategies, strict=True)
    together(*(sync(*each) for each in calls))
    for tensor in tensors[:2]:
        assert (tensor == 666.0).all() == right
        assert (tensor == 1.0).all() != right


@pytest.mark.parametrize("right", [False, True], ids=["clones of a guest", "of the first token"])
def test_a2_clones_of_one_token_are_no_majority(start, right):
    """One token joins as often as it likes: what its peers hold alike replaces the model only with the right."""
    run = start()
    anna, bert = run.peer("anna"), run.peer("bert")
    clones = [run.peer(f"clone-{number}", token=run.token if right else token_of(run)) for number in range(3)]
    peers = [anna, bert, *clones]
    connect(*peers)
    tensors, states = zip(*(state(1.0, 1) for _ in peers), strict=True)
    together(*(sync(peer, held) for peer, held in zip(peers, states, strict=True)))
    for tensor in tensors[2:]:
        tensor[:] = 666.0
    for held in states:
        held.revision = 2
    together(*(sync(peer, held) for peer, held in zip(peers, states, strict=True)))
    assert all((tensor == (666.0 if right else 1.0)).all() for tensor in tensors)


def test_a_crowd_of_half_parties_holds_no_vote_up(start, caplog):
    """One token joins a hundred times, each time as half of a party of its own: nobody waits for them, and they are a
    few lines. (How the work grows with their number is counted at the core.)"""
    run = start(explain_after_s=0.1)
    anna, bert = run.peer("anna"), run.peer("bert")
    connect(anna, bert)
    token = token_of(run)
    crowd = [run.attacker(token) for _ in range(100)]
    for number, attacker in enumerate(crowd):
        party = Party("crowd", 2, number.to_bytes(32))
        attacker.say(join(number, lane_tls="on", pin=b"p" * 32, party=party))
        attacker.hear(Welcome)
    for attacker in crowd:
        attacker.hear(Waiting)
    assert together(anna.are_peers_pending, bert.are_peers_pending) == [False, False]
    assert all((tensor == 3).all() for tensor in summed([anna, bert]))
    carl = run.peer("carl")
    together(carl.connect, admit(anna, 3), admit(bert, 3))
    assert sum("of party crowd" in each.getMessage() for each in caplog.records) <= 2 * LINES_MAX


class Denier:
    """Says of each of its links that it is down, again and again."""

    def __init__(self, peer):
        self._membership = peer._membership
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._deny, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(HANG_S)

    def _deny(self):
        while not self._over.wait(0.02):
            with contextlib.suppress(LoopEnded):
                self._membership._thread.run(self._deny_all())

    async def _deny_all(self):
        for number in list(self._membership.core._links._ends):
            self._membership._shell._control.send(encode(LinkDown(number, "no")))


def test_a4_one_that_denies_its_links_goes_and_no_other(start):
    run = start(silence_s=1.0, redial_s=0.1, undecided_s=0, link_timeout_s=1.0)
    anna, bert, evil = run.peer("anna"), run.peer("bert"), run.peer("evil")
    connect(evil, anna, bert)  # The liar is the eldest: the younger is not blamed for that.
    with Denier(evil), pytest.raises(Kicked, match="cannot reach each other"):
        ask_for_ever(evil)
    wait_until(lambda: {anna.world_size, bert.world_size} == {2})
    assert all((tensor == 3).all() for tensor in summed([anna, bert]))


def test_a4_of_two_that_cannot_be_told_apart_both_stay_and_are_named(start):
    """Until `undecided_s`, which is 0 here: for ever. The operator decides."""
    run = start(silence_s=0.5, redial_s=0.1, undecided_s=0, explain_after_s=0.1, link_timeout_s=1.0)
    anna, evil = run.peer("anna"), run.peer("evil")
    connect(evil, anna)
    with Denier(evil):
        reducing = threading.Thread(target=_try_to_reduce, args=(anna,), daemon=True)
        other = threading.Thread(target=_try_to_reduce, args=(evil,), daemon=True)
        reducing.start()
        other.start()
        wait_until(lambda: any(re.search("link (anna|evil).*(anna|evil)", each) for each in run.master.explain()))
        assert {anna.world_size, evil.world_size} == {2}
        assert kick(run, "evil") == 0
        reducing.join(HANG_S)
        other.join(HANG_S)
    assert anna.are_peers_pending() is False
    assert anna.world_size == 1


def _try_to_reduce(peer):
    with contextlib.suppress(PCCLError):
        while peer.world_size > 1:
            with contextlib.suppress(PCCLError):
                peer.all_reduce(np.ones(100_000, np.float32))
            peer.are_peers_pending()


def kick(run, name):
    return main(["kick", name, f"pccl://127.0.0.1:{run.port}#{token_of(run, Role.OPERATOR)}"])


def test_a5_calls_that_do_not_fit_name_who_differs(start):
    """All fail, which cannot be helped: sums of different things are none. The odd one is named, and an operator puts
    it out."""
    run = start()
    anna, bert, evil = peers = [run.peer(name) for name in ("anna", "bert", "evil")]
    connect(*peers)

    def reduce(peer, count):
        def call():
            try:
                return peer.all_reduce(np.ones(count, np.float32))
            except CallMismatch as error:
                return error

        return call

    for error in together(reduce(anna, 100), reduce(bert, 100), reduce(evil, 101)):
        assert isinstance(error, CallMismatch)
        assert "evil" in str(error)
    assert kick(run, "evil") == 0
    assert all((tensor == 3).all() for tensor in summed([anna, bert]))


def test_a10_a_false_master_makes_a_peer_open_thousands_of_connections():
    """Without a token a peer obeys who answers; what it opens is bounded all the same."""
    dialled = []
    with socket.create_server(("127.0.0.1", 0)) as target, socket.create_server(("127.0.0.1", 0)) as false:
        port = target.getsockname()[1]
        links = tuple(LinkSpec(number, PeerId(f"{number:032x}"), True, "127.0.0.1", port, 1024) for number in (1, 2, 3))

        def count():
            with contextlib.suppress(OSError):
                while True:
                    dialled.append(target.accept()[0])

        def serve():
            sock, _ = false.accept()
            said = Welcome("run"), Wire(links)
            with sock, contextlib.suppress(OSError):
                sock.sendall(preamble(Purpose.CONTROL) + b"".join(frame(encode(each)) for each in said))
                while sock.recv(65536):
                    pass

        for work in (count, serve):
            threading.Thread(target=work, daemon=True).start()
        peer = Communicator(f"127.0.0.1:{false.getsockname()[1]}", token="", listen="127.0.0.1", master_timeout_s=0.2)
        with pytest.raises(PCCLError, match="lanes_max"):
            peer.connect(n_attempts=1)
        assert dialled == []
    peer.close()


SPEC = CollectiveSpec(8, DataType.FLOAT, ReduceOp.SUM, codec="no-such-codec")


@pytest.mark.parametrize(
    "messages",
    [
        (Done(2**63, 2**62), Done(1, 1)),
        (Failed(1, 2**62, "\x1b[2J" * 100),),
        (Initiate(2**64 - 1, SPEC), Initiate(2**64 - 1, SPEC)),
        (SyncEnded(77, ""), SyncEnded(77, "")),
        (VoteTopology(), VoteTopology()),
        (AskPending(), AskPending(), AskPending()),
        (Fetch(),),
        (ReportPart(last=True),),
        (join(2),),
        (LinkDown(2**62, "x"), Initiate(1, SPEC), VoteTopology(), Initiate(2, SPEC)),
    ],
    ids=lambda messages: type(messages[0]).__name__,
)
def test_a12_nonsense_costs_its_sender_alone(start, messages):
    run = start(reunion_s=0.1)
    anna = run.peer("anna")
    anna.connect()
    attacker = run.attacker(token_of(run))
    attacker.say(join(1, group=7, pin=bytes(32), lane_tls="on"))
    attacker.hear(Welcome)
    anna.update_topology()
    attacker.hear(Topology)
    attacker.say(*messages, Leave())
    with pytest.raises(Gone):
        attacker.hear(())
    # Alone in its group it may call what it likes: it is told that it is too few.
    assert any(isinstance(each, Kick) for each in attacker.heard) != isinstance(messages[0], Initiate)
    assert anna.are_peers_pending() is False
    assert run.master.serving
    bert = run.peer("bert")
    together(bert.connect, admit(anna, 2))
    assert all((tensor == 3).all() for tensor in summed([anna, bert]))
