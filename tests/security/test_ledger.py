"""The ledger of tokens when its file is damaged, or cannot be read: revocations go on to work."""

import logging
import os
import threading

import pytest

from pccl import Communicator, Kicked, ProtocolError
from pccl.errors import UsageError
from pccl.security.ledger import Ledger
from pccl.security.tokens import Claim, Role
from tests.patience import HANG_S
from tests.security.test_control import place, token_of

CLAIM = Claim(Role.PEER, b"abcdef")
DAMAGE = ('{"made":"x"}', "[1]", "3", '{"revoked"', "{}", '{"made": "x", "role": "peer", "expires": "soon", "at": 0}')


@pytest.mark.parametrize("line", DAMAGE)
def test_a_line_that_is_none_of_a_ledger_is_passed_over(tmp_path, caplog, line):
    ledger = Ledger(tmp_path / "t")
    ledger.made(CLAIM)
    with (tmp_path / "t").open("a") as file:
        file.write(line)  # Without its end, as a full disk would leave it.
    ledger.revoke(CLAIM.name)
    with caplog.at_level(logging.WARNING):
        assert ledger.revoked == {CLAIM.name}
        assert len(ledger.entries) == 1
    assert "line 2 is none of a ledger" in caplog.text


@pytest.fixture
def guest(secured, secret):
    """Alone in its run."""
    with Communicator(place(secured), token=token_of(secret, CLAIM, secured), listen="127.0.0.1") as comm:
        yield comm


def ask_for_ever(comm):
    while True:
        comm.are_peers_pending()


def test_a_bad_line_does_not_end_the_revocation_of_what_stands(secured, secret, guest):
    with secret.with_suffix(".tokens").open("a") as file:
        file.write('{"made":"x"}\n')
    looked_at(secured)
    Ledger.beside(secret).revoke(CLAIM.name)
    with pytest.raises(Kicked, match="was revoked"):
        ask_for_ever(guest)


def test_nor_does_a_ledger_that_cannot_be_read_for_a_while(secured, secret, guest, monkeypatch, caplog):
    fails, stat = threading.Event(), os.stat

    def moody(path, *arguments, **more):
        if fails.is_set() and str(path).endswith(".tokens"):
            raise OSError(24, "Too many open files")
        return stat(path, *arguments, **more)

    monkeypatch.setattr("pccl.security.ledger.os.stat", moody)
    fails.set()
    looked_at(secured)
    assert "which tokens were revoked since is not known" in caplog.text
    with pytest.raises(ProtocolError, match="cannot read at the moment which tokens are revoked"):
        Communicator(place(secured), token=secured.token, listen="127.0.0.1").connect()
    fails.clear()
    Ledger.beside(secret).revoke(CLAIM.name)
    with pytest.raises(Kicked, match="was revoked"):
        ask_for_ever(guest)


def test_a_ledger_that_is_too_long_is_refused_and_nothing_is_forgotten(secured, secret, guest, monkeypatch, caplog):
    """What stood behind the limit was passed over without a word: a revocation that did not work."""
    ledger, other = Ledger.beside(secret), Claim(Role.PEER, b"ghijkl")
    ledger.revoke(other.name)
    looked_at(secured)
    monkeypatch.setattr("pccl.security.ledger.LEDGER_MAX", secret.with_suffix(".tokens").stat().st_size)
    ledger.revoke(CLAIM.name)
    with pytest.raises(UsageError, match=r"must have at most \d+ bytes, got \d+; take out lines"):
        _ = ledger.revoked
    looked_at(secured)
    assert "which tokens were revoked since is not known" in caplog.text
    assert "must have at most" in caplog.text
    with pytest.raises(ProtocolError, match="cannot read at the moment which tokens are revoked"):
        Communicator(place(secured), token=secured.token, listen="127.0.0.1").connect()
    monkeypatch.undo()
    with pytest.raises(Kicked, match="was revoked"):
        ask_for_ever(guest)


def test_what_is_revoked_stays_so_in_a_file_that_is_made_anew(tmp_path):
    ledger = Ledger(tmp_path / "t")
    ledger.revoke(CLAIM.name)
    assert ledger.revoked == {CLAIM.name}
    (tmp_path / "t").unlink()
    ledger.made(Claim(Role.PEER, b"ghijkl"))
    assert ledger.revoked == {CLAIM.name}


def looked_at(master):
    """The master has looked at its ledger at least once since."""
    shell, done = master._shell, threading.Event()
    before = shell._looking

    def look():
        if shell._looking is not before:
            done.set()
        else:
            shell._loop.call_later(0.01, look)

    shell._loop.call_soon_threadsafe(look)
    assert done.wait(HANG_S)
