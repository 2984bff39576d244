"""The queue of a pull, without any lane: shares, windows, what a lost lane owed, and the source of free entries."""

from pccl.dataplane.state.agenda import REQUESTS_MAX, SECOND_REQUEST_S, WINDOW_BYTES, Agenda, Asked, Goal
from pccl.dataplane.state.digests import CHUNK_BYTES, chunks
from pccl.dataplane.state.manifest import Chunk, Described, Manifest
from pccl.types import DataType


def manifest(*sizes, free=(), version=0):
    """Entries of so many bytes; contents of `version` differ from those of any other in every chunk."""
    return Manifest(
        tuple(
            Described(str(place), DataType.UINT8, size, place in free, bytes([version]) * 16 * chunks(size))
            for place, size in enumerate(sizes)
        )
    )


def agenda(holders, elected, newcomer=False, **same):
    sizes = [entry.count for entry in elected.entries]
    free = [place for place, entry in enumerate(elected.entries) if entry.free]
    return Agenda(manifest(*sizes, free=free, **same), Goal(elected.layout, elected.content, newcomer), holders)


def begun(holders, elected, **settings):
    made = agenda(holders, elected, **settings)
    assert made.asks_for_manifest(0)
    assert not made.asks_for_manifest(len(holders) - 1)
    made.manifest_came(0, elected)
    return made


def deliver(made, lane, now=0.0):
    """The lane brings what it owes."""
    brought = []
    while made.owed(lane):
        chunk, digest = made.expected(lane)
        if made.chunk_came(lane, digest, now):
            brought.append(chunk)
    return brought


def finish(made, lanes, now=0.0):
    brought = []
    while not made.over:
        taken = [chunk for lane in lanes for chunk in made.next_chunks(lane, now)]
        assert taken, "nobody is asked for what is missing"
        brought += [chunk for lane in lanes for chunk in deliver(made, lane, now)]
    return brought


def test_in_step_nobody_is_asked():
    made = agenda([0, 1], manifest(10, 20))
    assert made.over
    assert made.cause == ""


def test_a_lane_is_asked_for_a_window_and_each_chunk_once():
    made = begun([0, 1], manifest(40 * CHUNK_BYTES, version=1))
    asked = made.next_chunks(0, 0.0)
    assert len(asked) == WINDOW_BYTES // CHUNK_BYTES
    assert made.next_chunks(0, 0.0) == []
    asked += made.next_chunks(1, 0.0)
    asked_and_brought = deliver(made, 0) + deliver(made, 1)
    assert asked_and_brought == asked
    everything = asked + finish(made, [0, 1])
    assert sorted(everything) == [Chunk(0, number) for number in range(40)]
    assert made.cause == ""


def test_few_chunks_are_shared_by_all_lanes():
    for wanted, lanes in ((6, 3), (4, 3), (3, 3), (8, 4)):
        made = begun(list(range(lanes)), manifest(wanted * CHUNK_BYTES, version=1))
        shares = [len(made.next_chunks(lane, 0.0)) for lane in range(lanes)]
        assert all(shares), (wanted, shares)
        assert max(shares) - min(shares) <= 1, (wanted, shares)


def test_a_thousand_small_entries_take_few_round_trips():
    made = begun([0, 1], manifest(*[100] * 3000, version=1))
    shares = [len(made.next_chunks(lane, 0.0)) for lane in (0, 1)]
    assert REQUESTS_MAX // 2 < shares[0] <= REQUESTS_MAX
    assert len(deliver(made, 0) + deliver(made, 1)) == sum(shares)
    assert len(finish(made, [0, 1])) == 3000 - sum(shares)


def test_what_a_lost_lane_owed_is_asked_for_elsewhere():
    made = begun([0, 1, 1], manifest(20 * CHUNK_BYTES, version=1))
    owed = made.next_chunks(1, 0.0)
    made.lane_gone(1, "it broke")
    assert made.dropped == {}, "its holder has another lane"
    assert made.next_chunks(2, 0.0) == owed
    made.lane_gone(2, "it broke too")
    assert made.dropped == {1: "it broke too"}
    assert made.next_chunks(0, 0.0) == owed
    assert len(deliver(made, 0) + finish(made, [0])) == 20


def test_a_holder_that_lies_is_dropped_with_all_its_lanes():
    made = begun([0, 1, 1], manifest(20 * CHUNK_BYTES, version=1))
    made.next_chunks(1, 0.0)
    made.next_chunks(2, 0.0)
    made.holder_lied(1, "it lied")
    assert [made.is_gone(lane) for lane in range(3)] == [False, True, True]
    assert made.next_chunks(2, 0.0) == []
    assert not made.chunk_came(1, bytes(16), 0.0), "what was on its way is not taken"
    assert len(finish(made, [0])) == 20
    assert made.dropped == {1: "it lied"}


def test_with_no_holder_left_it_fails_and_says_why():
    made = begun([0, 1], manifest(20 * CHUNK_BYTES, version=1))
    made.lane_gone(0, "closed")
    made.holder_lied(1, "it lied")
    assert made.over
    assert made.cause == "no holder is left (holder 0: closed; holder 1: it lied)"


def test_a_manifest_is_asked_of_the_next_holder():
    elected = manifest(10, version=1)
    made = agenda([0, 1], elected)
    assert made.asks_for_manifest(0)
    made.holder_lied(0, "it lied")
    assert not made.asks_for_manifest(0)
    assert made.asks_for_manifest(1)
    made.manifest_came(1, elected)
    assert finish(made, [1]) == [Chunk(0, 0)]


def test_a_slow_lane_is_helped_once_when_the_queue_is_empty():
    made = begun([0, 1], manifest(4 * CHUNK_BYTES, version=1))
    fast, slow = made.next_chunks(0, 0.0), made.next_chunks(1, 0.0)
    assert deliver(made, 0, 0.1) == fast
    assert made.next_chunks(0, SECOND_REQUEST_S / 2) == []
    assert made.next_chunks(0, SECOND_REQUEST_S) == [slow[-1]]
    assert deliver(made, 0, SECOND_REQUEST_S + 0.1) == [slow[-1]]
    assert made.next_chunks(0, SECOND_REQUEST_S + 0.1) == [slow[0]]
    assert deliver(made, 1, SECOND_REQUEST_S + 0.2) == [slow[0]], "the second copy is not written again"
    assert made.over
    assert made.owed(0), "so its lane is broken"


def test_lanes_that_are_equally_fast_do_not_help_each_other():
    """Two chunks on a lane take twice as long as one; a lane that had one is idle first, and waits."""
    chunk_s = 10 * SECOND_REQUEST_S
    made = begun([0, 1], manifest(3 * CHUNK_BYTES, version=1))
    assert [len(made.next_chunks(lane, 0.0)) for lane in (0, 1)] == [1, 1]
    assert deliver(made, 0, chunk_s) != []
    assert len(made.next_chunks(0, chunk_s)) == 1
    assert deliver(made, 1, chunk_s) != []
    assert made.next_chunks(1, chunk_s) == []
    assert made.next_chunks(1, 1.9 * chunk_s) == []
    assert len(made.next_chunks(1, 3.1 * chunk_s)) == 1, "now it is late"


def test_small_chunks_say_nothing_about_the_pace_of_a_lane():
    lane = Asked(0, outstanding_bytes=CHUNK_BYTES)
    lane.arrived(300, 0.01)
    assert lane.remaining_s(0.02) < SECOND_REQUEST_S
    lane.arrived(CHUNK_BYTES, 5.01)
    assert round(lane.remaining_s(5.01), 2) == 5.01


def test_a_lane_that_brings_small_chunks_slowly_is_helped():
    """None of them tells of its pace, and each comes before it is late; all of them together would come last."""
    small = CHUNK_BYTES // 16
    made = begun([0, 1], manifest(*[small] * 32, version=1))
    fast, slow = made.next_chunks(0, 0.0), made.next_chunks(1, 0.0)
    assert deliver(made, 0, 0.1) == fast
    for number in range(4):
        now = 0.9 * SECOND_REQUEST_S * (number + 1)
        assert made.next_chunks(0, now) == [], "until so much has come that its pace is known"
        _, digest = made.expected(1)
        assert made.chunk_came(1, digest, now)
    assert made.next_chunks(0, now) == [slow[-1]]


def test_a_slow_lane_that_breaks_after_it_was_helped_owes_nothing():
    made = begun([0, 1], manifest(2 * CHUNK_BYTES, version=1))
    made.next_chunks(0, 0.0)
    made.next_chunks(1, 0.0)
    deliver(made, 0)
    assert len(made.next_chunks(0, SECOND_REQUEST_S)) == 1
    made.lane_gone(1, "stalled")
    assert made.next_chunks(0, 9.0) == []
    deliver(made, 0)
    assert made.over
    assert made.cause == ""


# ── free entries ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_free_entries_are_for_newcomers_and_from_the_source_alone():
    elected = manifest(CHUNK_BYTES, 4 * CHUNK_BYTES, free=[1], version=1)
    made = begun([0, 1], elected)
    assert finish(made, [1]) == [Chunk(0, 0)]
    made = begun([0, 1], elected, newcomer=True)
    assert made.next_chunks(1, 0.0) == [Chunk(0, 0)]
    assert made.next_chunks(1, 9.0) == []
    assert len(deliver(made, 1) + finish(made, [0])) == 5


def test_in_step_but_new_free_entries_are_compared():
    elected = manifest(CHUNK_BYTES, free=[0])
    made = agenda([0], elected, newcomer=True)
    assert not made.over
    assert made.asks_for_manifest(0)
    made.manifest_came(0, elected)
    assert made.over


def test_the_next_source_gives_all_free_entries_anew():
    sizes = (4 * CHUNK_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES)
    first, second = (manifest(*sizes, free=[1, 2], version=version) for version in (1, 2))
    second = Manifest((first.entries[0], *second.entries[1:]))
    assert second.content == first.content
    made = begun([0, 1], first, newcomer=True)
    came = made.next_chunks(0, 0.0)[0]
    assert came == Chunk(1, 0), "free ones first: their source may not live long"
    assert made.chunk_came(0, made.expected(0)[1], 0.0)
    made.lane_gone(0, "closed")
    shared = made.next_chunks(1, 0.0)
    assert not made.asks_for_manifest(1), "it delivers what it owes first"
    while shared:
        assert all(chunk.entry == 0 for chunk in shared)
        deliver(made, 1)
        shared = made.next_chunks(1, 0.0)
    assert not made.over
    assert made.asks_for_manifest(1)
    made.manifest_came(1, second)
    assert sorted(finish(made, [1])) == [Chunk(1, 0), Chunk(2, 0), Chunk(2, 1)]
    assert made.cause == ""


def test_a_source_that_dies_when_its_free_entries_are_there_is_not_replaced():
    elected = manifest(8 * CHUNK_BYTES, CHUNK_BYTES, free=[1], version=1)
    made = begun([0, 1], elected, newcomer=True)
    made.next_chunks(0, 0.0)
    deliver(made, 0)
    made.lane_gone(0, "closed")
    assert not made.asks_for_manifest(1)
    finish(made, [1])
    assert made.cause == ""
