"""Secrets, tokens and the ledger: their files, their texts, and what shows of them."""

import os
import stat

import pytest

from pccl import UsageError
from pccl.cli import main
from pccl.core.effects.peer_effects import Dial, ExpectLanes
from pccl.core.fields import Identity, LinkSpec
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.to_peer import Wire
from pccl.core.rights import Rights
from pccl.security import tokens
from pccl.security.ledger import Ledger
from pccl.security.secret import MasterSecret, default_path, load, load_or_make
from pccl.security.tokens import Claim, Role

SECRET = MasterSecret(bytes(range(32)))
CLAIM = Claim(Role.OBSERVER, b"abcdef", 1_900_000_000)


def test_a_secret_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    path = tmp_path / "state" / "48148.secret"
    made = load_or_make(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_or_make(path).derive("x") == made.derive("x") == load(path).derive("x")
    assert made.derive("x") != made.derive("y")
    assert os.listdir(path.parent) == ["48148.secret"]


def test_a_secret_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "s"
    load_or_make(path)
    path.chmod(0o640)
    with pytest.raises(UsageError, match=r"got mode 0640; chmod 600 "):
        load(path)


def test_a_file_that_is_no_secret_is_refused_and_not_overwritten(tmp_path):
    path = tmp_path / "s"
    path.write_text("my diary")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="must be a file that `pccl master` made"):
        load_or_make(path)
    assert path.read_text() == "my diary"


def test_the_usual_place_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path(7) == tmp_path / "pccl" / "7.secret"
    monkeypatch.setenv("XDG_STATE_HOME", "relative, which the standard says to ignore")
    assert default_path(7).parts[-4:] == (".local", "state", "pccl", "7.secret")


def test_a_token_says_who_its_holder_is_and_pins_the_master():
    token = tokens.mint(SECRET, CLAIM, b"p" * 32)
    assert tokens.parse(f"  {token.text()}\n") == token
    assert len(token.text()) == 80
    assert token.claim.rights == Rights.OBSERVE
    changed = Claim(Role.OPERATOR, CLAIM.id, CLAIM.expires_unix_s)
    assert tokens.key_of(SECRET, changed) != token.key
    assert tokens.key_of(MasterSecret(bytes(32)), CLAIM) != token.key


def test_the_first_token_may_bring_a_state_and_others_may_not_by_themselves():
    assert tokens.first_claim(SECRET).rights == Rights.JOIN | Rights.OBSERVE | Rights.BRING_STATE
    assert Claim(Role.PEER, b"abcdef").rights == Rights.JOIN | Rights.OBSERVE
    assert Claim.unpack(Claim(Role.PEER, b"abcdef", brings_state=True).pack()).brings_state


@pytest.mark.parametrize("text", ["", "abc", "ä" * 80, "A" * 80, "B" * 80, "-" * 79])
def test_what_is_no_token_is_refused_without_being_repeated(text):
    with pytest.raises(UsageError, match="token") as caught:
        tokens.parse(text)
    assert not text or text not in str(caught.value)


def test_keys_show_in_no_repr():
    token = tokens.mint(SECRET, CLAIM, b"p" * 32)
    for shown in (repr(token), repr(SECRET), repr(MasterSecret(bytes(32)))):
        assert token.key.hex() not in shown
        assert "key=" not in shown
        assert repr(token.key) not in shown


def test_a_revocation_is_seen_at_once_and_a_lost_ledger_takes_none_back(tmp_path):
    ledger, other = Ledger(tmp_path / "t"), Ledger(tmp_path / "t")
    assert ledger.revoked == frozenset()
    other.made(CLAIM)
    other.revoke(CLAIM.name)
    assert ledger.revoked == {CLAIM.name}
    assert [each.role for each in ledger.entries] == ["observer"]
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o600
    (tmp_path / "t").unlink()
    assert ledger.revoked == {CLAIM.name}


def test_tokens_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "s"
    secret = load_or_make(path)
    there = ["--secret", str(path)]
    assert main(["token", "new", "--role", "observer", "--expires", "2h", *there]) == 0
    token = tokens.parse(capsys.readouterr().out)
    assert token.claim.role is Role.OBSERVER
    assert tokens.key_of(secret, token.claim) == token.key
    assert main(["token", "revoke", token.claim.name, *there]) == 0
    assert Ledger.beside(path).revoked == {token.claim.name}
    capsys.readouterr()
    assert main(["token", "list", *there]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "peer+state" in first
    assert "revoked" in second
    assert main(["token", "revoke", "000000000000", *there]) == 2
    assert main(["token", "new", "--expires", "soon", *there]) == 2
    assert main(["token", "list", "--secret", str(tmp_path / "none")]) == 2
    assert "must be a file that can be read" in capsys.readouterr().err


def test_secrets_of_peers_and_links_show_in_no_repr():
    spec = LinkSpec(1, "bert", True, "10.0.0.1", 4, 1, b"p" * 32, b"k" * 32)
    shown = [
        repr(Identity("anna", 0, "", 1, 0, secret="hush-hush")),
        repr(Wire((spec,))),
        repr(Dial(LaneHello("run", "anna", "bert", 1, 0), "10.0.0.1", 4, 1.0, b"p" * 32, b"k" * 32)),
        repr(ExpectLanes(1, b"k" * 32)),
    ]
    assert all("kkkk" not in each and "hush" not in each for each in shown)
    assert all("…" in each for each in shown)
