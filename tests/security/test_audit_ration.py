"""The audit log does not grow without end: not by strangers, and not by one token that joins as often as it can."""

import contextlib
import json

import pytest

from pccl.core.messages.to_peer import Welcome
from pccl.security import audit
from pccl.security.audit import ARRIVALS_PER_MINUTE, KEPT_MAX, REFUSALS_PER_MINUTE, Audit
from tests.security.attacker import Attacker, Gone, Run, join
from tests.security.test_members_attack import token_of


@pytest.fixture
def clock(monkeypatch):
    now = [60_000.0]
    monkeypatch.setattr(audit.time, "time", lambda: now[0])
    return now


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_token_that_comes_again_and_again_is_a_few_lines_a_minute(tmp_path, clock):
    log = Audit(tmp_path / "audit")
    for _ in range(ARRIVALS_PER_MINUTE + 7):
        log.came("token", "a1", "Join", host="10.0.0.1")
    log.came("token", "b2", "Join", host="10.0.0.2")
    assert len(lines_of(tmp_path / "audit")) == ARRIVALS_PER_MINUTE + 1
    clock[0] += 60
    log.came("token", "a1", "Resume", host="10.0.0.1")
    *_, left_out, last = lines_of(tmp_path / "audit")
    assert (left_out["event"], left_out["token"], left_out["count"]) == ("left out", "a1", 7)
    assert (last["event"], last["token"]) == ("Resume", "a1")


def test_refusals_are_rationed_for_all_together(tmp_path, clock):
    log = Audit(tmp_path / "audit")
    for number in range(REFUSALS_PER_MINUTE + 5):
        log.refused(f"10.0.0.{number}", "no token")
    assert len(lines_of(tmp_path / "audit")) == REFUSALS_PER_MINUTE
    clock[0] += 60
    log.refused("10.0.0.1", "no token")
    assert lines_of(tmp_path / "audit")[-2]["count"] == 5


def test_what_is_counted_is_bounded(tmp_path, clock):
    log = Audit(tmp_path / "audit")
    for number in range(KEPT_MAX + 10):
        log.came("certificate", f"{number}", "Join")
    assert len(log._written) == KEPT_MAX


def test_a_guest_does_not_fill_the_disk(tmp_path, monkeypatch):
    """By the attack itself: a hundred joins a second were 1.3 GB a day."""
    monkeypatch.setattr(audit, "ARRIVALS_PER_MINUTE", 20)
    with contextlib.ExitStack() as stack:
        run = Run(stack, tmp_path / "secret")
        run.peer("anna").connect()
        token = token_of(run)
        for number in range(100):
            attacker = Attacker(run.port, token)
            with contextlib.suppress(Gone):
                attacker.say(join(number, lane_tls="on", pin=b"p" * 32))
                attacker.hear(Welcome)
            attacker.close()
        joins = [each for each in lines_of(tmp_path / "secret.audit") if each["event"] == "Join"]
    assert len(joins) <= 1 + 2 * 20  # The minute may have ended.
