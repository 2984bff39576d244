"""Links with more lanes than their group began with: what they carried, what becomes of one that breaks or cannot be
made, and that the next master goes on with them."""

import pytest

from pccl.core.fields import Flow, Identity
from pccl.core.master import sync as syncs
from pccl.core.master.widths import WIDE_MESH_MAX
from pccl.core.messages.both import Ping
from pccl.core.messages.to_master import Done, Failed, Fetch, Join, LinkDown, SyncEnded, SyncState, VoteTopology
from pccl.core.messages.to_peer import Abort, Outcome, Start, StartSync
from pccl.core.rules.lanes import ALONE_TRIPS, FACTOR, LOOKS
from pccl.core.rules.ring import pair
from pccl.types import PeerId, SharedStateSyncStrategy
from tests.unit.wide import (
    EXHAUSTED,
    LEAST,
    MOST,
    PEERS,
    PRESSED,
    ROUND_TRIP_US,
    RUN_S,
    WIDE,
    After,
    Group,
    all_links,
    three,
)


@pytest.fixture
def wide() -> Group:
    """Three whose links have come to have more lanes."""
    group = three()
    assert group.run().lanes == (0, 1, 2, 3)
    group.stand()
    assert group.lanes() == {WIDE}
    group.told.clear()
    return group


def test_a_number_that_was_asked_for_stays() -> None:
    group = three(LEAST)
    for _ in range(3):
        assert group.run().lanes == (0, 1, 2, 3)
    assert group.lanes() == {LEAST}


def test_links_of_other_groups_stay() -> None:
    group = three()
    for connection, peer in {4: "dora", 5: "emil"}.items():
        group.send(connection, Join(Identity(PeerId(peer), 1, "h", connection, 0, lanes_max=MOST)))
    for connection in PEERS:
        group.send(connection, VoteTopology())
    group.stand()
    (other,) = group.links[4]
    group.told.clear()
    group.run()
    group.stand()
    assert {link.lanes for link in group.links[1].values()} == {WIDE}
    assert [(number, link.lanes) for number, link in group.links[4].items()] == [(other, LEAST)]


def test_the_link_of_a_visitor_stays_while_it_fetches() -> None:
    group = three()
    for connection in PEERS:
        group.send(connection, SyncState(1, SharedStateSyncStrategy.ENFORCE_POPULAR, bytes(16), bytes(16)))
    group.send(9, Join(Identity(PeerId("vera"), 0, "h", 9, 0, visits=True, lanes_max=MOST)))
    group.send(9, Fetch())
    group.stand()
    visited = set(group.links[9])
    assert visited
    group.run()
    group.stand()
    assert set(group.links[9]) == visited
    assert {link.lanes for links in group.links.values() for link in links.values() if link.number not in visited} == {
        WIDE
    }


# ── state transfers ──────────────────────────────────────────────────────────────────────────────────────────────────


def sync(group: Group) -> StartSync:
    """The third has no state yet; what it is told."""
    for connection in PEERS:
        fresh = connection == 3
        content = bytes(16) if fresh else b"c" * 16
        group.send(
            connection, SyncState(0 if fresh else 1, SharedStateSyncStrategy.ENFORCE_POPULAR, bytes(16), content)
        )
    started = {connection: start for connection, start in group.take(StartSync) if isinstance(start, StartSync)}
    assert {connection: start.pull for connection, start in started.items()} == {1: False, 2: False, 3: True}
    assert len({start.lanes for start in started.values()}) == 1
    return started[3]


def test_a_state_is_pulled_over_as_many_lanes(wide: Group) -> None:
    assert sync(wide).lanes == tuple(range(WIDE))


def test_what_holders_have_sent_tells_how_many_it_takes() -> None:
    """Before anything was reduced."""
    group = three()
    start = sync(group)
    assert start.lanes == tuple(range(LEAST))
    group.now += RUN_S
    for connection in (3, 1, 2):
        assert group.lanes() == {LEAST}, "it goes on"
        group.send(connection, SyncEnded(start.attempt, "", Flow() if connection == 3 else PRESSED))
    group.stand()
    assert group.lanes() == {WIDE}


def test_what_a_newcomer_has_sent_tells_nothing() -> None:
    """Requests, over lanes that are busy for all that."""
    group = three()
    start = sync(group)
    group.now += RUN_S
    for connection in (3, 1, 2):
        group.send(connection, SyncEnded(start.attempt, "", PRESSED if connection == 3 else Flow()))
    group.stand()
    assert group.lanes() == {LEAST}


def test_nor_do_lanes_beyond_the_ring_which_are_fewer(wide: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those between peers of large groups."""
    monkeypatch.setattr(syncs, "transfer_lanes", lambda lanes, round_trip_s: tuple(range(LEAST)))
    start = sync(wide)
    wide.now += RUN_S / 2
    for connection in (3, 1, 2):
        wide.send(connection, SyncEnded(start.attempt, "", Flow() if connection == 3 else PRESSED))
    wide.stand()
    assert wide.lanes() == {WIDE}, "it was twice as fast as what the ring did with fewer"


@pytest.mark.parametrize("size", [WIDE_MESH_MAX, WIDE_MESH_MAX + 1])
def test_links_beside_the_ring_are_as_wide_in_small_groups_alone(size: int) -> None:
    group = three()
    ends = dict(PEERS)
    for connection in range(len(PEERS) + 1, size + 1):
        ends[connection] = PeerId(f"peer {connection}")
        group.send(connection, Join(Identity(ends[connection], 0, "h", connection, 0, lanes_max=MOST)))
        for member in list(ends)[:-1]:
            group.send(member, VoteTopology())
        group.stand()
    group.stand()
    group.take(Start)
    group.vote(0, dict.fromkeys(ends, 0))
    start = group.take(Start)[0][1]
    assert isinstance(start, Start)
    group.now += RUN_S
    for connection in ends:
        group.send(connection, Done(start.tag, start.attempt, b"", PRESSED))
    group.stand()
    ring = group.master.roster.ring(0)
    links = [(connection, link) for connection in ends for link in group.links[connection].values()]
    pairs = {pair(ends[connection], link.peer): link.lanes for connection, link in links}
    neighbours = {pair(*each) for each in zip(ring, (*ring[1:], ring[0]), strict=True)}
    beside = {lanes for two, lanes in pairs.items() if two not in neighbours}
    assert len(ring) == size
    assert {pairs[each] for each in neighbours} == {WIDE}
    assert beside == {WIDE if size <= WIDE_MESH_MAX else LEAST}


# ── what is on its way ───────────────────────────────────────────────────────────────────────────────────────────────


def test_parcels_of_votes_before_the_links_were_made_again_are_lost() -> None:
    group = three()
    group.vote(0)
    start = group.start()
    group.vote(1, {1: 11, 2: 12})
    group.finish(start)
    group.stand()
    assert group.lanes() == {WIDE}
    group.vote(1, {3: 13})
    again = group.start()
    assert (again.tag, again.lanes, again.parcels) == (1, tuple(range(WIDE)), ())


def test_parcels_of_votes_while_they_are_made_again_are_lost() -> None:
    group = three()
    group.run()
    group.vote(1, {1: 11, 2: 12, 3: 13})
    assert group.take(Start) == [], "the ring does not stand"
    group.stand()
    assert group.start().lanes == tuple(range(WIDE))


def test_parcels_of_votes_thereafter_arrive(wide: Group) -> None:
    wide.vote(1, {1: 11, 2: 12, 3: 13})
    start = wide.start()
    assert (start.lanes, sorted(start.parcels)) == ((), [11, 12, 13])


def test_a_link_that_breaks_under_a_collective_with_many_lanes_is_made_again_with_as_many(wide: Group) -> None:
    wide.vote(0)
    start = wide.start()
    assert start.lanes == tuple(range(WIDE))
    wide.vote(1, {1: 11})
    broken = wide.a_link()
    wide.send(1, LinkDown(broken, "reset"))
    assert len(wide.take(Abort)) == len(PEERS)
    for connection in PEERS:
        wide.send(connection, Failed(start.tag, start.attempt, "aborted"))
    wide.vote(1, {2: 12})
    wide.stand()
    outcomes = [message for _, message in wide.take(Outcome)]
    assert [isinstance(each, Outcome) and each.committed for each in outcomes] == [False] * 3
    assert broken not in wide.links[1]
    assert wide.lanes() == {WIDE}, "it had served: its lanes are not too many"
    assert wide.blameless()
    wide.vote(1, {3: 13})
    again = wide.start()
    assert (again.lanes, again.parcels) == (tuple(range(WIDE)), ()), "what the broken link carried is lost"
    wide.finish(again)
    assert wide.run().lanes[:WIDE] == tuple(range(WIDE))


def test_what_was_aborted_is_not_measured(wide: Group) -> None:
    """All but one had their part done when it broke."""
    wide.vote()
    start = wide.start()
    wide.now += RUN_S / 2
    for connection in (2, 3):
        wide.send(connection, Done(start.tag, start.attempt, b"", PRESSED))
    wide.send(1, Failed(start.tag, start.attempt, "a lane broke"))
    wide.send(1, Ping())
    wide.stand()
    assert wide.lanes() == {WIDE}, "they seemed twice as fast"


def test_nor_is_what_begins_while_another_one_goes_on() -> None:
    """Its time is short, and what the other has sent is from a longer one."""
    group = three()
    group.run()
    for tag in range(2):
        group.vote(tag)
    group.stand()
    running = {start.tag: start for _, start in group.take(Start) if isinstance(start, Start)}
    assert [len(start.lanes) for start in running.values()] == [WIDE // 2] * 2
    group.now += RUN_S * 0.8
    for connection in PEERS:
        group.send(connection, Failed(0, running[0].attempt, "a lane broke"))
    group.vote(0)
    again = group.start()
    assert again.attempt > running[0].attempt
    group.now += RUN_S * 0.2
    for start in (running[1], again):
        for connection in PEERS:
            group.send(connection, Done(start.tag, start.attempt, b"", PRESSED))
    group.stand()
    assert group.lanes() == {WIDE}, "it seemed ten times as fast"


def test_what_was_seen_before_the_ring_changed_is_not_compared() -> None:
    """New links begin with small windows."""
    short_s = 0.9 * ALONE_TRIPS * ROUND_TRIP_US / 1e6
    group = three()
    group.run(short_s)
    four = {**PEERS, 4: PeerId("dora")}
    group.send(4, Join(Identity(four[4], 0, "h", 4, 0, lanes_max=MOST)))
    for connection in PEERS:
        group.send(connection, VoteTopology())
    for looks in range(1, LOOKS + 1):
        group.stand()
        group.take(Start)
        group.vote(0, dict.fromkeys(four, 0))
        start = group.take(Start)[0][1]
        assert isinstance(start, Start)
        assert start.lanes == tuple(range(LEAST)), looks
        group.now += short_s
        for connection in four:
            group.send(connection, Done(start.tag, start.attempt, b"", PRESSED))
    assert {link.lanes for link in group.links[1].values()} == {WIDE}


# ── links that cannot be made ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stands", [True, False])
def test_descriptors_run_out_and_links_have_fewer_lanes(stands: bool) -> None:
    """While others vote already, and whether or not the other links could be made."""
    group = three()
    group.run()
    assert group.lanes() == {WIDE}
    failed = group.a_link()
    if stands:
        group.stand(failed)
    group.vote(1)
    group.send(1, LinkDown(failed, EXHAUSTED))
    group.stand()
    group.stand()
    assert group.lanes() == {LEAST}
    assert group.blameless()
    assert not group.take(Abort)
    start = group.start()
    assert (start.tag, start.lanes) == (1, tuple(range(LEAST)))
    group.finish(start)
    for _ in range(LOOKS):
        assert group.run().lanes == tuple(range(LEAST)), "it is not tried again at once"


def test_both_ends_of_all_links_run_out() -> None:
    group = three()
    group.run()
    for connection, links in group.links.copy().items():
        for number in links:
            group.send(connection, LinkDown(number, EXHAUSTED))
    assert group.blameless()
    group.stand()
    group.stand()
    assert group.lanes() == {LEAST}
    assert group.run().lanes == tuple(range(LEAST))


def test_a_link_of_many_that_never_stands_has_fewer_lanes() -> None:
    """The other end accepts nothing any more, which the one that dials cannot tell from a long way."""
    group = three()
    group.run()
    late = group.a_link()
    group.stand(late)
    group.wait(group.master.limits.link_timeout_s)
    group.stand()
    group.stand()
    assert late not in group.links[1]
    assert group.lanes() == {LEAST}
    assert group.blameless()
    assert group.run().lanes == tuple(range(LEAST))


def test_fewer_that_cannot_be_made_either_are_a_mark_against_their_ends() -> None:
    """Too many lanes are an excuse once."""
    group = three()
    group.run()
    for _ in range(2):
        group.send(1, LinkDown(group.a_link(), EXHAUSTED))
    assert any(link.failures for link in group.master.links.all())


# ── the next master ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_number_survives_the_master() -> None:
    group = After(all_links(WIDE))
    assert {number for links in group.links.values() for number in links} == {3, 4, 5}, "none is made again"
    assert group.run().lanes == tuple(range(WIDE))


def test_and_it_goes_on_from_there() -> None:
    """More where losses press, and the least is still what the run began with."""
    group = After(all_links(WIDE))
    group.run()
    group.stand()
    assert group.lanes() == {min(MOST, WIDE * FACTOR)}
    for _ in range(LOOKS):  # as fast as before
        group.run()
        group.stand()
    assert group.run().lanes == tuple(range(WIDE))
    group.send(1, LinkDown(group.a_link(), "reset"))
    group.stand()
    assert group.lanes() == {WIDE}, "a link that is made anew has as many"


def test_links_that_the_master_left_half_made_become_alike() -> None:
    """It died while they were made again."""
    half = all_links(WIDE) | {frozenset(("anna", "bert")): LEAST}
    group = After(half)
    group.stand()
    assert group.lanes() == {WIDE}
    assert group.run().lanes == tuple(range(WIDE))


def test_a_number_that_was_asked_for_survives_as_such() -> None:
    group = After(all_links(WIDE), asked=WIDE)
    for _ in range(3):
        assert group.run().lanes == tuple(range(WIDE))
    assert group.lanes() == {WIDE}


def test_links_of_many_that_break_at_once_under_the_next_master_have_fewer() -> None:
    """Its trainer had opened files meanwhile."""
    group = After(all_links(WIDE))
    group.run(flow=Flow())
    for _ in range(2):
        group.send(1, LinkDown(next(reversed(group.links[1])), EXHAUSTED))
    group.stand()
    group.stand()
    assert group.lanes() == {LEAST}
    assert group.blameless()
