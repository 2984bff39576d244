"""Lines of rounds: one for a long one, one for many short ones."""

import logging

import pytest

from pccl.api import rounds as module
from pccl.api.calls import total
from pccl.api.rounds import Rounds
from pccl.core.fields import CollectiveSpec
from pccl.logs import Teller
from pccl.net.flight import Flight
from pccl.types import DataType, ReduceInfo, ReduceOp

TOKYO = "ab" * 16
SPEC = CollectiveSpec(100, DataType.FLOAT, ReduceOp.SUM)


@pytest.fixture
def rounds(caplog):
    caplog.set_level(logging.INFO, "pccl")
    return Rounds(Teller("peer"))


def flight(waited_s, peer=TOKYO, name="tokyo-2"):
    return Flight(0, SPEC, 0.0, waited_s=waited_s, waited_for=peer, waited_for_name=name)


def info(seconds, sent=0, peers=6):
    return ReduceInfo(peers, sent, sent, (), seconds)


def test_a_long_round_has_a_line_of_its_own(rounds, caplog):
    rounds.ended(3, info(1.9, sent=17_700_000), flight(0.7))
    (record,) = caplog.records
    assert record.getMessage() == "round 1: 6 peers, 1.9 s, waited 0.7 s for tokyo-2, 118 Mbit/s"
    assert (record.name, record.event, record.tag) == ("pccl.collective", "round", 3)
    assert (record.seconds, record.bytes, record.waited_for) == (1.9, 17_700_000, [TOKYO])


@pytest.mark.parametrize("waited", [flight(0.0), flight(1.0, peer=""), None])
def test_a_round_that_waited_for_no_other_peer_names_none(rounds, caplog, waited):
    rounds.ended(0, info(2.0, peers=1), waited)
    assert caplog.messages == ["round 1: 1 peer, 2.0 s"]


def test_short_rounds_are_told_together(rounds, caplog, monkeypatch):
    for _ in range(5):
        rounds.ended(0, info(0.1, sent=125_000), flight(0.06))
    assert caplog.messages == []
    monkeypatch.setattr(module, "TOGETHER_S", 0.0)
    rounds.ended(0, info(0.1, sent=125_000), flight(0.0))
    (line,) = caplog.messages
    assert line.startswith("rounds 1 to 6: 6 peers, 6 in 0.")
    assert line.endswith(" s, waited 0.3 s, most for tokyo-2, 20 Mbit/s")


def test_a_long_round_tells_the_short_ones_before_it(rounds, caplog):
    rounds.ended(0, info(0.1), None)
    rounds.ended(0, info(3.0), None)
    assert [line.partition(":")[0] for line in caplog.messages] == ["round 1", "round 2"]


def test_the_end_tells_what_is_left(rounds, caplog):
    rounds.ended(0, info(0.1), None)
    rounds.close()
    rounds.close()
    assert len(caplog.messages) == 1


def test_failures_are_counted_and_told_by_their_exception(rounds, caplog):
    rounds.ended(0, ValueError("x"), None)
    assert caplog.messages == []
    assert rounds.metrics()["pccl_failures_total"] == 1.0


def test_bytes_of_several_tensors_and_of_all_rounds_add_up(rounds):
    each = ReduceInfo(2, 100, 90, repeated_bytes=7)
    rounds.ended(0, total([each, each], 2), None)
    rounds.ended(0, each, None)
    told = rounds.metrics()
    names = ("sent", "received", "repeated")
    assert [told[f"pccl_{name}_bytes_total"] for name in names] == [300.0, 270.0, 21.0]
