"""How a call over several collectives decides: from outcomes alone, so that all peers decide alike."""

import threading

import numpy as np
import pytest

from pccl import CallMismatch, CollectiveAborted, CollectiveTimedOut, DataType, PCCLError, ReduceOp, TooFewPeers
from pccl.api.retries import Retries, Retry
from pccl.api.transaction import FRUITLESS_MAX, Order, Part, Transaction
from pccl.core.effects.peer_effects import Committed, Failure, FailureKind
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.offers import Offers, Traffic
from pccl.dataplane.tensors.buffers import buffers
from pccl.logs import Teller
from pccl.types import TAG_MAX, PeerId, part_tag, tag_name

THREE, TWO = (PeerId("a"), PeerId("b"), PeerId("c")), (PeerId("a"), PeerId("b"))


class Members:
    """A membership whose answers a test gives by hand."""

    waiting, group_size = "", 3

    def __init__(self):
        self.offers = Offers()
        self.asked = []
        self.over = []
        self.retries = []
        self._answers = {}
        self.expired = []

    def submit(self, request, answered):
        self.asked.append(request.tag)
        self._answers[request.tag] = answered
        return [request.tag]

    def expire(self, calls):
        self.expired += calls

    def forget(self, transaction, outcome=None):
        self.over.append(transaction)

    def note_retry(self, retry):
        self.retries.append(retry)

    def answer(self, tag, answer):
        self.asked.remove(tag)
        self._answers.pop(tag)(answer)


def committed(attempt, ring=THREE):
    return Committed(attempt, 1, ring)


def aborted(*lost):
    return Failure(FailureKind.ABORTED, "aborted: somebody was lost", 0, lost)


def mismatched():
    return Failure(FailureKind.MISMATCH, "they differ", 0)


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
    with pytest.raises(PCCLError, match=r"was committed by .* could not be written .*out of memory.*sync_shared_state"):
        transaction.outcome.result(5)
    assert members.over == [transaction]


class Ran:
    """A run whose commit is watched."""

    traffic = Traffic(3, 4, 2)

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
    info = transaction.outcome.result(5)
    assert (info.tx_bytes, info.rx_bytes, info.repeated_bytes) == (3, 4, 2)
    [(what, thread)] = ran.settled
    assert what == "commit"
    assert (thread is threading.current_thread()) == at_once


def test_parts_are_named_after_their_call():
    assert tag_name(7) == "tag 7"
    assert tag_name(part_tag(7, 2)) == "tag 7 (part 3)"
    assert tag_name(part_tag(TAG_MAX, 2)) == "a tag from 2^58 on (part 3)"


def test_no_part_has_the_tag_of_another():
    tags = [0, 1, 7, 2**56, 2**56 + 7, 2**58 - 1, 2**58, 2**58 + 1, 2**58 + 7, 2**62, TAG_MAX - 1, TAG_MAX]
    parts = [part_tag(tag, part) for tag in tags for part in range(len(DataType))]
    assert len(set(parts)) == len(parts)
    assert [part_tag(tag, 0) for tag in tags] == tags
    assert all(TAG_MAX < part_tag(tag, part) < 2**64 for tag in tags for part in range(1, len(DataType)))
    assert tag_name(2**56 + 7) == f"tag {2**56 + 7}"


# ── time that is over ────────────────────────────────────────────────────────────────────────────────────────────────


def timed_out(*missing):
    return Failure(FailureKind.TIMED_OUT, "collective tag 0 was not called by b", 0, missing)


def test_time_that_is_over_takes_the_votes_back(members, begin):
    transaction, told = begin()
    transaction.expire(2.0)
    assert members.expired == [[0], [1]]
    members.answer(0, timed_out(THREE[1]))
    members.answer(1, timed_out(THREE[1]))
    with pytest.raises(
        CollectiveTimedOut, match=r"had not started after 2 s.*not called by b.*call it again"
    ) as raised:
        transaction.outcome.result(5)
    assert (raised.value.tag, raised.value.missing_peers) == (0, (THREE[1],))
    assert isinstance(raised.value, TimeoutError)
    assert told == ["released"]


def test_time_that_is_over_is_of_no_effect_once_a_part_is_committed(members, begin):
    transaction, _ = begin()
    members.answer(0, committed(1))
    transaction.expire(2.0)
    assert members.expired == []
    members.answer(1, committed(2))
    assert transaction.outcome.result(5).attempts == 1


def test_time_that_is_over_ends_the_attempts(members, begin):
    transaction, _ = begin(parts=1, retry=True)
    members.answer(0, aborted())
    until_asked(members, [0])
    transaction.expire(2.0)
    members.answer(0, aborted())
    with pytest.raises(CollectiveAborted):
        transaction.outcome.result(5)


def test_what_the_others_count_on_is_tried_again_though_time_is_over(members, begin):
    transaction, _ = begin(retry=True)
    members.answer(0, committed(1))
    transaction.expire(2.0)
    members.answer(1, aborted())
    until_asked(members, [1])
    members.answer(1, committed(2))
    assert transaction.outcome.result(5).attempts == 2
    assert members.expired == []


# ── one line for each event ──────────────────────────────────────────────────────────────────────────────────────────


def retried(tag, reason="tag %d was aborted: a is gone", lost=("a",)):
    return Retry("all_reduce", tag, 1, reason % tag if "%" in reason else reason, lost)


def told(caplog, *batches):
    """What is logged of these; each batch comes before the last one was told."""
    caplog.set_level("INFO", "pccl")
    later = []
    retries = Retries(later.append, Teller("peer"))
    for batch in batches:
        for each in batch:
            retries.add(each)
        while later:
            later.pop()()
    return caplog.messages


def test_a_death_that_meets_many_tags_is_one_line(caplog):
    messages = told(caplog, [retried(tag) for tag in range(64)])
    assert messages == ["all_reduce tag 0, attempt 1: tag 0 was aborted: a is gone. Trying again, with 63 others"]


def test_a_link_that_broke_under_many_tags_is_one_line(caplog):
    messages = told(caplog, [retried(tag, "tag %d was aborted: no byte moved", ()) for tag in (5, 6)])
    assert messages == ["all_reduce tag 5, attempt 1: tag 5 was aborted: no byte moved. Trying again, with 1 other"]


def test_two_events_are_two_lines(caplog):
    assert len(told(caplog, [retried(0), retried(1, lost=("b",))])) == 2
    caplog.clear()
    assert len(told(caplog, [retried(0)], [retried(0)])) == 2


def test_a_transaction_notes_its_retry(members, begin):
    begin(parts=1, retry=True)
    members.answer(0, aborted(PeerId("c")))
    until_asked(members, [0])
    assert members.retries == [Retry("call", 0, 2, "aborted: somebody was lost", ("c",))]


def test_when_one_part_is_a_mismatch_the_votes_for_the_rest_are_taken_back(members, begin):
    transaction, _ = begin(parts=3)
    members.answer(1, mismatched())
    assert members.expired == [[0], [2]]
    members.answer(0, Failure(FailureKind.TIMED_OUT, "taken back", 0))
    members.answer(2, committed(1))
    with pytest.raises(CallMismatch, match="they differ"):
        transaction.outcome.result(5)
