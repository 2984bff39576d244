"""How many lanes links have: grown while losses press, kept if that brought something, and back otherwise."""

from msgspec import structs

from pccl.core.fields import Flow
from pccl.core.rules.lanes import (
    ALONE_TRIPS,
    FACTOR,
    GAIN,
    HOLD_S,
    LANE_BYTES_MIN,
    LOOKS,
    QUIET,
    UNLIKE,
    WARMING_TRIPS,
    Look,
    Tuner,
    look,
)

PRESSED = Flow(sent=64_000_000, resent=64_000, held_ms=40_000, busy_ms=40_000, shortest_us=40_000, smoothed_us=41_000)
TRIP_S = 0.04
WARM_S = 10.0 - WARMING_TRIPS * TRIP_S
"""What ten seconds alone count as."""
SHORT_S = (ALONE_TRIPS - 1) * TRIP_S
MOST = 64


def seen(lanes: int, seconds: float = 10.0, **changes: int) -> Look:
    found = look([structs.replace(PRESSED, **changes)], lanes, seconds)
    assert found is not None
    return found


def tuner(lanes: int = 4) -> Tuner:
    return Tuner(lanes, 4)


def test_losses_without_a_queue_ask_for_more():
    rule = tuner()
    reason = rule.judge(seen(4), MOST, 0.0)
    assert rule.lanes == 4 * FACTOR
    assert reason == "0.1 % lost, 12.8 Mbit/s a lane, round trip 41 of 40 ms"


def test_a_gain_is_kept_and_leads_on():
    rule = tuner()
    rule.judge(seen(4), MOST, 0.0)
    assert rule.judge(seen(16, WARM_S / GAIN - 0.1), MOST, 10.0)
    assert rule.lanes == MOST


def test_what_warming_explains_is_no_gain():
    rule = tuner()
    rule.judge(seen(4), MOST, 0.0)
    for _ in range(LOOKS - 1):
        assert rule.judge(seen(16, WARM_S), MOST, 10.0) == ""
    assert rule.judge(seen(16, WARM_S), MOST, 20.0) == "with 16 it was 1.09 times as fast"
    assert rule.lanes == 4


def test_what_is_short_is_seen_again_before_anything_changes():
    """As under bbr, where the second is faster with as many."""
    rule = tuner()
    for _ in range(LOOKS - 1):
        assert rule.judge(seen(4, SHORT_S, sent=50_000_000), MOST, 0.0) == ""
        assert rule.lanes == 4
    rule.judge(seen(4, SHORT_S * 0.8, sent=50_000_000, resent=50_000), MOST, 0.0)
    assert rule.lanes == 16
    rule.judge(seen(16, SHORT_S * 0.5, sent=50_000_000, resent=50_000), MOST, 0.0)
    assert rule.lanes == 16, "it stays, and is not tried on at once"
    rule.judge(seen(16, SHORT_S * 0.5, sent=50_000_000, resent=50_000), MOST, 0.0)
    assert rule.lanes == MOST


def test_lanes_much_faster_than_losses_allow_are_not_limited_by_them():
    """As under bbr. At 40 ms 1 % allows reno 3.5 Mbit/s, and 0.1 % at 200 ms cubic 3.2."""
    for each, presses in (
        (seen(4, resent=640_000), False),
        (seen(4, 12.5, resent=640_000), True),
        (seen(4, 12.5, shortest_us=200_000, smoothed_us=200_000), False),
        (seen(4, 13.5, shortest_us=200_000, smoothed_us=200_000), True),
    ):
        assert each.presses is presses


def test_what_brings_nothing_is_taken_back_and_not_tried_again_for_a_while():
    rule = tuner()
    rule.judge(seen(4), MOST, 0.0)
    for _ in range(LOOKS - 1):
        assert rule.judge(seen(16), MOST, 10.0) == ""
    assert rule.judge(seen(16), MOST, 20.0) == "with 16 it was 1.00 times as fast"
    assert rule.lanes == 4
    assert rule.judge(seen(4), MOST, 20.0 + HOLD_S - 1) == ""
    assert rule.judge(seen(4), MOST, 20.0 + HOLD_S)


def test_rates_that_go_up_and_down_are_no_gain():
    """Of two with each number the better one was as fast."""
    rule = tuner()
    rule.judge(seen(4, 8.0, resent=0), MOST, 0.0)
    rule.judge(seen(4, 10.0), MOST, 0.0)
    assert rule.judge(seen(16, 10.0), MOST, 1.0) == ""
    assert rule.judge(seen(16, 8.0), MOST, 2.0) == "with 16 it was 1.00 times as fast"


def test_what_was_faster_long_ago_does_not_count():
    rule = tuner()
    rule.judge(seen(4, 5.0, resent=0), MOST, 0.0)
    for _ in range(LOOKS - 1):
        rule.judge(seen(4, 10.0, resent=0), MOST, 0.0)
    rule.judge(seen(4, 10.0), MOST, 0.0)
    rule.judge(seen(16, 8.0), MOST, 1.0)
    assert rule.lanes == MOST


def test_each_failure_doubles_the_pause():
    rule, now, pauses = tuner(), 0.0, []
    for _ in range(3):
        before = now
        while not rule.judge(seen(4), MOST, now):
            now += 1.0
        pauses.append(now - before)
        for _ in range(LOOKS):
            rule.judge(seen(16), MOST, now)
    assert pauses == [0.0, HOLD_S, 2 * HOLD_S]


def test_a_full_queue_idle_lanes_near_neighbours_and_short_work_ask_for_nothing():
    for each in (
        seen(4, smoothed_us=90_000),
        seen(4, resent=0),
        seen(4, busy_ms=10_000),
        seen(4, shortest_us=4_900, smoothed_us=5_000),
        seen(4, seconds=1.0),
        seen(4, sent=4 * LANE_BYTES_MIN - 1),
    ):
        rule = tuner()
        assert rule.judge(each, MOST, 0.0) == ""
        assert rule.lanes == 4


def test_a_buffer_that_holds_lanes_up_asks_for_more():
    rule = tuner()
    assert rule.judge(seen(4, resent=0, limited_ms=30_000), MOST, 0.0)


def test_the_bound_is_kept():
    rule = tuner()
    rule.judge(seen(4), 7, 0.0)
    assert rule.lanes == 7
    assert rule.judge(seen(7, 5.0), 7, 10.0) == ""


def test_without_losses_for_long_fewer_are_tried_and_kept_if_they_do():
    rule = tuner(16)
    for _ in range(QUIET - 1):
        assert rule.judge(seen(16, resent=0), MOST, 0.0) == ""
    assert rule.judge(seen(16, resent=0), MOST, 0.0)
    assert rule.lanes == 8
    assert rule.judge(seen(8, resent=0), MOST, 1.0) == ""
    assert rule.lanes == 8


def test_fewer_that_are_slower_are_taken_back():
    rule = tuner(16)
    for _ in range(QUIET):
        rule.judge(seen(16, resent=0), MOST, 0.0)
    for _ in range(LOOKS):
        rule.judge(seen(8, 12.0, resent=0), MOST, 1.0)
    assert rule.lanes == 16


def test_never_fewer_than_it_began_with():
    rule = tuner()
    for _ in range(3 * QUIET):
        assert rule.judge(seen(4, resent=0), MOST, 0.0) == ""


LONGER = 250_000_000


def test_another_length_is_not_compared():
    rule = tuner()
    rule.judge(seen(4), MOST, 0.0)
    for _ in range(UNLIKE - 1):
        assert rule.judge(seen(16, 40.0, sent=LONGER), MOST, 1.0) == ""
    assert rule.lanes == 16
    rule.judge(seen(16, 5.0), MOST, 2.0)
    rule.judge(seen(16, 5.0), MOST, 2.0)
    assert rule.lanes == MOST, "it was twice as fast"


def test_each_length_is_compared_with_its_own():
    """As where a long collective and a short one take turns."""
    rule = tuner()
    for _ in range(3):
        rule.judge(seen(4, 10.0, resent=0), MOST, 0.0)
        rule.judge(seen(4, 15.0, sent=LONGER, resent=0), MOST, 0.0)
    rule.judge(seen(4), MOST, 0.0)
    for _ in range(LOOKS - 1):
        assert rule.judge(seen(16, 15.0, sent=LONGER), MOST, 1.0) == "", "faster than the other, but not than before"
    assert rule.judge(seen(16, 15.0, sent=LONGER), MOST, 2.0) == "with 16 it was 1.00 times as fast"
    assert rule.lanes == 4


def test_a_change_that_nothing_can_be_compared_with_is_made_once_more():
    """A newcomer has pulled the state, and what comes then is never as long."""
    rule = tuner()
    rule.judge(seen(4, 100.0, sent=1 << 30, resent=1 << 20), MOST, 0.0)
    for _ in range(UNLIKE - 1):
        assert rule.judge(seen(16), MOST, 1.0) == ""
    assert rule.judge(seen(16), MOST, 2.0) == "nothing of this length was seen with 4"
    assert rule.lanes == 4
    assert rule.judge(seen(4), MOST, 3.0), "it had brought nothing to rest for"
    assert rule.lanes == 16
    rule.judge(seen(16, 5.0), MOST, 4.0)
    rule.judge(seen(16, 5.0), MOST, 4.0)
    assert rule.lanes == MOST


def test_no_more_than_what_is_sent_can_tell_of():
    rule = tuner(16)
    assert rule.judge(seen(16, sent=20 * LANE_BYTES_MIN, resent=2000), MOST, 0.0)
    assert rule.lanes == 20
    assert rule.judge(seen(20, 5.0, sent=20 * LANE_BYTES_MIN, resent=2000), MOST, 1.0) == "", "it was judged"
    assert rule.judge(seen(20, 9.0, sent=MOST * LANE_BYTES_MIN, resent=10_000), MOST, 2.0)


def test_a_link_of_so_many_that_fails_ends_it():
    rule = tuner()
    rule.judge(seen(4), MOST, 0.0)
    rule.give_up(1.0)
    assert rule.lanes == 4
    assert rule.judge(seen(4), MOST, HOLD_S) == ""


def test_the_slowest_link_is_the_one_whose_lanes_were_busy():
    idle = structs.replace(PRESSED, busy_ms=8_000, resent=0)
    found = look([idle, PRESSED, Flow()], 4, 10.0)
    assert found is not None
    assert found.flow is PRESSED
    assert look([Flow()], 4, 10.0) is None
