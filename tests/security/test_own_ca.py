"""Certificates of an own CA instead of tokens: who gets in, with which role, and what those read who do not."""

import contextlib
import json
import re
import shutil
import socket
import stat
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from pccl import Communicator, MasterNode, ProtocolError, Refused, SharedState, TensorInfo, UsageError
from pccl.cli import main
from pccl.core.rights import Rights
from pccl.credentials import CertificateFiles
from pccl.security import authority, tls
from pccl.security.authority import Authority
from pccl.wire.framing import Purpose, preamble
from tests.patience import HANG_S
from tests.security.conftest import Tap
from tests.security.test_secured_run import admit, summed, together

pytestmark = pytest.mark.usefixtures("state_home")


def place(master, host="127.0.0.1"):
    return f"{host}:{master.port}"


def why_not(address, certificates):
    with pytest.raises(ProtocolError) as caught:
        Communicator(address, **certificates).connect(n_attempts=1)
    return str(caught.value)


@contextlib.contextmanager
def run_of(master, certificates, *planes, **more):
    """Peers with these data planes, all accepted."""
    with contextlib.ExitStack() as stack:
        peers = [
            Communicator(place(master), data_plane=plane, listen="127.0.0.1", **certificates, **more)
            for plane in planes
        ]
        stack.enter_context(peers[0])
        for count, peer in enumerate(peers[1:], 1):
            together(lambda peer=peer: stack.enter_context(peer), *(admit(each, count + 1) for each in peers[:count]))
        yield peers


# ── a run ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("lane_tls", ["on", "off"])
def test_a_run_with_certificates_on_mixed_planes(ours, certified, lane_tls):
    with run_of(certified, ours.peer(), "native", "reference", "native", lane_tls=lane_tls) as peers:
        for tensor in summed(peers):
            assert (tensor == 6).all()


def test_a_state_is_transferred(ours, certified):
    with run_of(certified, ours.peer("bringer", "peer+state"), "native", "reference") as peers:
        tensors = [np.full(1 << 18, rank, np.float32) for rank in range(2)]
        states = [SharedState([TensorInfo.from_numpy(x, "x")]) for x in tensors]
        states[1].revision = 7
        together(*(lambda p=p, s=s: p.sync_shared_state(s) for p, s in zip(peers, states, strict=True)))
        assert (tensors[0] == 1).all()


def test_the_run_goes_on_under_a_restarted_master(ours, certified):
    with run_of(certified, ours.peer(), "native", "native") as peers:
        certified.interrupt()
        with MasterNode(place(certified), **ours.master()):
            for tensor in summed(peers):
                assert (tensor == 3).all()


def test_files_come_by_the_environment(ours, monkeypatch):
    for name, path in ours.master().items():
        monkeypatch.setenv(f"PCCL_{name.upper()}", str(path))
    with MasterNode("127.0.0.1:0") as master:
        for name, path in ours.peer().items():
            monkeypatch.setenv(f"PCCL_{name.upper()}", str(path))
        with Communicator(place(master)) as comm:
            assert comm.world_size == 1


def test_a_tap_sees_no_message_and_no_name(ours, certified):
    tap = Tap(certified.port)
    with Communicator(tap.address, name="a-name-that-is-seen-nowhere", **ours.peer()) as comm:
        comm.update_topology()
        secret, peer = comm._membership.core.identity.secret, comm.peer_id
    tap.close()
    for wire in (bytes(tap.up), bytes(tap.down)):
        assert len(wire) > 500
        for hidden in (secret.encode(), b"a-name-that", peer.encode(), b"pccl:peer"):
            assert hidden not in wire


def test_a_renewed_certificate_is_taken_up(ours, certified, tmp_path):
    """Files are replaced in place: the next connection shows the new certificate, control and lanes."""
    files = {name: tmp_path / f"mine.{name}" for name in ("ca", "cert", "key")}

    def renew(certificates):
        for name, path in certificates.items():
            fresh = tmp_path / "fresh"
            shutil.copy(path, fresh)
            fresh.rename(files[name])

    renew(ours.peer("old", days=-1))
    with Communicator(place(certified), listen="127.0.0.1", **ours.peer()) as first:
        mine = Communicator(place(certified), listen="127.0.0.1", **files)
        with pytest.raises(ProtocolError, match="it has expired"):
            mine.connect(1)
        renew(ours.peer("new"))
        with contextlib.ExitStack() as stack:
            together(lambda: stack.enter_context(mine), admit(first, 2))
            for tensor in summed([first, mine]):
                assert (tensor == 3).all()


# ── who is turned away ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_peer_with_an_expired_certificate(ours, certified):
    words = why_not(place(certified), ours.peer("late", days=-1))
    assert "refuses our certificate, cert (PCCL_CERT): it has expired; renew it" in words


def test_a_peer_of_a_foreign_ca(ours, foreign, certified):
    mixed = foreign.peer() | {"ca": ours.ca}
    words = why_not(place(certified), mixed)
    assert "it is not of the CA that the master believes" in words


def test_a_certificate_that_no_server_may_use(ours, certified):
    words = why_not(place(certified), ours.peer("server-only", usage="serverAuth"))
    assert "extendedKeyUsage=clientAuth,serverAuth" in words


def test_a_certificate_without_a_role_opens_nothing(ours, certified):
    """Every machine of a company may have one of the same CA."""
    words = why_not(place(certified), ours.issue("printer", "DNS:printer.example.org")._asdict())
    assert "names the roles (none); issue it with subjectAltName=URI:pccl:peer" in words


def test_a_revoked_certificate(ours, tmp_path):
    """The CA's list lies behind its certificate, and is looked at from the next connection on."""
    master = ours.master() | {"ca": tmp_path / "ca.pem"}
    shutil.copy(ours.ca, master["ca"])
    with MasterNode("127.0.0.1:0", **master) as node:
        with Communicator(place(node), **ours.peer("thief")) as comm:
            assert comm.world_size == 1
        with master["ca"].open("a") as file:
            file.write(ours.revoked("thief"))
        assert "it was revoked; have another one issued" in why_not(place(node), ours.peer("thief"))
        with Communicator(place(node), **ours.peer()) as comm:
            assert comm.world_size == 1


def test_a_master_with_an_expired_certificate(ours):
    with MasterNode("127.0.0.1:0", **ours.master("old-master", days=-1)) as master:
        words = why_not(place(master), ours.peer())
    assert "the master's certificate has expired; renew it" in words


def test_a_master_of_a_foreign_ca(ours, foreign):
    with MasterNode("127.0.0.1:0", **foreign.master()) as master:
        words = why_not(place(master), ours.peer())
    assert "the master's certificate is not of our CA" in words


def test_a_master_of_another_name(ours):
    with MasterNode("127.0.0.1:0", **ours.master("elsewhere", names="DNS:elsewhere.example.org")) as master:
        words = why_not(place(master), ours.peer())
        assert "the master's certificate is not for '127.0.0.1'" in words
        assert "not for 'localhost'" in why_not(place(master, "localhost"), ours.peer())


class FalseMaster:
    """A peer that sits at the master's address, with a certificate of the CA for that host, but not of a master."""

    def __init__(self, files):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._context = Authority(CertificateFiles(**files)).accepting()
        self.learned = b""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        sock, _ = self._listener.accept()
        sock.recv(8, socket.MSG_WAITALL)
        sock.sendall(preamble(Purpose.CONTROL_CERTIFIED))
        with contextlib.suppress(OSError):
            sock = self._context.wrap_socket(sock, server_side=True)
            self.learned = sock.recv(65536)
        sock.close()

    def over(self):
        self._thread.join(HANG_S)
        self._listener.close()
        return not self._thread.is_alive()


def test_a_peer_at_the_master_s_address_is_no_master(ours):
    false = FalseMaster(ours.issue("impostor", "IP:127.0.0.1,URI:pccl:peer")._asdict())
    words = why_not(false.address, ours.peer())
    assert (
        "it is no master: its certificate names the roles peer; issue it with subjectAltName=URI:pccl:master" in words
    )
    assert false.over()
    assert false.learned == b""


def test_a_master_must_have_the_certificate_of_one(ours):
    with pytest.raises(
        UsageError, match=r"cert \(PCCL_CERT\) must be that of a master, got one that names the roles peer"
    ):
        MasterNode("127.0.0.1:0", **ours.peer())


def test_tokens_and_certificates_do_not_meet(ours, certified, secret):
    with MasterNode("127.0.0.1:0", secret=secret) as with_secret:
        assert "this master wants a token" in why_not(place(with_secret), ours.peer())
        assert "this master wants a certificate of its CA" in why_not(place(certified), {"token": with_secret.token})
    assert "this master wants a certificate of its CA" in why_not(place(certified), {})
    with MasterNode("127.0.0.1:0", secret="") as open_to_all:
        assert "this master has no secret" in why_not(place(open_to_all), ours.peer())


def test_the_commands_of_the_page_make_a_ca(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    (script,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    script = script.replace("DNS:alpha.example.org", "DNS:alpha.example.org,IP:127.0.0.1")
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True, capture_output=True)

    def files(name):
        return {"ca": tmp_path / "ca.pem", "cert": tmp_path / f"{name}.pem", "key": tmp_path / f"{name}.key"}

    with (
        MasterNode("127.0.0.1:0", **files("master")) as master,
        run_of(master, files("anna"), "native", "native") as peers,
    ):
        for tensor in summed(peers):
            assert (tensor == 3).all()
        assert main(["kick", peers[0].peer_id, place(master), *options(files("olga"))]) == 0


# ── roles ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def options(certificates):
    return [text for name, path in certificates.items() for text in (f"--{name}", str(path))]


def test_roles_are_kept_apart(ours, certified, capsys):
    observer, operator = ours.peer("olga", "observer"), ours.peer("otto", "operator")
    with Communicator(place(certified), name="ada", **ours.peer()) as comm:
        assert main(["status", place(certified), *options(observer)]) in (0, 3)
        assert main(["kick", "ada", place(certified), *options(observer)]) == 2
        assert "role operator" in capsys.readouterr().err
        assert main(["doctor", place(certified), *options(observer)]) == 0
        assert main(["kick", "ada", place(certified), *options(operator)]) == 0
        assert comm is not None
    with pytest.raises(Refused, match="the role peer"):
        Communicator(place(certified), **observer).connect(n_attempts=1)


def test_rights_are_the_sum_of_the_roles(ours):
    files = ours.issue("both", "URI:pccl:peer+state,URI:pccl:operator,URI:spiffe://x/y,DNS:b")
    certified = authority.read(Authority(files).der())
    assert certified.roles == ("peer+state", "operator")
    assert certified.rights == Rights.ALL
    assert authority.read(Authority(ours.issue("long", "DNS:" + "a" * 60 + ",URI:pccl:peer")).der()).roles == ("peer",)


@pytest.mark.parametrize(
    "der", [b"", b"\x30", b"\x30\x80", b"\x30\x03\x30\x01", b"\x30\x84\xff\xff\xff\xff", b"0" * 50]
)
def test_what_is_no_certificate_has_no_role(der):
    with pytest.raises(tls.NotProven):
        authority.read(der)


def test_the_audit_log_names_certificates(ours, certified, state_home):
    with Communicator(place(certified), name="ada", **ours.peer()):
        pass
    path = state_home / "pccl" / "0.audit"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    came = next(line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == "Join")
    assert came["certificate"] == authority.read(Authority(CertificateFiles(**ours.peer())).der()).name
    assert (came["role"], came["name"]) == ("peer", "ada")
