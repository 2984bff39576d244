"""Secure unless told otherwise: what `pccl master` does by itself, and what is said where nothing is secured."""

import contextlib
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

from pccl import Communicator, MasterNode, UsageError
from pccl.api import account
from pccl.cli import main, master
from pccl.credentials import find_token, leave_in_environment
from pccl.security.secret import load
from tests.e2e.test_api import environment, free_port, wait_until
from tests.patience import HANG_S


@contextlib.contextmanager
def started(tmp_path, *arguments, **variables):
    """What it prints first, up to where peers join."""
    settings = {**environment(), "XDG_STATE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1", **variables}
    settings.pop("PCCL_SECRET_FILE", None)
    command = [sys.executable, "-m", "pccl.cli", "master", *arguments]
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as master:
        said = ""
        for line in master.stdout:
            said += line
            if "peers join at" in line:
                break
        try:
            yield said
        finally:
            master.send_signal(signal.SIGTERM)
            master.wait(HANG_S)


def test_beyond_loopback_a_master_makes_a_secret_in_the_usual_place(tmp_path):
    port = free_port()
    secret = tmp_path / "pccl" / f"{port}.secret"
    with started(tmp_path, "--listen", f"0.0.0.0:{port}") as said:
        token = re.search(r"pccl://[^#]+#([\w-]{40,})", said)[1]
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
        with Communicator(f"127.0.0.1:{port}", token=token, listen="127.0.0.1") as peer:
            assert peer.world_size == 1
    assert "NOT SECURED" not in said
    before = secret.read_bytes()
    with started(tmp_path, "--listen", f"0.0.0.0:{port}") as said:
        assert token in said, "the next one has the same"
    assert secret.read_bytes() == before


def test_on_loopback_it_has_none_unless_asked(tmp_path):
    with started(tmp_path, "--listen", "127.0.0.1:0") as said:
        assert re.search(r"pccl://127\.0\.0\.1:\d+$", said.strip())
    assert not os.listdir(tmp_path)
    port = free_port()
    with started(tmp_path, "--listen", f"127.0.0.1:{port}", "--secret") as said:
        assert "#" in said
    assert (tmp_path / "pccl" / f"{port}.secret").exists()


def test_insecure_is_said_loudly(tmp_path):
    with started(tmp_path, "--listen", "0.0.0.0:0", "--insecure") as said:
        assert "NOT SECURED" in said
        assert "#" not in said
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("listen", "found", "said"),
    [
        ("0.0.0.0", "10.0.0.5", "inside this network"),
        ("", "127.0.0.1", "on this machine"),  # It has no route to the internet: any of its addresses may be meant.
        ("0.0.0.0", "198.18.0.7", "inside this network"),
        ("0.0.0.0", "93.184.216.34", ""),
        ("10.0.0.5", "93.184.216.34", ""),
    ],
)
def test_an_address_that_was_guessed_says_for_whom_it_is(monkeypatch, listen, found, said):
    """Behind the NAT of a provider the address that a machine knows itself by leads nowhere from outside."""
    monkeypatch.setattr(master, "own_address", lambda: found)
    hint = master.elsewhere(listen)
    assert (said in hint and found in hint) if said else not hint


def test_a_missing_secret_says_who_makes_it(tmp_path):
    with pytest.raises(UsageError, match="the master makes it when it is first started"):
        load(tmp_path / "48148.secret")


@pytest.fixture
def nothing_said(monkeypatch):
    monkeypatch.setattr(account, "_TOLD_UNSECURED", set())


@pytest.mark.usefixtures("nothing_said")
def test_a_peer_without_a_token_says_so_once(caplog, monkeypatch):
    """For each master beyond this machine, however many peers of it a process has."""
    monkeypatch.setattr(account, "is_loopback", lambda host: False)
    with MasterNode("127.0.0.1:0") as master:
        for _ in range(2):
            with Communicator(f"127.0.0.1:{master.port}", listen="127.0.0.1"):
                pass
    (line,) = [each for each in caplog.records if "NOT SECURED" in each.getMessage()]
    assert line.levelno == logging.WARNING
    assert "PCCL_TOKEN_FILE" in line.getMessage()


@pytest.mark.usefixtures("nothing_said")
def test_nor_does_it_with_a_token_or_on_this_machine(caplog, monkeypatch, secured):
    with MasterNode("127.0.0.1:0") as master, Communicator(f"127.0.0.1:{master.port}", listen="127.0.0.1"):
        pass
    monkeypatch.setattr(account, "is_loopback", lambda host: False)
    with Communicator(f"127.0.0.1:{secured.port}", token=secured.token, listen="127.0.0.1"):
        pass
    assert "NOT SECURED" not in caplog.text


def test_an_address_in_the_place_of_a_peer_shows_no_token(capsys):
    token = "AYF-pFtBe6kAAAAAKpEEfW3_CierMzpPHJLT1ILSUu8GOvUR78aK7c0xd1ocWaDfhIqLk-RcqZq1JTnM"
    assert main(["kick", f"pccl://10.0.0.5:48148#{token}", "oslo"]) == 2
    said = capsys.readouterr().err
    assert "the master's address comes behind it" in said
    assert token[:20] not in said


def test_a_token_that_is_left_for_others_is_not_in_their_environment(monkeypatch, tmp_path):
    """As workers of Ray are told the address of their master; what they run finds the token all the same."""
    token = "AYF-pFtBe6kAAAAAKpEEfW3_CierMzpPHJLT1ILSUu8GOvUR78aK7c0xd1ocWaDfhIqLk-RcqZq1JTnM"
    for name, value in {"PCCL_MASTER": "", "PCCL_TOKEN_FILE": "", "PCCL_TOKEN": "another"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    leave_in_environment(f"pccl://10.0.0.5:48148#{token}")
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(dict(os.environ))"], stdout=subprocess.PIPE, text=True
    )
    assert token not in child.stdout
    assert "'PCCL_MASTER': 'pccl://10.0.0.5:48148'" in child.stdout
    assert find_token(os.environ["PCCL_MASTER"], None) == token
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600]


def test_its_file_goes_when_the_process_ends(tmp_path):
    """But for one that is killed by SIGKILL, as the page says."""
    code = "from pccl.credentials import leave_in_environment as leave; leave('pccl://a:1#AYFtoken'); input()"
    settings = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=settings) as process:
        try:
            wait_until(lambda: list(tmp_path.glob("pccl-*.token")))
            process.communicate(b"\n", HANG_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("where", ["token", "PCCL_TOKEN", "PCCL_TOKEN_FILE"])
def test_the_whole_printed_address_is_as_good_as_the_token_in_it(monkeypatch, tmp_path, where):
    """It is the one string that is printed, and an error about a token says to copy all of it."""
    token = "AYF-pFtBe6kAAAAAKpEEfW3_CierMzpPHJLT1ILSUu8GOvUR78aK7c0xd1ocWaDfhIqLk-RcqZq1JTnM"
    printed = f"pccl://10.0.0.5:48148#{token}"
    file = tmp_path / "token"
    file.write_text(f"{printed}\n")
    for name in ("PCCL_TOKEN", "PCCL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    if where != "token":
        monkeypatch.setenv(where, str(file) if where == "PCCL_TOKEN_FILE" else printed)
    assert find_token("10.0.0.5:48148", printed if where == "token" else None) == token
