"""The control connection of a secured master: who gets in, what a false master learns, what a tap sees."""

import asyncio
import contextlib
import json
import re
import select
import socket
import ssl
import stat
import threading
import time

import numpy as np
import pytest

from pccl import Communicator, Kicked, MasterNode, PCCLError, ProtocolError, Refused
from pccl.cli import main
from pccl.config import Address
from pccl.core.fields import Identity
from pccl.core.messages.to_master import Join
from pccl.net.peer_end import PeerEnd
from pccl.security import certificate, control, identity, tls, tokens
from pccl.security.control import PeerGuard
from pccl.security.ledger import Ledger
from pccl.security.secret import MasterSecret, load
from pccl.security.tokens import Claim, Role
from pccl.types import PeerId
from pccl.wire.codec import encode
from pccl.wire.framing import Purpose, frame, preamble
from tests.e2e.test_api import wait_until
from tests.fuzz.secured import Wire
from tests.patience import HANG_S


def refused(address, **more):
    with pytest.raises(ProtocolError) as caught:
        Communicator(address, **more).connect(n_attempts=1)
    return str(caught.value)


def place(master):
    return f"127.0.0.1:{master.port}"


def test_the_join_address_is_all_that_a_peer_needs(secured):
    with Communicator(f"pccl://{place(secured)}#{secured.token}") as comm:
        assert comm.world_size == 1
        assert secured.token not in repr(comm)


@pytest.mark.parametrize("way", ["argument", "variable", "file", "address in the environment"])
def test_a_token_comes_by_any_way(secured, monkeypatch, tmp_path, way):
    (tmp_path / "token").write_text(f"{secured.token}\n")
    match way:
        case "variable":
            monkeypatch.setenv("PCCL_TOKEN", secured.token)
        case "file":
            monkeypatch.setenv("PCCL_TOKEN_FILE", str(tmp_path / "token"))
        case "address in the environment":
            monkeypatch.setenv("PCCL_MASTER", f"pccl://{place(secured)}#{secured.token}")
    address = None if way == "address in the environment" else place(secured)
    with Communicator(address, token=secured.token if way == "argument" else None) as comm:
        assert comm.world_size == 1


def test_without_a_token_a_peer_is_refused_in_words(secured):
    assert "this master wants a token" in refused(place(secured))


def test_a_token_of_another_secret_is_refused(secured):
    token = tokens.mint(MasterSecret(bytes(32)), Claim(Role.PEER, b"abcdef"), bytes(32))
    words = refused(place(secured), token=token.text())
    assert "made with another secret" in words
    assert "has not proved to be the master" in words


def test_a_peer_with_a_token_never_falls_back():
    with MasterNode("127.0.0.1:0", secret="") as open_to_all:
        token = tokens.mint(MasterSecret(bytes(32)), Claim(Role.PEER, b"abcdef"), bytes(32))
        assert "this master has no secret" in refused(place(open_to_all), token=token.text())


def test_an_expired_or_revoked_token_is_refused(secured, secret):
    for claim, words in (
        (Claim(Role.PEER, b"abcdef", 1), "has expired"),
        (Claim(Role.PEER, b"ghijkl", int(time.time()) + 3600), "was revoked"),
    ):
        Ledger.beside(secret).revoke(b"ghijkl".hex())
        token = tokens.mint(load(secret), claim, tokens.parse(secured.token).pin)
        assert words in refused(place(secured), token=token.text())


def test_a_token_survives_the_restart_of_the_master(secured, secret):
    token, port = secured.token, secured.port
    secured.interrupt()
    with (
        MasterNode(f"127.0.0.1:{port}", secret=secret, newborn_s=0.1),
        Communicator(f"pccl://127.0.0.1:{port}#{token}") as comm,
    ):
        assert comm.world_size == 1


def test_a_peer_with_a_token_returns_to_a_restarted_master(secured, secret):
    address = f"pccl://{place(secured)}#{secured.token}"
    with Communicator(address) as comm:
        secured.interrupt()
        with MasterNode(place(secured), secret=secret):
            assert comm.are_peers_pending() is False


class FalseMaster:
    """Takes every knock, and shows a certificate of its own."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.learned = b""
        self.over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        sock, _ = self._listener.accept()
        self._listener.close()
        sock.recv(8 + control.KNOCK_BYTES, socket.MSG_WAITALL)
        sock.sendall(preamble(Purpose.CONTROL_TLS))
        context = tls.accepting_context(certificate.make(b"f" * 32))
        with contextlib.suppress(OSError):
            sock = context.wrap_socket(sock, server_side=True)
            self.learned = sock.recv(65536)
        sock.close()
        self.over.set()


def test_a_false_master_learns_nothing(secured):
    false = FalseMaster()
    # A peer that is taken in by it looks for its master again when this one is gone, and shall not do that for long.
    words = refused(false.address, token=secured.token, master_timeout_s=0.5)
    assert "another key than the one that the token pins" in words
    assert false.over.wait(HANG_S)
    assert false.learned == b""


@pytest.mark.parametrize("purpose", [Purpose.CONTROL, Purpose.LANE, None])
def test_nothing_is_sent_in_the_clear_to_a_master_that_answers_in_the_clear(secured, purpose):
    """Whatever this peer still had to say: what answers like that is not its master. `None`: one of another version."""

    async def story():
        token, wire = tokens.parse(secured.token), Wire()
        end = PeerEnd(lambda body: None, lambda cause: None, PeerGuard(token))
        end.connection_made(wire)
        knocked = len(wire.taken())
        end.data_received(b"PCCL\x63\0\1\0" if purpose is None else preamble(purpose))
        end.send(b"a secret")
        assert knocked > control.KNOCK_BYTES
        assert wire.taken() == b""
        end.connection_lost(None)
        assert await end.greeted

    asyncio.run(story())


def sealed_connection(port, first):
    """A client that has recorded the first bytes of another, and speaks TLS."""
    sock = socket.create_connection(("127.0.0.1", port), HANG_S)
    sock.sendall(first)
    assert sock.recv(8, socket.MSG_WAITALL) == preamble(Purpose.CONTROL_TLS)
    return tls.dialling_context().wrap_socket(sock)


def knocked(token, nonce=b"n" * 16):
    return preamble(Purpose.CONTROL_TLS) + control.knock(token.claim, token.key, nonce)


def join(secret="0" * 32, peer=None):
    """A greeting; of a peer whose id is not its own if one is given."""
    me = identity._id_of(secret) if peer is None else peer
    return frame(encode(Join(Identity(PeerId(me), 0, "", 1, 0, secret=secret), 1)))


def test_a_recorded_knock_opens_no_door(secured):
    """It gets as far as TLS, and without the token not one step further: the core never learns of it."""
    token = tokens.parse(secured.token)
    with sealed_connection(secured.port, knocked(token)) as thief:
        thief.sendall(b"x" * control.PROOF_BYTES + join())
        assert ends(thief)
    with sealed_connection(secured.port, knocked(token, b"m" * 16)) as holder:  # the same with the proof does work
        holder.sendall(control.proof(token.key, token.pin) + join())
        assert holder.recv(4)


def test_whose_token_knocked_and_proved_nothing_is_in_the_audit_log(secured, secret):
    token = tokens.parse(secured.token)
    with sealed_connection(secured.port, knocked(token)) as thief:
        thief.sendall(b"x" * control.PROOF_BYTES)
        assert ends(thief)
    path = secret.with_suffix(".audit")
    wait_until(lambda: path.exists() and "refused" in path.read_text())
    (line,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["token"], line["host"]) == (token.claim.name, "127.0.0.1")


def test_a_knock_opens_once(secured):
    """Recorded and sent again it costs the master no handshake: else one recording would keep a core busy."""
    token = tokens.parse(secured.token)
    for again in (False, True):
        with socket.create_connection(("127.0.0.1", secured.port), HANG_S) as sock:
            sock.sendall(knocked(token))
            head = sock.recv(8, socket.MSG_WAITALL)
            if again:
                assert head != preamble(Purpose.CONTROL_TLS)
                assert b"a recording" in sock.recv(4096)
            else:
                assert head == preamble(Purpose.CONTROL_TLS)


def test_the_knocks_that_are_remembered_are_bounded(secured, monkeypatch):
    monkeypatch.setattr(control, "NONCES_MAX", 3)
    token, door = tokens.parse(secured.token), secured._door
    for number in range(10):
        door.admit(control.knock(token.claim, token.key, number.to_bytes(16, "big")))
    assert len(door._nonces) == 3
    with pytest.raises(control.Refused, match="a recording"):
        door.admit(control.knock(token.claim, token.key, (9).to_bytes(16, "big")))


def ends(sock):
    try:
        return sock.recv(1) == b""
    except (ssl.SSLError, ConnectionResetError):
        return True


def test_an_id_belongs_to_the_secret_that_it_was_made_of(secured):
    """With a token alone one peer cannot take the place of another."""
    token = tokens.parse(secured.token)
    with Communicator(f"pccl://{place(secured)}#{secured.token}") as victim:
        with sealed_connection(secured.port, knocked(token)) as thief:
            thief.sendall(control.proof(token.key, token.pin) + join("f" * 32, victim.peer_id))
            assert ends(thief)
        assert victim.are_peers_pending() is False


def test_a_tap_sees_no_token_no_name_and_no_message(secured, tap):
    token = tokens.parse(secured.token)
    with Communicator(f"pccl://{tap.address}#{secured.token}", name="a-name-that-is-seen-nowhere") as comm:
        comm.update_topology()
        secret = comm._membership.core.identity.secret
        peer = comm.peer_id
    for wire in (bytes(tap.up), bytes(tap.down)):
        assert len(wire) > 500
        for hidden in (token.key, token.pin, secured.token.encode(), secret.encode(), peer.encode(), b"a-name-that"):
            assert hidden not in wire


def test_without_a_secret_the_same_tap_sees_all():
    from tests.security.conftest import Tap

    with MasterNode("127.0.0.1:0", secret="") as open_to_all:
        tap = Tap(open_to_all.port)
        with Communicator(tap.address, name="a-name-that-is-seen") as comm:
            comm.update_topology()
            assert comm._membership.core.identity.secret.encode() in tap.up
        assert b"a-name-that-is-seen" in tap.up
        tap.close()


def test_commands_need_a_token_too(secured, capsys):
    assert main(["status", place(secured)]) == 4
    assert "this master wants a token" in capsys.readouterr().err
    assert main(["status", f"pccl://{place(secured)}#{secured.token}"]) in (0, 3)
    out = capsys.readouterr().out
    assert secured.token not in out


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_doctor_s_report_shows_no_token(secured, capsys, monkeypatch, as_json):
    monkeypatch.setenv("PCCL_TOKEN", secured.token)
    monkeypatch.setenv("PCCL_MASTER", f"pccl://{place(secured)}#{secured.token}")
    for address in ([], [f"pccl://{place(secured)}#{secured.token}"]):
        assert main(["doctor", *as_json, *address]) in (0, 1)
        told = capsys.readouterr()
        assert secured.token not in told.out + told.err
        assert "(a token)" in told.out


def test_a_wrong_address_is_named_without_its_token(secured, capsys):
    assert main(["status", f"tcp://{place(secured)}#{secured.token}"]) == 2
    shown = capsys.readouterr().err
    assert "address must be host:port" in shown
    assert secured.token not in shown
    assert not re.search(r"#\S", shown)


def test_messages_of_any_length_pass(secured):
    """Larger than a record of TLS, in portions as they come."""
    with Communicator(f"pccl://{place(secured)}#{secured.token}") as comm:
        assert comm._config.master == Address("127.0.0.1", secured.port)
        for _ in range(50):
            assert comm.are_peers_pending() is False
        assert np.asarray(comm.world_size) == 1


def token_of(secret, claim, secured):
    return tokens.mint(load(secret), claim, tokens.parse(secured.token).pin).text()


def test_a_revoked_token_ends_the_connections_that_have_it(secured, secret):
    guest = token_of(secret, Claim(Role.PEER, b"abcdef"), secured)
    with Communicator(f"pccl://{place(secured)}#{secured.token}", listen="127.0.0.1") as host:
        other = Communicator(place(secured), token=guest, listen="127.0.0.1")
        joining = threading.Thread(target=other.connect)
        joining.start()
        while host.world_size < 2:
            host.update_topology()
        joining.join(HANG_S)
        assert main(["token", "revoke", b"abcdef".hex(), "--secret", str(secret)]) == 2  # not one of the ledger's
        Ledger.beside(secret).revoke(b"abcdef".hex())
        with pytest.raises(Kicked, match="its token 616263646566 was revoked"):
            ask_until_it_fails(host, other)
        assert host.are_peers_pending() is False
        assert host.world_size == 1


def ask_until_it_fails(first, second):
    """Both ask whether peers are pending, again and again; raises the second one's failure."""
    while True:
        together_pending(first, second)


def together_pending(first, second):
    failures = []

    def ask():
        try:
            second.are_peers_pending()
        except PCCLError as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    first.are_peers_pending()
    asking.join(HANG_S)
    if failures:
        raise failures[0]


def test_an_observer_may_look_and_not_join(secured, secret, capsys):
    observer = token_of(secret, Claim(Role.OBSERVER, b"abcdef"), secured)
    assert main(["status", f"pccl://{place(secured)}#{observer}"]) in (0, 3)
    with pytest.raises(Refused, match="join with the role peer"):
        Communicator(place(secured), token=observer).connect(n_attempts=1)
    capsys.readouterr()
    assert main(["kick", "nobody", f"pccl://{place(secured)}#{observer}"]) == 2
    assert "role operator" in capsys.readouterr().err


def test_the_audit_log_says_who_came_with_which_token(secured, secret):
    with Communicator(f"pccl://{place(secured)}#{secured.token}", name="ada"):
        pass
    refused(place(secured))
    path = secret.with_suffix(".audit")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    deadline = time.monotonic() + HANG_S
    while "this master wants a token" not in path.read_text() and time.monotonic() < deadline:
        select.select([], [], [], 0.001)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    came = next(each for each in lines if each["event"] == "Join")
    assert came["token"] == tokens.parse(secured.token).claim.name
    assert came["name"] == "ada"
    assert [each["host"] for each in lines if each["event"] == "refused"] == ["127.0.0.1"]
    for hidden in (secured.token, tokens.parse(secured.token).key.hex()):
        assert hidden not in path.read_text()


def test_the_audit_log_says_who_was_let_in_and_who_was_not_though_its_token_was_good(secured, secret):
    observer = token_of(secret, Claim(Role.OBSERVER, b"abcdef"), secured)
    with Communicator(f"pccl://{place(secured)}#{secured.token}", name="ada", listen="127.0.0.1"):
        with pytest.raises(Refused):
            Communicator(place(secured), token=observer, name="eve").connect(n_attempts=1)
        path = secret.with_suffix(".audit")
        wait_until(lambda: "refused" in path.read_text())
    told = [(each["event"], each.get("words", "")) for each in map(json.loads, path.read_text().splitlines())]
    assert [event for event, _ in told[:4]] == ["Join", "joined", "Join", "refused"]
    assert "ada" in told[1][1]
    assert "eve" in told[3][1]
    assert "join with the role peer" in told[3][1]
