"""A holder beside visitors, who may mean no good: what they get of its bandwidth, and when their lanes are cut."""

import contextlib
import threading

import pytest
from msgspec.structs import replace

from pccl.dataplane.ring.segments import Header as Segment
from pccl.dataplane.state import serving, transfer
from pccl.dataplane.state.serving import PORTION_BYTES, REQUEST_BYTES, Rate
from pccl.dataplane.state.transfer import Lane, LaneBroke, SharedPatience
from tests.patience import allow
from tests.state.puppet import CHUNK, MANIFEST, Puppet, header
from tests.state.rig import blank, copied, equal, goal, holding, random_content

RATE_BYTES_S = 1_000_000


def test_whoever_came_first_is_served_first_however_much_it_wants(monkeypatch):
    now = 100.0
    monkeypatch.setattr(serving.time, "monotonic", lambda: now)
    rate = Rate(RATE_BYTES_S)
    large_s = rate.draw(PORTION_BYTES)
    small_s = [rate.draw(REQUEST_BYTES) for _ in range(3)]
    assert large_s == pytest.approx(PORTION_BYTES / RATE_BYTES_S)
    assert small_s == pytest.approx([large_s + n * REQUEST_BYTES / RATE_BYTES_S for n in (1, 2, 3)])
    now += small_s[-1]
    assert rate.draw(REQUEST_BYTES) == pytest.approx(REQUEST_BYTES / RATE_BYTES_S), "what was waited for is paid"


def test_a_visitor_cannot_send_segments_without_end(rig):
    made = rig(1, 1)
    made.near[0][0].sendall(Segment(5, 3, 1, 0, 8, 0, 77).sealed().pack() + bytes(8))
    _, end = made.serve(0, holding([random_content("a", 300, 1)]), rate_bytes_s=RATE_BYTES_S)
    report = end.wait()
    assert report.dropped == ((0, "the bytes received are not a message of a state transfer"),)


class Trickle:
    """A connection on which a byte comes each time after a while."""

    def __init__(self, data):
        self._data, self._due = list(data), False

    def recv_into(self, into):
        self._due = not self._due
        if self._due:
            raise BlockingIOError
        into[0] = self._data.pop(0)
        return 1


@pytest.mark.parametrize(("stall_s", "comes"), [(0.2, False), (2.0, True), (0.0, True)])
def test_a_header_comes_whole_within_the_limit(monkeypatch, stall_s, comes):
    lane = Lane(1, 0, Trickle(header(MANIFEST)), stall_s)
    monkeypatch.setattr(lane, "_ready", lambda event: False)
    if comes:
        assert lane.receive_header(lambda: False).kind == MANIFEST
    else:
        with pytest.raises(LaneBroke, match=r"no byte moved for 0\.2 s"):
            lane.receive_header(lambda: False)


@pytest.mark.parametrize("changed", [True, False])
def test_what_did_not_fit_is_counted_but_not_as_put_in_place(rig, changed):
    """Holders go on meanwhile: if every chunk has changed, a visitor's state is what it was."""
    state, made = [random_content("a", 300, 1), random_content("b", 200, 2)], rig(1, 1)
    mine, held = [blank(content) for content in state], holding(state)
    before = copied(mine)
    Puppet(
        made.far[0][0],
        state,
        held.manifest,
        lambda kind, answer: damaged(answer) if changed and kind == CHUNK else answer,
    )
    _, end = made.pull(holding(mine), replace(goal(held), visit=True))
    report = end.wait()
    assert (report.cause, report.received_bytes) == ("", 500)
    assert report.placed_bytes == (0 if changed else 500)
    assert equal(mine, before if changed else state)


def damaged(answer):
    return answer[:-1] + bytes([answer[-1] ^ 1])


def test_a_visitor_that_takes_a_little_now_and_then_holds_no_place(rig):
    """Any byte was progress: four visits of one guest held all places of a holder for hours."""
    made, held = rig(1, 1), holding([random_content(f"entry {place}", 1, place) for place in range(1_000)])
    _, end = made.serve(0, held, stall_s=0.4, rate_bytes_s=1e9)
    lane, over = made.near[0][0], threading.Event()
    lane.setblocking(True)

    def trickle():
        with contextlib.suppress(OSError):
            for entry in range(1_000):
                lane.sendall(header(CHUNK, entry, length=1))
                if not lane.recv(4096) or over.wait(0.1):
                    return

    reading = threading.Thread(target=trickle, daemon=True)
    reading.start()
    report = end.wait(allow(20))
    over.set()
    reading.join(allow(20))
    assert report.dropped == ((0, "too few bytes moved for 0.4 s"),)


def test_while_one_lane_waits_for_our_rate_the_others_lose_no_patience(monkeypatch):
    now = 100.0
    monkeypatch.setattr(transfer.time, "monotonic", lambda: now)
    patience = SharedPatience(0.4)
    with patience.paused():
        for _ in range(10):
            now += 0.1
            assert patience.over(100.0, 0) == ""
    now += 0.3
    assert patience.over(100.0, 0) == ""
    now += 0.2
    assert patience.over(100.0, 0)
