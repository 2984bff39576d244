"""What a stranger can do to a run, S9 to S15 of the threat model, by the attack itself over real sockets.

Without a secret some of these are bounded by budgets and rations, which is tried here as well; and those that the
secret alone prevents must succeed there.
"""

import contextlib
import socket
import threading

import pytest

from pccl import PCCLError
from pccl.core.master import candidates
from pccl.core.messages.to_peer import Kick, Waiting, Welcome
from pccl.security.audit import REFUSALS_PER_MINUTE
from pccl.wire.framing import Purpose, preamble
from tests.patience import HANG_S
from tests.security.attacker import EVIL_HOST, Gone, join
from tests.security.conftest import OPEN, SECURED
from tests.security.test_secured_run import admit, together


def test_s9_peers_are_used_to_look_at_ports(start, kind):
    """Without a secret peers dial where a candidate says that it can be dialled. It never reads what they find"""
    run = start(explain_after_s=0.1, link_timeout_s=2.0)
    anna = run.peer("anna")
    anna.connect()
    dialled = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as service:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = service.accept()
                    dialled.set()
                    with sock:
                        sock.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        threading.Thread(target=serve, daemon=True).start()
        attacker = run.attacker()
        attacker.say(join(host="127.0.0.1", port=service.getsockname()[1]))
        if kind == OPEN:
            attacker.hear(Welcome)
            voting = threading.Thread(target=anna.update_topology)
            voting.start()
            with contextlib.suppress(Gone):
                attacker.hear(Kick)
            voting.join(HANG_S)
            assert dialled.is_set()
        else:
            with pytest.raises(Gone):
                attacker.hear(Welcome)
            anna.update_topology()
            assert not dialled.is_set()
    words = " ".join(each.reason for each in attacker.heard if isinstance(each, Kick | Waiting))
    assert "SSH" not in words
    assert bool(words) == (kind == OPEN)


@pytest.fixture
def remote(monkeypatch):
    """Where attackers come from is another machine."""
    monkeypatch.setattr(candidates, "is_local", lambda host: host != EVIL_HOST)


def test_s10_one_address_fills_the_run(start, kind, remote):
    """Closed by budgets where there is no secret: candidates of one address have room for a few."""
    run = start(candidates_max=40, address_candidates_max=8, candidate_silence_s=0.5, link_timeout_s=0.5)
    anna = run.peer("anna")
    anna.connect()
    welcomed = 0
    for number in range(60):
        attacker = run.attacker()
        attacker.say(join(number))
        with contextlib.suppress(Gone):
            welcomed += isinstance(attacker.hear(Welcome | Kick), Welcome)
    assert welcomed == (8 if kind == OPEN else 0)
    bert = run.peer("bert")
    together(bert.connect, admit(anna, 2))
    assert bert.world_size == 2


def test_s10_the_first_of_a_group_settles_its_lanes(start, kind):
    """Of equal wishes the smallest counts."""
    run = start(follows=True, newborn_s=1.0)
    attacker = run.attacker()
    attacker.say(join(lanes=1024))
    with contextlib.suppress(Gone):
        attacker.hear(Welcome)
        assert kind == OPEN
    anna = run.peer("anna", p2p_connection_pool_size=2)
    anna.connect()
    assert anna.world_size == 1
    if kind == OPEN:
        with pytest.raises(Gone):
            attacker.hear(())
        assert "2 lanes per neighbour and you ask for 1024" in attacker.heard[-1].reason


def test_s11_a_silent_candidate_stalls_every_admission(start, kind, remote):
    """Without a secret it does so twice; then candidates of its address rest, and no peer is sent to admit them."""
    run = start(candidate_silence_s=candidates.FREE_S, link_timeout_s=candidates.FREE_S, redial_s=0.1)
    anna = run.peer("anna")
    anna.connect()
    stalled = []
    for number in range(4):
        attacker = run.attacker()
        attacker.say(join(number))
        with contextlib.suppress(Gone):
            attacker.hear(Welcome)
        pending = anna.are_peers_pending()
        stalled.append(pending)
        if pending:
            anna.update_topology()
            with pytest.raises(Gone):
                attacker.hear((), answers_pings=False)
    assert stalled == ([True, True, False, False] if kind == OPEN else [False] * 4)
    bert = run.peer("bert")
    together(bert.connect, admit(anna, 2))


def test_s14_refusals_do_not_fill_the_disk(start, kind, tmp_path, caplog):
    run = start()
    anna = run.peer("anna")
    anna.connect()
    for number in range(150):
        attacker = run.attacker()
        attacker.say(join(number))
        with contextlib.suppress(Gone):
            attacker.hear(Welcome)
        attacker.close()
    assert anna.world_size == 1
    assert len(caplog.records) < 50
    if kind == SECURED:
        lines = (tmp_path / "secret.audit").read_text().splitlines()
        assert sum("refused" in line for line in lines) <= 2 * REFUSALS_PER_MINUTE  # The minute may have ended.


def test_s15_a_false_master_learns_who_comes(start, kind):
    """Of a peer with a token nothing: see also `test_control.test_a_false_master_learns_nothing`."""
    run = start()
    learned = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as false:

        def serve():
            sock, _ = false.accept()
            with sock, contextlib.suppress(OSError):
                sock.sendall(preamble(Purpose.CONTROL))
                sock.settimeout(0.5)
                while data := sock.recv(65536):
                    learned.extend(data)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        anna = run.peer("a-name-of-a-peer", f"127.0.0.1:{false.getsockname()[1]}", master_timeout_s=0.2)
        with pytest.raises(PCCLError):
            anna.connect(n_attempts=1)
        serving.join(HANG_S)
    assert (b"a-name-of-a-peer" in learned) == (kind == OPEN)
