"""Files of certificates that are of no use, settings that contradict each other, and bytes that are no handshake."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from random import Random
from types import SimpleNamespace

import pytest

from pccl import Communicator, MasterNode, UsageError
from pccl.cli import main
from pccl.credentials import CertificateFiles
from pccl.security import tls
from pccl.security.authority import Authority
from pccl.security.renewing import Renewing
from pccl.wire.framing import Purpose, preamble
from tests.patience import HANG_S
from tests.security.test_own_ca import options, place

pytestmark = pytest.mark.usefixtures("state_home")


def test_both_ways_in_are_named(ours, certified, secret):
    both = r"cert \(PCCL_CERT\) and token \(PCCL_TOKEN\) must not both be set"
    with MasterNode("127.0.0.1:0", secret=secret) as other, pytest.raises(UsageError, match=both):
        Communicator(place(certified), token=other.token, **ours.peer())
    with pytest.raises(UsageError, match=r"cert \(PCCL_CERT\) and secret \(PCCL_SECRET_FILE\) must not both be set"):
        MasterNode("127.0.0.1:0", secret=secret, **ours.master())
    with pytest.raises(UsageError, match=r"key \(PCCL_KEY\) must be a file beside ca \(PCCL_CA\) and cert"):
        Communicator(place(certified), **(ours.peer() | {"key": None}))


def test_pccl_master_takes_certificates(ours, secret, capsys, monkeypatch):
    assert main(["master", "--insecure", *options(ours.master())]) == 2
    assert "--insecure must not stand beside --cert" in capsys.readouterr().err
    for given in (["--secret", str(secret)], ["--secret"]):
        assert main(["master", *given, *options(ours.master())]) == 2
        assert "--secret (PCCL_SECRET_FILE) must not stand beside --cert (PCCL_CERT)" in capsys.readouterr().err
    monkeypatch.setenv("PCCL_SECRET_FILE", str(secret))
    assert main(["master", *options(ours.master())]) == 2
    assert "cert (PCCL_CERT) and secret (PCCL_SECRET_FILE) must not both be set" in capsys.readouterr().err


def test_files_that_are_of_no_use(ours, foreign, tmp_path):
    good = ours.peer()
    text = tmp_path / "text"
    text.write_text("no certificate")
    text.chmod(0o600)
    open_key = tmp_path / "open.key"
    shutil.copy(good["key"], open_key)
    open_key.chmod(0o644)
    for wrong, words in (
        ({"ca": tmp_path / "missing"}, r"ca \(PCCL_CA\) must be a file that can be read"),
        ({"ca": text}, r"ca \(PCCL_CA\) must be certificates in PEM"),
        ({"cert": text}, r"cert \(PCCL_CERT\) and key \(PCCL_KEY\) must be a certificate in PEM and its own key"),
        ({"key": foreign.peer()["key"]}, "must be a certificate in PEM and its own key"),
        ({"key": open_key}, "must not be open to all users, got mode 0644; chmod 600"),
        ({"key": 7}, r"key \(PCCL_KEY\) must be the name of a file, got int"),
    ):
        with pytest.raises(UsageError, match=words):
            Communicator("127.0.0.1:1", **(good | wrong))


def test_a_locked_key_is_named(ours, tmp_path):
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", str(ours.peer()["key"]), "-aes128", "-passout", "pass:word", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    locked.chmod(0o600)
    with pytest.raises(UsageError, match="must not be encrypted"):
        Communicator("127.0.0.1:1", **(ours.peer() | {"key": locked}))


def test_a_stranger_without_a_certificate_gets_an_alert(ours, certified):
    """It has finished TLS as far as it can see, and has proved nothing: not one byte of the master follows."""
    context = tls.context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ours.ca)
    sock = socket.create_connection(("127.0.0.1", certified.port), HANG_S)
    sock.sendall(preamble(Purpose.CONTROL_CERTIFIED))
    with sock:
        # The client's first bytes of TLS must be sent before the master's preamble comes.
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        seen, learned = b"", b""
        with contextlib.suppress(OSError):
            while True:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                    learned += end.read()
                sock.sendall(outgoing.read())
                data = sock.recv(65536)
                if not data:
                    break
                incoming.write(data[8:] if not seen else data)
                seen += data
    assert seen.startswith(preamble(Purpose.CONTROL_CERTIFIED))
    assert learned == b""


def test_bytes_that_are_no_handshake_end_their_connection_alone(ours, certified):
    """Cut, spoiled and too long ones; the master answers others as before."""
    chance = Random(18)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = tls.dialling_context().wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        end.do_handshake()
    hello = outgoing.read()
    for case in range(60):
        data = bytearray(hello if case % 3 else chance.randbytes(chance.randrange(1, 90_000)))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        with socket.create_connection(("127.0.0.1", certified.port), HANG_S) as sock, contextlib.suppress(OSError):
            sock.sendall(preamble(Purpose.CONTROL_CERTIFIED) + bytes(data))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
    with Communicator(place(certified), **ours.peer()) as comm:
        assert comm.world_size == 1


def test_files_that_vanish_in_the_middle_of_a_renewal(ours, tmp_path, monkeypatch):
    """Between two looks at one of them: the old certificate stays in use, and the next renewal counts."""
    files = CertificateFiles(**{kind: shutil.copy(path, tmp_path / kind) for kind, path in ours.peer().items()})
    renewing = Renewing(files, Authority(files).accepting)
    first = renewing.get()

    def vanish(*_):
        raise FileNotFoundError(2, "No such file or directory")

    os.utime(files.cert, ns=(1, 1))
    with monkeypatch.context() as patched:
        patched.setattr("pccl.security.authority.os.fstat", vanish)
        assert renewing.get() is first
    os.utime(files.cert, ns=(2, 2))
    with monkeypatch.context() as patched:
        patched.setattr(renewing, "_make", vanish)
        assert renewing.get() is first
    os.utime(files.cert, ns=(3, 3))
    assert renewing.get() is not first


def test_a_certificate_that_is_cut_short_is_named(ours, tmp_path):
    *body, last, end = ours.peer()["cert"].read_text().splitlines()
    (tmp_path / "cut").write_text("\n".join((*body, last[:-1], end)))
    with pytest.raises(UsageError, match=r"cert \(PCCL_CERT\)"):
        Authority.der(SimpleNamespace(files=CertificateFiles("", tmp_path / "cut", "")))
