"""Neighbours that send something now and then: an honest one that is slow gets through, one that holds the others does
not."""

import itertools
import threading

import numpy as np
import pytest

from pccl.dataplane.patience import BYTES_MIN_S, SEGMENT_S, SPREAD, Patience
from pccl.dataplane.ring.segments import Header
from pccl.types import DataType, ReduceOp
from tests.native.oracle import TAG
from tests.native.rings import Rig, Work

STALL_S = 0.5
BOTH = pytest.mark.parametrize("kind", ["native", "reference"])


class Neighbour:
    """The only other peer, which plays one trick again and again while the run lasts."""

    def __init__(self, rig, say, pause_s):
        self._lane = rig.sides(1)[0][0]
        self._say, self._pause_s, self._over = say, pause_s, threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def _play(self):
        while not self._over.wait(self._pause_s):
            try:
                self._lane.send(self._say())
            except BlockingIOError:
                pass
            except OSError:
                return

    def stop(self):
        self._over.set()
        self._thread.join()


def trickle():
    """The header of a segment that the other end waits for, and one byte of it after the other."""
    said = itertools.chain([Header(TAG, 5, 0, 0, 200, 0, 0).sealed().pack()], itertools.repeat(b"\0"))
    return lambda: next(said)


def stale():
    """Whole segments of an earlier attempt, without end."""
    segment = Header(TAG, 1, 0, 0, 1024, 0, 0).sealed().pack() + bytes(1024)
    return lambda: segment


@BOTH
@pytest.mark.parametrize(("trick", "pause_s"), [(trickle, STALL_S / 5), (stale, 0.002)], ids=["bytes", "stale"])
def test_a_neighbour_that_sends_something_now_and_then_holds_no_collective(kind, trick, pause_s):
    """Any byte was progress: it went on for ever."""
    rig = Rig(2, 1)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 100, 200)
    array = np.ones(work.count, np.float32)
    rig.attempt = 5
    run = rig.start_one(0, kind, work, (array, array), stall_s=STALL_S)
    neighbour = Neighbour(rig, trick(), pause_s)
    try:
        # All segments together pay for four times the limit; the neighbour completes none.
        assert run.wait(20 * STALL_S), "it goes on"
        assert "moved" in run.cause
    finally:
        neighbour.stop()
        run.abort()
        run.wait()
        rig.close()


@BOTH
def test_one_that_stands_still_for_less_than_the_limit_costs_nothing(kind):
    rig = Rig(2, 1)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 100, 64)
    arrays = [np.ones(work.count, np.float32) for _ in range(2)]
    rig.attempt = 5
    first = rig.start_one(0, kind, work, (arrays[0], arrays[0]), stall_s=2.0)
    assert not first.wait(0.8)
    second = rig.start_one(1, kind, work, (arrays[1], arrays[1]), stall_s=2.0)
    assert first.wait()
    assert second.wait()
    assert (first.cause, second.cause) == ("", "")
    rig.close()


# ── the arithmetic ───────────────────────────────────────────────────────────────────────────────────────────────────

TURN_S = 0.2


def lasts(patience, seconds, nbytes=0, segments_each=0.0):
    """Whether it lasts so long with so many bytes and segments a second."""
    done = 0.0
    for turn in range(int(seconds / TURN_S)):
        done += segments_each * TURN_S
        whole, done = int(done), done - int(done)
        patience.spend(TURN_S, round(nbytes * TURN_S), whole)
        if patience.cause:
            return turn * TURN_S
    return True


def test_nothing_for_the_limit_is_a_stall():
    patience = Patience(60.0, 1000)
    assert lasts(patience, 3600) == pytest.approx(60.0, abs=TURN_S)
    assert patience.cause == "no byte moved for too long"


def test_less_than_the_least_rate_is_one_and_says_so():
    patience = Patience(60.0, 1000)
    assert lasts(patience, 3600, BYTES_MIN_S / 2) == pytest.approx(120.0, abs=1.0)
    assert patience.cause == "too few bytes moved for too long"
    assert lasts(Patience(60.0, 1000), 3600, BYTES_MIN_S * 1.01) is True


def test_a_lane_of_an_honest_link_never_meets_it():
    """One lane at 200 ms and 1 % of loss, one way, with a pause of 50 s every two minutes."""
    patience = Patience(60.0, 10_000)
    for _ in range(20):
        assert lasts(patience, 70, 89_000) is True
        assert lasts(patience, 50) is True


def test_a_ring_of_a_thousand_that_is_all_round_trips_never_meets_it():
    """2,000 hops of a few bytes, with half a round trip of 100 ms each; and of a second, where each packet is lost."""
    for hop_s in (0.1, 1.0):
        assert lasts(Patience(60.0, 2 * 2000), 2000 * hop_s, 88 / hop_s, 2 / hop_s) is True


def test_a_tiny_tensor_between_two_outlasts_several_stops():
    patience = Patience(60.0, 4)
    for _ in range(SPREAD):
        assert lasts(patience, 55) is True
        patience.spend(TURN_S, 100, 1)


def test_an_attempt_has_an_end():
    """Whatever a neighbour does: bytes at the least rate, two seconds for each segment, and five times the limit."""
    nbytes, segments, stall_s, spent = 64 << 20, 400, 60.0, 0.0
    patience = Patience(stall_s, segments)
    while not patience.cause:  # As little as keeps it alive.
        left = patience._left_s
        pay = 0
        if left < TURN_S and segments:
            segments, pay = segments - 1, 1
        portion = min(nbytes, int(BYTES_MIN_S * TURN_S)) if not segments else 0
        nbytes -= portion
        patience.spend(TURN_S, portion, pay)
        spent += TURN_S
    assert spent < (64 << 20) / BYTES_MIN_S + 400 * SEGMENT_S + 5 * stall_s


def test_this_process_standing_still_is_no_stall():
    patience = Patience(60.0, 10)
    patience.spend(3600.0)
    assert not patience.cause


def test_no_limit_is_none():
    assert lasts(Patience(0.0, 1), 7200) is True
