"""Transfers in which holders die, stall or lie, aborts at any moment, and bytes that mean nothing."""

import contextlib
import itertools
import random
import threading
import time
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pccl.dataplane.ring.segments import Header as Segment
from pccl.dataplane.state import agenda
from pccl.dataplane.state.digests import CHUNK_BYTES
from pccl.dataplane.state.pulling import Pulling
from pccl.dataplane.state.transfer import HEADER_BYTES, goodbye
from tests.patience import HANG_S, allow
from tests.state.puppet import CHUNK, HEADER, MANIFEST, Puppet, header
from tests.state.rig import STALL_S, End, Rig, blank, copied, equal, goal, holding, random_content
from tests.state.test_transfer import total

ABORT_S = 2.0
"""An abort takes 100 ms on a machine that is idle; this one may not be."""


def large(chunks=12, seed=1):
    return [random_content("a", (chunks - 2) * CHUNK_BYTES, seed), random_content("b", 2 * CHUNK_BYTES - 5, seed + 1)]


def old_or_elected(mine, before, state):
    """Every chunk is as it was or as elected."""
    for now, was, elected in zip(mine, before, state, strict=True):
        data = [content.array.tobytes() for content in (now, was, elected)]
        for start in range(0, len(data[0]), CHUNK_BYTES):
            part, *allowed = (each[start : start + CHUNK_BYTES] for each in data)
            assert part in allowed


# ── deaths ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(6))
def test_of_a_holder_that_dies_only_the_lost_chunks_are_fetched_again(rig, seed):
    state = large(10)
    mine, made, held = [blank(content) for content in state], rig(3, 1), holding(state)
    budget = random.Random(seed).randrange(4 * CHUNK_BYTES)
    dying = Puppet(made.far[0][0], state, held.manifest, budget=budget)
    ends = [made.serve(holder, held)[1] for holder in (1, 2)]
    _, end = made.pull(holding(mine), goal(held))
    report, served = end.wait(), [each.wait() for each in ends]
    dying.join()
    assert report.cause == ""
    assert equal(state, mine)
    assert sum(each.sent_bytes for each in served) == total(state) - dying.served
    assert report.received_bytes == total(state) + dying.wasted
    assert report.broken in ((), (0,)), "it may have had no more to do when its budget was spent"


def test_when_all_holders_die_a_second_pull_fetches_only_the_rest(rig):
    state = large()
    mine, held, first = [blank(content) for content in state], holding(state), rig(2, 1)
    puppets = [Puppet(lanes[0], state, held.manifest, budget=int(2.5 * CHUNK_BYTES)) for lanes in first.far]
    _, end = first.pull(holding(mine), goal(held))
    report = end.wait()
    assert report.cause.startswith("no holder is left (holder 0: ")
    assert report.broken == (0, 1)
    assert {holder for holder, _ in report.dropped} == {0, 1}
    second = rig(1, 1)
    second.serve(0, held)
    _, end = second.pull(holding(mine), goal(held))
    assert end.wait().received_bytes == total(state) - sum(puppet.served for puppet in puppets)
    assert equal(state, mine)


def test_a_lane_that_closes_does_not_take_its_holder_with_it(rig):
    state = large()
    mine, held, made = [blank(content) for content in state], holding(state), rig(1, 2)
    puppets = [Puppet(made.far[0][0], state, held.manifest, budget=0), Puppet(made.far[0][1], state, held.manifest)]
    _, end = made.pull(holding(mine), goal(held))
    report = end.wait()
    assert (report.cause, report.broken, report.dropped) == ("", (0,), ())
    assert equal(state, mine)
    assert puppets[1].served == total(state)


def test_a_lane_for_which_a_holder_has_no_thread_is_not_waited_for(rig):
    """It would end in a stall only, since a holder gives its lanes back when the requester needs none of them."""
    state = large()
    mine, held, made = [blank(content) for content in state], holding(state), rig(1, 2)
    start = threading.Thread.start

    def exhausted(thread):
        if thread.name == "pccl serve 1":
            raise RuntimeError("can't start new thread")
        start(thread)

    with patch.object(threading.Thread, "start", exhausted):
        _, served = made.serve(0, held)
        _, end = made.pull(holding(mine), goal(held))
        report = end.wait(STALL_S / 2)
    assert (report.cause, report.broken) == ("", (1,))
    assert equal(state, mine)
    assert served.wait().broken == (1,)


def silent_after(answers):
    """Answers so many chunks, then none."""
    count = itertools.count()
    return lambda kind, answer: answer if kind == MANIFEST or next(count) < answers else None


def test_a_holder_that_stalls_is_dropped(rig):
    state = large()
    mine, held, made = [blank(content) for content in state], holding(state), rig(2, 1)
    Puppet(made.far[0][0], state, held.manifest, act=silent_after(1))
    made.serve(1, held)
    _, end = made.pull(holding(mine), goal(held), stall_s=0.3)
    report = end.wait()
    assert (report.cause, report.broken) == ("", (0,))
    assert report.dropped == ((0, "no byte moved for 0.3 s"),)
    assert equal(state, mine)


def test_at_the_end_a_slow_holder_is_not_waited_for(rig, monkeypatch):
    monkeypatch.setattr(agenda, "SECOND_REQUEST_S", 0.1)
    state = large()
    mine, held, made = [blank(content) for content in state], holding(state), rig(2, 1)
    Puppet(made.far[0][0], state, held.manifest, act=silent_after(1))
    made.serve(1, held)
    _, end = made.pull(holding(mine), goal(held), stall_s=50)
    report = end.wait(HANG_S)
    assert (report.cause, report.broken, report.dropped) == ("", (0,), ())
    assert equal(state, mine)


def test_free_entries_come_from_one_holder_as_a_whole(rig):
    """Whichever holder is the source, and whenever it dies."""
    states = [
        [*large(6), *(random_content(f"f{n}", CHUNK_BYTES, 50 * h + n, free=True) for n in range(4))] for h in (1, 2)
    ]
    mine, made = [blank(content) for content in states[0]], rig(2, 1)
    Puppet(made.far[0][0], states[0], holding(states[0]).manifest, budget=int(2.5 * CHUNK_BYTES))
    made.serve(1, holding(states[1]))
    _, end = made.pull(holding(mine), goal(holding(states[0]), newcomer=True))
    assert end.wait().cause == ""
    assert equal(mine, states[1])


# ── lies ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def flipped(answer, place):
    changed = bytearray(answer)
    changed[place] ^= 1
    return bytes(changed)


LIES = {
    "a chunk with a wrong byte": lambda kind, answer: flipped(answer, -1) if kind == CHUNK else answer,
    "another chunk": lambda kind, answer: flipped(answer, 12) if kind == CHUNK else answer,
    "a manifest for a chunk": lambda kind, answer: flipped(answer, 4) if kind == CHUNK else answer,
    "another length": lambda kind, answer: flipped(answer, 16) if kind == CHUNK else answer,
    "no message": lambda kind, answer: flipped(answer, 0) if kind == CHUNK else answer,
    "a manifest with a wrong digest": lambda kind, answer: flipped(answer, -1) if kind == MANIFEST else answer,
    "no manifest": lambda kind, answer: answer[:HEADER_BYTES] + bytes(len(answer) - HEADER_BYTES),
    "a long manifest": lambda kind, answer: header(MANIFEST, 0, 0, (1 << 32) - 1) if kind == MANIFEST else answer,
    "a manifest of another state": None,
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie)
def test_a_liar_is_dropped_and_nothing_of_it_is_kept(rig, lie):
    state = large(6)
    act = LIES[lie] or (lambda kind, answer: answer)
    manifest = holding(state if LIES[lie] else large(6, seed=9)).manifest
    mine, held, made = large(6, seed=5), holding(state), rig(1, 2)
    before, own = copied(mine), holding(mine)
    for lane in made.far[0]:
        Puppet(lane, state, manifest, act=act)
    _, end = made.pull(own, goal(held))
    report = end.wait()
    assert report.cause.startswith("no holder is left (holder 0: ")
    assert (report.broken, [holder for holder, _ in report.dropped]) == ((0, 1), [0])
    assert equal(mine, before)
    made = rig(2, 2)
    for lane in made.far[0]:
        Puppet(lane, state, manifest, act=act)
    made.serve(1, held)
    _, end = made.pull(own, goal(held))
    report = end.wait()
    assert report.cause == ""
    assert set(report.broken) <= {0, 1}
    assert equal(mine, state)


# ── aborts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def until(moved, transfer, end):
    """A random moment: when so many bytes have moved, or it has ended."""
    looked = threading.Event()
    while transfer.moved_bytes < moved and not end.reports:
        looked.wait(0.0005)


@pytest.mark.parametrize("seed", range(8))
def test_an_abort_at_any_moment(rig, seed):
    draw = random.Random(seed)
    state = large(10)
    mine = [blank(content) for content in state]
    before, held, made = copied(mine), holding(state), rig(2, 2)
    sides = [made.serve(holder, held) for holder in range(2)]
    pulling, end = made.pull(holding(mine), goal(held))
    until(draw.choice([0, 0, 1, draw.randrange(total(state))]), pulling, end)
    began = time.monotonic()
    pulling.abort()
    report = end.wait()
    assert time.monotonic() - began < allow(ABORT_S)
    assert report.cause in ("aborted", "")
    old_or_elected(mine, before, state)
    made.close_broken(report)
    for holder, (serving, served) in enumerate(sides):
        outcome = served.wait()  # every lane has said goodbye or was closed
        assert {2 * holder + lane for lane in outcome.broken} <= set(report.broken)
        serving.join()
    again_over_clean_lanes(made, report, state, mine)


def again_over_clean_lanes(made, report, state, mine):
    """What was said to be clean is: another pull over the same lanes gives everything that is missing."""
    near, far = (list(itertools.chain.from_iterable(side)) for side in (made.near, made.far))
    flat = list(zip(near, far, strict=True))
    clean = [pair for place, pair in enumerate(flat) if place not in report.broken]
    if clean:
        made.near, made.far = [[near for near, _ in clean]], [[far for _, far in clean]]
        held = holding(state)
        made.serve(0, held)
        _, end = made.pull(holding(mine), goal(held))
        assert end.wait().cause == ""
        assert equal(state, mine)


def test_an_abort_while_a_holder_is_silent(rig):
    state = large(4)
    mine, held, made = [blank(content) for content in state], holding(state), rig(2, 1)
    asked = threading.Event()
    for lanes in made.far:
        Puppet(lanes[0], state, held.manifest, act=lambda kind, answer: asked.set())
    pulling, end = made.pull(holding(mine), goal(held))
    assert asked.wait(HANG_S)
    pulling.abort()
    report = end.wait(ABORT_S)
    assert report.cause == "aborted"
    assert len(report.broken) == 1, "one was asked for a manifest and owes it; the other was told goodbye"


def test_an_abort_before_the_start(rig):
    state = large(4)
    mine, held, made = [blank(content) for content in state], holding(state), rig(2, 1)
    sides = [made.serve(holder, held)[1] for holder in range(2)]
    end = End()
    pulling = Pulling(made.attempt, holding(mine), goal(held), made.near, end, STALL_S)
    pulling.abort()
    pulling.start()
    report = end.wait()
    pulling.join()
    assert (report.cause, report.broken) == ("aborted", ())
    assert [side.wait().broken for side in sides] == [(), ()]


def test_serving_is_aborted_while_it_waits_and_while_it_sends(rig):
    state = large(10)
    held, made = holding(state), rig(1, 2, buffer_bytes=1 << 16)
    serving, end = made.serve(0, held)
    made.near[0][0].send(header(CHUNK, 0, 0, CHUNK_BYTES))  # and does not read the answer
    until(1, serving, end)
    serving.abort()
    report = end.wait(ABORT_S)
    assert (report.cause, report.broken) == ("aborted", (0, 1))
    assert 0 < report.sent_bytes < CHUNK_BYTES


def test_a_requester_that_takes_nothing_is_given_up(rig):
    state = large(10)
    made = rig(1, 1, buffer_bytes=1 << 16)
    _, end = made.serve(0, holding(state), stall_s=0.2)
    made.near[0][0].send(header(CHUNK, 0, 0, CHUNK_BYTES))
    report = end.wait()
    assert (report.cause, report.broken) == ("", (0,))
    assert report.dropped == ((0, "no byte moved for 0.2 s"),)


# ── nonsense ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = [random_content("a", 300, 1), random_content("b", 7, 2)]
HELD = holding(SMALL)
numbers = st.integers(0, 3) | st.integers(0, 2**32 - 1)
messages = st.builds(header, st.integers(0, 4), numbers, numbers, st.sampled_from([0, 7, 300, 2**32 - 1]))
STALE, BYE = goodbye(0), goodbye(1)
goodbyes = st.sampled_from([STALE, BYE])
nonsense = st.lists(messages | goodbyes | st.binary(max_size=60), max_size=6).map(b"".join)
FUZZ = settings(max_examples=60)


def answers(requests):
    """What an honest holder says to these bytes, and whether they end with a goodbye."""
    said = b""
    while len(requests) >= HEADER.size:
        if requests.startswith(BYE):
            return said, True
        if requests.startswith(STALE):
            requests = requests[len(STALE) :]
            continue
        request, requests = requests[: HEADER.size], requests[HEADER.size :]
        magic, kind, entry, number, length = HEADER.unpack(request)
        if magic == b"PCCLSTAT" and kind == MANIFEST:
            said += header(MANIFEST, 0, 0, len(HELD.manifest.encoded)) + HELD.manifest.encoded
        elif magic == b"PCCLSTAT" and kind == CHUNK and (entry, number, length) in ((0, 0, 300), (1, 0, 7)):
            said += request + SMALL[entry].array.tobytes()
        else:
            break
    return said, False


@FUZZ
@given(nonsense)
def test_a_holder_answers_what_makes_sense_and_nothing_else(requests):
    made = Rig(1, 1)
    try:
        near = made.near[0][0]
        near.setblocking(True)
        near.sendall(requests)
        near.shutdown(1)
        _, end = made.serve(0, HELD)
        report = end.wait()
        said, clean = answers(requests)
        assert report.broken == (() if clean else (0,))
        with contextlib.suppress(OSError):  # A holder hangs up by itself, unless it heard a goodbye.
            made.far[0][0].shutdown(1)
        assert b"".join(iter(lambda: near.recv(1 << 16), b"")) == said
    finally:
        made.close()


@FUZZ
@given(nonsense, st.booleans())
def test_a_requester_keeps_nothing_of_nonsense(answer, after_manifest):
    made = Rig(1, 1)
    try:
        honest = header(MANIFEST, 0, 0, len(HELD.manifest.encoded)) + HELD.manifest.encoded
        made.far[0][0].sendall(after_manifest * honest + answer)
        made.far[0][0].shutdown(1)
        mine = [blank(content) for content in SMALL]
        before = copied(mine)
        _, end = made.pull(holding(mine), goal(HELD))
        report = end.wait()
        assert report.cause.startswith("no holder is left")
        assert report.broken == (0,)
        assert equal(mine, before)
    finally:
        made.close()


def test_segments_of_an_aborted_collective_are_dropped_on_both_sides(rig):
    """A lane is given back on the boundary of a segment, not empty: whole ones may still be on their way."""
    stale = b"".join(
        Segment(5, attempt, 1, 0, len(payload), 0, 77).sealed().pack() + payload
        for attempt, payload in ((3, b"x" * 1000), (4, b""), (5, bytes(70_000)))
    )
    state = large(10)
    held, made = holding(state), rig(1, 1)
    made.near[0][0].sendall(stale)
    made.far[0][0].sendall(stale)
    mine = [blank(content) for content in state]
    _, served = made.serve(0, held)
    _, end = made.pull(holding(mine), goal(held))
    assert (end.wait().cause, served.wait().cause) == ("", "")
    assert equal(mine, state)


def test_a_damaged_segment_breaks_the_lane(rig):
    state = large(10)
    made = rig(1, 1)
    damaged = bytearray(Segment(5, 3, 1, 0, 8, 0, 77).sealed().pack() + bytes(8))
    damaged[25] ^= 1
    made.far[0][0].sendall(damaged)
    _, end = made.pull(holding([blank(content) for content in state]), goal(holding(state)))
    assert end.wait().broken == (0,)
