"""How a call over several collectives decides: from outcomes alone, so that all peers decide alike."""

import threading

import numpy as np
import pytest

from pccl import CallMismatch, CollectiveAborted, DataType, ReduceOp, TooFewPeers
from pccl.core.effects import Committed, Failure, FailureKind
from pccl.core.messages import CollectiveSpec
from pccl.dataplane.buffers import buffers
from pccl.dataplane.offers import Offers, Traffic
from pccl.transaction import FRUITLESS_MAX, Order, Part, Transaction
from pccl.types import PeerId, tag_name

THREE, TWO = (PeerId("a"), PeerId("b"), PeerId("c")), (PeerId("a"), PeerId("b"))


class Members:
    """A membership whose answers a test gives by hand."""

    waiting, group_size = "", 3

    def __init__(self):
        self.offers = Offers()
        self.asked = []
        self.over = []
        self._answers = {}

    def submit(self, request, answered):
        self.asked.append(request.tag)
        self._answers[request.tag] = answered

    def forget(self, transaction):
        self.over.append(transaction)

    def answer(self, tag, answer):
        self.asked.remove(tag)
        self._answers.pop(tag)(answer)


def committed(attempt, ring=THREE):
    return Committed(attempt, 1, ring)


def aborted(*lost):
    return Failure(FailureKind.ABORTED, "aborted: somebody was lost", 0, lost)


@pytest.fixture
def members():
    return Members()


@pytest.fixture
def begin(members):
    def begun(parts=2, retry=False):
        told = []
        spec = CollectiveSpec(1, DataType.FLOAT, ReduceOp.SUM)
        made = [Part(tag, spec, buffers(*[np.ones(1, np.float32)] * 2)) for tag in range(parts)]
        order = Order(
            "call",
            0,
            made,
            retry,
            deliver=lambda: told.append("delivered"),
            release=lambda: told.append("released"),
        )
        transaction = Transaction(order, members)
        transaction.begin()
        return transaction, told

    return begun


def until_asked(members, tags):
    """Aborts are settled in a thread of their own."""
    for _ in range(10_000_000):
        if sorted(members.asked) == tags:
            return
    raise AssertionError(f"asked for {members.asked}, not {tags}")


def test_it_commits_when_all_parts_have_among_the_same_peers(members, begin):
    transaction, told = begin()
    members.answer(1, committed(1))
    assert not transaction.outcome.done()
    members.answer(0, committed(2, THREE[::-1]))
    info = transaction.outcome.result(5)
    assert (info.peers, info.attempts, info.local_world_size) == (THREE[::-1], 1, 3)
    assert told == ["delivered", "released"]
    assert members.over == [transaction]


def test_one_aborted_part_aborts_it_all(members, begin):
    transaction, told = begin()
    members.answer(0, committed(1))
    members.answer(1, aborted("c"))
    with pytest.raises(CollectiveAborted) as raised:
        transaction.outcome.result(5)
    assert raised.value.lost_peers == ("c",)
    assert told == ["released"]
    members.offers.offer(0, buffers(*[np.ones(1)] * 2))  # its tags are free again


def test_a_peer_lost_between_two_commits_aborts_it_too(members, begin):
    transaction, told = begin()
    members.answer(0, committed(1, THREE))
    members.answer(1, committed(2, TWO))
    with pytest.raises(CollectiveAborted, match="a peer was lost between its parts") as raised:
        transaction.outcome.result(5)
    assert raised.value.lost_peers == ("c",)
    assert told == ["released"]


def test_with_retry_only_what_must_be_is_sent_again(members, begin):
    transaction, told = begin(parts=3, retry=True)
    members.answer(0, committed(1))
    members.answer(1, committed(2))
    members.answer(2, aborted())  # a link failed, nobody was lost
    until_asked(members, [2])
    members.answer(2, committed(3))
    assert transaction.outcome.result(5).attempts == 2
    assert told == ["delivered", "released"]


def test_with_retry_what_a_lost_peer_was_part_of_is_made_anew(members, begin):
    transaction, told = begin(retry=True)
    members.answer(0, committed(1, THREE))
    members.answer(1, aborted("c"))
    until_asked(members, [1])
    members.answer(1, committed(3, TWO))
    until_asked(members, [0])
    members.answer(0, committed(4, TWO))
    info = transaction.outcome.result(5)
    assert (info.peers, info.attempts) == (TWO, 3)
    assert told == ["delivered", "released"]


def test_what_no_retry_can_mend_ends_it(members, begin):
    transaction, told = begin(retry=True)
    members.answer(0, aborted("b", "c"))
    members.answer(1, Failure(FailureKind.TOO_FEW_PEERS, "alone"))
    with pytest.raises(TooFewPeers):
        transaction.outcome.result(5)
    transaction, _ = begin(retry=True)
    members.answer(0, Failure(FailureKind.MISMATCH, "they differ"))
    members.answer(1, committed(9))
    with pytest.raises(CallMismatch):
        transaction.outcome.result(5)
    assert told == ["released"]


def test_retries_end_when_they_lead_nowhere(members, begin):
    transaction, _ = begin(parts=1, retry=True)
    for _ in range(FRUITLESS_MAX):
        until_asked(members, [0])
        members.answer(0, aborted())
    with pytest.raises(CollectiveAborted):
        transaction.outcome.result(5)
    assert transaction.info().attempts == FRUITLESS_MAX


def test_a_failed_delivery_is_told():
    members = Members()
    part = Part(0, CollectiveSpec(1, DataType.FLOAT, ReduceOp.SUM), buffers(*[np.ones(1, np.float32)] * 2))

    def fail():
        raise RuntimeError("out of memory on the device")

    transaction = Transaction(Order("call", 0, [part], deliver=fail), members)
    transaction.begin()
    members.answer(0, committed(1))
    with pytest.raises(RuntimeError, match="out of memory"):
        transaction.outcome.result(5)
    assert members.over == [transaction]


class Ran:
    """A run whose commit is watched."""

    traffic = Traffic(3, 4)

    def __init__(self, commits_at_once):
        self.commits_at_once = commits_at_once
        self.settled = []

    def commit(self):
        self.settled.append(("commit", threading.current_thread()))

    def restore(self):
        self.settled.append(("restore", threading.current_thread()))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_result_that_takes_time_to_complete_is_not_completed_in_the_control_thread(at_once, members):
    part = Part(0, CollectiveSpec(1, DataType.FLOAT, ReduceOp.SUM), buffers(*[np.ones(1, np.float32)] * 2))
    transaction, ran = Transaction(Order("call", 0, [part]), members), Ran(at_once)
    transaction.begin()
    members.offers.began(0, ran)
    members.answer(0, committed(1))
    assert transaction.outcome.result(5).tx_bytes == 3
    [(what, thread)] = ran.settled
    assert what == "commit"
    assert (thread is threading.current_thread()) == at_once


def test_parts_are_named_after_their_call():
    assert tag_name(7) == "tag 7"
    assert tag_name(7 + (2 << 56)) == "tag 7 (part 3)"
