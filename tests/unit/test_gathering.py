"""A master that knows nothing and peers that come back to it: who goes on, who does not, and what everybody is told."""

import time

import pytest
from msgspec import structs

from pccl.core.fields import Identity
from pccl.core.messages.report import Agreed, AttemptReport, LinkReport, ReportPart
from pccl.core.messages.to_master import Join, Leave, LinkDown
from pccl.core.messages.to_peer import Kick, Outcome, Resumed, Topology, TopologyUpdated
from tests.unit.scripted_master import LIMITS, RING, RUN, SPEC, Stage, resume, taken_back


def test_when_all_are_back_the_run_goes_on_at_once() -> None:
    stage = Stage()
    for place, peer in enumerate(RING):
        assert taken_back(stage) == []
        stage.come_back(place, peer)
    assert taken_back(stage) == [0, 1, 2, 3]
    assert stage.master.lead.run == RUN
    topology = stage.last(0, Topology)
    assert isinstance(topology, Topology)
    assert topology.ring == RING
    assert topology.epoch > 7


@pytest.mark.parametrize("received", [True, False])
def test_while_all_wait_to_let_others_in_they_may_be_more_than_they_know(received: bool) -> None:
    """Carl was let in, and the master was lost before anybody but carl had received it: carl is waited for. Nobody
    knows whether there is a carl, so not for long."""
    stage = Stage()
    for place, peer in enumerate(RING[:2]):
        stage.come_back(place, peer, ring=RING[:2], global_size=2, updating=True)
    stage.wait(1.0)
    assert taken_back(stage) == []
    if received:
        stage.come_back(2, "carl", ring=RING[:3], global_size=3, epoch=8, topology=60, accepted_at=60)
        assert taken_back(stage) == [0, 1, 2]
        assert [stage.last(place, TopologyUpdated) for place in (0, 1)] == [TopologyUpdated(60)] * 2
    else:
        stage.wait(LIMITS.reunion_s)
        assert taken_back(stage) == [0, 1]


def test_who_did_not_wait_to_let_others_in_is_all_there_is() -> None:
    stage = Stage()
    stage.come_back(0, "anna", ring=RING[:2], global_size=2, updating=True)
    stage.come_back(1, "bert", ring=RING[:2], global_size=2)
    assert taken_back(stage) == [0, 1]


def test_whoever_did_not_hear_that_its_run_came_back_to_the_same_master_is_told_again() -> None:
    """A master had lost all its peers, and they came back to it, but one connection broke before it was told so: what
    it said to this master before is no part of what it says now."""
    stage = Stage()
    before = {"secret": "s", "master": stage.master.lead.name, "received": 3}
    for place, peer in enumerate(RING):
        stage.come_back(place, peer, dial=1, **before)
    assert taken_back(stage) == [0, 1, 2, 3]
    stage.come_back(4, "anna", dial=2, **before)
    assert taken_back(stage) == [0, 1, 2, 3, 4]
    # Another process had its place meanwhile: what that was sent is not what this one lacks.
    stage.come_back(5, "anna", dial=3, **{**before, "received": 4})
    assert isinstance(stage.last(5, Kick), Kick)


def test_the_highest_epoch_is_the_last_one() -> None:
    """One peer heard of an epoch without dora: dora is stale, and the others are told."""
    stage = Stage()
    stage.come_back(0, "dora")
    stage.come_back(1, "bert")
    stage.come_back(2, "carl")
    stage.come_back(3, "anna", epoch=8, ring=RING[:3], global_size=3)
    assert taken_back(stage) == [1, 2, 3]
    kick = stage.last(0, Kick)
    assert isinstance(kick, Kick)
    assert "not in the last ring of its group" in kick.reason


def test_a_group_that_has_not_heard_of_the_last_epoch_keeps_its_place() -> None:
    stage = Stage()
    stage.come_back(0, "anna", epoch=8, ring=("anna",), global_size=2)
    stage.come_back(1, "bert", epoch=7, ring=("bert",), global_size=3, group=1)
    assert taken_back(stage) == [0, 1]


def test_a_peer_that_somebody_still_has_a_link_to_is_waited_for_longer() -> None:
    stage = Stage()
    link = LinkReport(3, "dora", True, 1)
    for place, peer in enumerate(RING[:3]):
        stage.send(place, resume(peer), ReportPart(ring=RING), ReportPart(links=(link,)), ReportPart(last=True))
    stage.wait(LIMITS.reunion_s + 1.0)
    assert taken_back(stage) == []
    assert any("dora" in sentence for sentence in stage.master.explain())
    stage.wait(LIMITS.silence_s)
    assert taken_back(stage) == [0, 1, 2]


def test_a_run_of_others_is_not_disturbed() -> None:
    stage = Stage(follows=True)
    for place, peer in enumerate(RING):
        stage.come_back(place, peer)
    stage.come_back(9, "emil", run="somethingelse", ring=("emil",), global_size=99)
    kick = stage.last(9, Kick)
    assert isinstance(kick, Kick)
    assert RUN in kick.reason
    assert "somethingelse" in kick.reason
    assert taken_back(stage) == [0, 1, 2, 3]


def test_a_run_that_has_just_begun_gives_way_to_an_earlier_one() -> None:
    stage = Stage(follows=True)
    stage.send(0, Join(Identity("newcomer", 0, "", 1, 0)))
    stage.wait(LIMITS.newborn_s)
    assert isinstance(stage.last(0, Topology), Topology), "nobody came back, so it begins a run"
    for place, peer in enumerate(RING, start=1):
        stage.come_back(place, peer)
    assert isinstance(stage.last(0, Kick), Kick)
    assert taken_back(stage) == [1, 2, 3, 4]


def test_newcomers_wait_for_those_who_come_back() -> None:
    stage = Stage(follows=True)
    stage.send(0, Join(Identity("newcomer", 0, "", 1, 0)))
    for place, peer in enumerate(RING, start=1):
        stage.come_back(place, peer)
    assert stage.last(0, Topology) is None
    assert taken_back(stage) == [1, 2, 3, 4]


@pytest.mark.parametrize("how", ["committed", "aborted"])
def test_an_outcome_that_anybody_was_told_holds_for_all(how: str) -> None:
    stage = Stage()
    done = AttemptReport(5, SPEC, 80, (0,), True)
    for place, peer in enumerate(RING[:3]):
        stage.come_back(place, peer, done)
    stage.come_back(3, "dora", **{how: (80,)})
    told = [stage.last(place, Outcome) for place in range(3)]
    assert [isinstance(each, Outcome) and (each.tag, each.attempt, each.committed) for each in told] == [
        (5, 80, how == "committed")
    ] * 3
    assert stage.last(3, Outcome) is None


def test_who_knows_of_an_abortion_has_voted_anew_and_is_not_told_of_it_twice() -> None:
    """Or it would count one attempt more than the others."""
    stage = Stage()
    stage.come_back(0, "anna", AttemptReport(5, SPEC), aborted=(80,))
    for place, peer in enumerate(RING[1:], start=1):
        stage.come_back(place, peer, AttemptReport(5, SPEC, 80, (0,), True, "a lane broke"))
    assert [isinstance(stage.last(place, Outcome), Outcome) for place in range(4)] == [False, True, True, True]
    assert "waits for bert, carl, dora (1 of 4" in " ".join(stage.master.explain())


def test_who_had_only_voted_for_an_attempt_is_told_that_it_was_aborted() -> None:
    """The second master aborted what the first had started at some, and died when it had told one of them."""
    stage = Stage()
    stage.come_back(0, "anna", aborted=(80,))
    stage.come_back(1, "bert", AttemptReport(5, SPEC))
    for place, peer in enumerate(RING[2:], start=2):
        stage.come_back(place, peer, AttemptReport(5, SPEC, 80, (0,), True, "a lane broke"))
    assert [isinstance(stage.last(place, Outcome), Outcome) for place in range(4)] == [False, True, True, True]
    assert not any("tag 5" in sentence for sentence in stage.master.explain())


@pytest.mark.parametrize("last", [True, False])
def test_what_everybody_has_finished_is_committed_and_what_runs_goes_on(last: bool) -> None:
    stage = Stage()
    for place, peer in enumerate(RING[:3]):
        stage.come_back(place, peer, AttemptReport(5, SPEC, 80, (0,), True))
    stage.come_back(3, "dora", AttemptReport(5, SPEC, 80, (0,), last))
    assert (stage.last(0, Outcome) is not None) == last
    if not last:
        assert "not finished at dora" in " ".join(stage.master.explain())


def test_who_waits_for_an_answer_that_others_have_got_is_given_it() -> None:
    stage = Stage()
    for place, peer in enumerate(RING):
        stage.come_back(place, peer, updating=peer != "anna", topology=60, updated=60 if peer == "anna" else 50)
    assert stage.last(0, TopologyUpdated) is None
    assert [stage.last(place, TopologyUpdated) for place in (1, 2, 3)] == [TopologyUpdated(60)] * 3


def test_a_ring_with_peers_of_another_group_is_believed_by_nobody_else() -> None:
    stage = Stage()
    stage.come_back(0, "evil", group=1, ring=("evil", "anna"), global_size=5)
    for place, peer in enumerate(RING, start=1):
        stage.come_back(place, peer, global_size=5)
    assert taken_back(stage) == [0, 1, 2, 3, 4]
    assert stage.master.roster.rings == {0: RING, 1: ("evil",)}


def test_no_more_come_back_than_there_can_be() -> None:
    stage = Stage(limits=structs.replace(LIMITS, peers_max=3))
    for place in range(5):
        stage.send(place, resume(f"peer{place}"))
    assert [isinstance(stage.last(place, Kick), Kick) for place in range(5)] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("recall", "facts"),
    [
        (ReportPart(attempts=tuple(AttemptReport(tag, SPEC, 80, tuple(range(1024))) for tag in range(3))), {}),
        (ReportPart(attempts=(AttemptReport(5, SPEC, 91, (0,)),), last=True), {}),
        (ReportPart(committed=(91,), last=True), {}),
        (ReportPart(links=(LinkReport(10, "bert", True, 1),), last=True), {}),
        (ReportPart(last=True), {"topology": 91}),
        (ReportPart(last=True), {"agreed": Agreed(91, 7, bytes(16), bytes(16))}),
    ],
)
def test_what_cannot_be_is_not_recalled(recall: ReportPart, facts: dict[str, object]) -> None:
    stage = Stage()
    stage.send(0, resume("anna", **facts), ReportPart(ring=RING), recall)
    kick = stage.last(0, Kick)
    assert isinstance(kick, Kick)
    assert "broke the protocol" in kick.reason


def test_a_thousand_come_back_in_seconds() -> None:
    """Far below the two seconds in which a peer that dials expects an answer, for each of them."""
    ring = tuple(f"peer{place}" for place in range(1000))
    stage = Stage()
    began = time.process_time()
    for place, peer in enumerate(ring):
        portions = [ReportPart(ring=ring[start : start + 256]) for start in range(0, len(ring), 256)]
        stage.send(place, resume(peer, global_size=len(ring)), *portions, ReportPart(last=True))
    assert len(taken_back(stage)) == len(ring)
    assert time.process_time() - began < 10.0, "1.5 s where this was written, 19 s when all is counted with each word"


def tell_with_link(stage: Stage, connection: int, peer: str, other: str, **facts: object) -> None:
    """Of a run of two that are linked; who was linked first dialled."""
    link = LinkReport(9, other, dial=peer < other, lanes=1)
    first = resume(peer, global_size=2, secret=f"of {peer}", **facts)
    stage.send(connection, first, ReportPart(ring=("anna", "bert"), links=(link,)), ReportPart(last=True))


def test_who_is_cut_off_after_its_report_is_taken_back_and_hears_of_it_when_it_asks_again() -> None:
    stage = Stage()
    tell_with_link(stage, 0, "bert", "anna", dial=1, sent=11)
    stage.close(0)
    tell_with_link(stage, 1, "anna", "bert")
    assert stage.last(1, Resumed)
    assert list(stage.master.roster.accepted) == ["anna", "bert"]
    tell_with_link(stage, 2, "bert", "anna", dial=2, sent=12)
    taken, topology = stage.last(2, Resumed), stage.last(2, Topology)
    assert isinstance(taken, Resumed)
    assert taken.received == 11, "what it sent after its first report is not in that"
    assert isinstance(topology, Topology)
    assert topology.ring == ("anna", "bert")
    assert stage.last(2, Kick) is None


def test_who_is_cut_off_and_has_no_link_left_is_lost_if_it_stays_away() -> None:
    stage = Stage()
    stage.send(
        0, resume("bert", global_size=2, secret="of bert"), ReportPart(ring=("anna", "bert")), ReportPart(last=True)
    )
    stage.close(0)
    tell_with_link(stage, 1, "anna", "bert")
    stage.wait(LIMITS.reunion_s - 1.0)
    assert list(stage.master.roster.accepted) == ["anna", "bert"]
    stage.wait(1.1)
    assert list(stage.master.roster.accepted) == ["anna"]


def test_a_report_stands_when_its_peer_comes_again_and_is_not_done_yet() -> None:
    """The others may have been waited for long enough at this very moment."""
    stage = Stage()
    tell_with_link(stage, 0, "bert", "anna", dial=1, sent=11)
    stage.close(0)
    stage.send(2, resume("bert", global_size=2, secret="of bert", dial=2, sent=12))
    tell_with_link(stage, 1, "anna", "bert")
    taken = stage.last(2, Resumed)
    assert isinstance(taken, Resumed)
    assert taken.received == 11
    stage.send(2, ReportPart(ring=("anna", "bert")), ReportPart(last=True))
    assert stage.last(2, Kick) is None
    assert list(stage.master.roster.accepted) == ["anna", "bert"]


@pytest.mark.parametrize("others", [(4, 5), (7, 8)], ids=["of another pair, too", "of one pair"])
def test_a_pair_that_tells_of_two_links_ends_nothing(others: tuple[int, int]) -> None:
    """Stories that agree with each other and make no sense: two numbers of one pair, one number of two pairs."""
    stage = Stage()
    pairs = {"anna": ("bert", (4, 5)), "bert": ("anna", (4, 5)), "carl": ("dora", others), "dora": ("carl", others)}
    for connection, (me, (other, numbers)) in enumerate(pairs.items(), 1):
        links = tuple(LinkReport(number, other, me < other, 1) for number in numbers)
        stage.send(connection, resume(me), ReportPart(ring=RING, links=links), ReportPart(last=True))
    stage.send(1, Leave())
    for connection in (2, 3):
        stage.send(connection, *(LinkDown(number, "it broke") for number in (4, 5, 7, 8)))
    assert [type(message) for message in stage.told[4]].count(Topology) == 2, "dora goes on, and learns that anna left"
    assert not any(isinstance(message, Kick) for told in stage.told.values() for message in told)


def test_a_report_that_names_another_master_takes_the_place_of_the_first() -> None:
    """Another master had this peer in between: what it reported before is old."""
    stage = Stage()
    tell_with_link(stage, 0, "bert", "anna", dial=1, sent=11, master="one", received=5)
    tell_with_link(stage, 2, "bert", "anna", dial=2, sent=13, master="two", received=1)
    tell_with_link(stage, 1, "anna", "bert")
    taken = stage.last(2, Resumed)
    assert isinstance(taken, Resumed)
    assert taken.received == 13
    assert (stage.last(0, Resumed), stage.last(0, Kick)) == (None, None)
    assert 0 in stage.closed


@pytest.mark.parametrize("first", ["Join", "Resume"])
def test_what_arrives_late_from_a_connection_that_was_given_up_changes_nothing(first: str) -> None:
    stage = Stage()
    tell_with_link(stage, 0, "bert", "anna", dial=3)
    tell_with_link(stage, 1, "anna", "bert", dial=3)
    assert taken_back(stage) == [0, 1]
    late = {
        "Join": Join(Identity("bert", 0, "", 1, 0, secret="of bert"), dial=2),
        "Resume": resume("bert", secret="of bert", dial=2),
    }
    before = list(stage.told[0])
    stage.send(2, late[first])
    assert stage.closed == [2]
    assert 2 not in stage.told
    assert stage.told[0] == before
    assert list(stage.master.roster.accepted) == ["anna", "bert"]
