"""Inputs that must be copied before the vote: who waits for the copy, and what a copy that fails leads to."""

import threading

import numpy as np
import pytest

from pccl import CollectiveAborted, CollectiveTimedOut, DataType, ReduceOp
from pccl.api.transaction import Order, Part, Transaction
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.tensors.buffers import buffers
from tests.patience import HANG_S
from tests.unit.test_transaction import Members, aborted, committed, timed_out, until_asked


def begun(members, stage, **how):
    part = Part(0, CollectiveSpec(1, DataType.FLOAT, ReduceOp.SUM), buffers(*[np.ones(1, np.float32)] * 2))
    transaction = Transaction(Order("call", 0, [part], stage=stage, **how), members)
    transaction.begin()
    return transaction


class Fails:
    """A copy that fails so many times."""

    def __init__(self, times):
        self.times, self.made = times, 0

    def __call__(self):
        self.made += 1
        if self.made <= self.times:
            raise RuntimeError("no memory on the device\nand a long story")


def test_the_vote_follows_the_copy_and_the_launch_waits_for_neither():
    members, ready, seen = Members(), threading.Event(), []

    def stage():
        assert ready.wait(HANG_S)
        seen.append(list(members.asked))

    transaction = begun(members, stage)
    assert members.asked == []
    ready.set()
    until_asked(members, [0])
    assert seen == [[]]
    members.answer(0, committed(1))
    assert transaction.outcome.result(HANG_S).attempts == 1
    assert members.offers.flaw(0) == ""


def test_a_copy_that_fails_is_voted_for_all_the_same_and_ends_it_for_all():
    members = Members()
    transaction = begun(members, Fails(9))
    until_asked(members, [0])
    assert members.offers.flaw(0) == "its tensors cannot be read: RuntimeError: no memory on the device"
    members.answer(0, aborted())
    with pytest.raises(CollectiveAborted) as raised:
        transaction.outcome.result(HANG_S)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert members.offers.flaw(0) == "", "the tag's next collective is another one"


def test_a_copy_that_failed_is_made_again_with_the_next_attempt_and_then_no_more():
    members, stage = Members(), Fails(1)
    transaction = begun(members, stage, retry=True)
    until_asked(members, [0])
    assert members.offers.flaw(0)
    for _ in range(2):
        members.answer(0, aborted())
        until_asked(members, [0])
        assert not members.offers.flaw(0)
    members.answer(0, committed(3))
    assert transaction.outcome.result(HANG_S).attempts == 3
    assert stage.made == 2


def test_time_that_ends_during_the_copy_takes_the_vote_back():
    members, ready = Members(), threading.Event()
    transaction = begun(members, lambda: ready.wait(HANG_S))
    transaction.expire(2.0)
    assert members.expired == []
    ready.set()
    until_asked(members, [0])
    while not members.expired:
        pass
    members.answer(0, timed_out())
    with pytest.raises(CollectiveTimedOut):
        transaction.outcome.result(HANG_S)


def test_what_has_ended_keeps_no_copies():
    members = Members()
    transaction = begun(members, Fails(0), deliver=lambda: None, release=lambda: None)
    until_asked(members, [0])
    members.answer(0, committed(1))
    transaction.outcome.result(HANG_S)
    order = transaction.order
    assert (order.parts, order.stage, order.deliver, order.release) == ((), None, None, None)
    assert (order.call, order.tag) == ("call", 0)
