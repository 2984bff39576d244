"""A master that knows nothing and peers that come back to it: who goes on, who does not, and what everybody is told."""

import time

import pytest
from msgspec import structs

from pccl.core.absence import Absence
from pccl.core.effects import (
    Close,
    Closed,
    DialMaster,
    FromMaster,
    MasterClosed,
    MasterEffect,
    MasterUp,
    Received,
    Send,
    Tick,
)
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.core.master import Master
from pccl.core.messages import (
    Agreed,
    CollectiveSpec,
    Elsewhere,
    Join,
    Kick,
    LinkReport,
    Outcome,
    Recall,
    Resume,
    Resumed,
    RunReport,
    ToPeer,
    Topology,
    TopologyUpdated,
    Welcome,
)
from pccl.core.peer import Peer, PeerIdentity
from pccl.types import DataType, PeerId, ReduceOp

RUN = "therun"
RING = ("anna", "bert", "carl", "dora")
SPEC = CollectiveSpec(8, DataType.FLOAT, ReduceOp.SUM)
LIMITS = MasterLimits(reunion_s=5.0, silence_s=60.0)


def resume(peer: str, **facts: object) -> Resume:
    story = Resume(
        peer=peer,
        group=0,
        host="10.0.0.1",
        port=1,
        lanes=1,
        serves=True,
        run=RUN,
        masters=1,
        epoch=7,
        global_size=len(RING),
        groups=1,
        last_link=9,
        last_number=90,
        accepted_at=1,
        topology=50,
        updated=50,
        asked=0,
        pending=False,
        agreed=None,
        updating=False,
        asking=False,
        claim=None,
    )
    return structs.replace(story, **facts)


class Stage:
    """A master, and what it told each connection."""

    def __init__(self, limits: MasterLimits = LIMITS, **arguments: object) -> None:
        self.master = Master("another", limits, **arguments)  # type: ignore[arg-type]
        self.told: dict[int, list[ToPeer]] = {}
        self.closed: list[int] = []
        self.now = 0.0
        self._note(self.master.handle(Tick(), 0.0))

    def _note(self, effects: list[MasterEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                for connection in effect.connections:
                    self.told.setdefault(connection, []).append(effect.message)
            elif isinstance(effect, Close):
                self.closed.append(effect.connection)

    def say(self, connection: int, *messages: object) -> None:
        for message in messages:
            self._note(self.master.handle(Received(connection, message, "10.0.0.9"), self.now))  # type: ignore[arg-type]

    def close(self, connection: int) -> None:
        self._note(self.master.handle(Closed(connection, "reset"), self.now))

    def come_back(self, connection: int, peer: str, *runs: RunReport, **facts: object) -> None:
        ring = facts.pop("ring", RING)
        outcomes = Recall(committed=facts.pop("committed", ()), aborted=facts.pop("aborted", ()))  # type: ignore[arg-type]
        recalls = (Recall(ring=ring), Recall(runs=runs), outcomes, Recall(last=True))  # type: ignore[arg-type]
        self.say(connection, resume(peer, **facts), *recalls)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.master.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self._note(self.master.handle(Tick(), self.now))
        self.now = end

    def last(self, connection: int, kind: type) -> ToPeer | None:
        return next((each for each in reversed(self.told.get(connection, [])) if isinstance(each, kind)), None)


def taken_back(stage: Stage) -> list[int]:
    return [connection for connection in sorted(stage.told) if stage.last(connection, Resumed)]


def test_when_all_are_back_the_run_goes_on_at_once() -> None:
    stage = Stage()
    for place, peer in enumerate(RING):
        assert taken_back(stage) == []
        stage.come_back(place, peer)
    assert taken_back(stage) == [0, 1, 2, 3]
    assert stage.master.run == RUN
    topology = stage.last(0, Topology)
    assert isinstance(topology, Topology)
    assert topology.ring == RING
    assert topology.epoch > 7


@pytest.mark.parametrize("heard", [True, False])
def test_while_all_wait_to_let_others_in_they_may_be_more_than_they_know(heard: bool) -> None:
    """Carl was let in, and the master was lost before anybody but carl had heard of it: carl is waited for. Nobody
    knows whether there is a carl, so not for long."""
    stage = Stage()
    for place, peer in enumerate(RING[:2]):
        stage.come_back(place, peer, ring=RING[:2], global_size=2, updating=True)
    stage.wait(1.0)
    assert taken_back(stage) == []
    if heard:
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
    before = {"secret": "s", "master": stage.master.name, "heard": 3}
    for place, peer in enumerate(RING):
        stage.come_back(place, peer, story=1, **before)
    assert taken_back(stage) == [0, 1, 2, 3]
    stage.come_back(4, "anna", story=2, **before)
    assert taken_back(stage) == [0, 1, 2, 3, 4]


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
    stage.come_back(0, "anna", epoch=8, ring=("anna",), global_size=2, groups=2)
    stage.come_back(1, "bert", epoch=7, ring=("bert",), global_size=3, groups=3, group=1)
    assert taken_back(stage) == [0, 1]


@pytest.mark.parametrize("masters", [1, 2])
@pytest.mark.parametrize("back", [("anna",), ("carl", "dora"), ("anna", "dora"), ("bert", "carl", "dora")])
def test_only_where_two_masters_can_be_a_majority_is_needed(masters: int, back: tuple[str, ...]) -> None:
    """More than half, or half of them with the first of the ring: never two masters at once."""
    stage = Stage()
    for place, peer in enumerate(back):
        stage.come_back(place, peer, masters=masters)
    stage.wait(LIMITS.reunion_s)
    goes_on = masters == 1 or len(back) > 2 or (len(back) == 2 and "anna" in back)
    assert bool(taken_back(stage)) == goes_on
    assert all(bool(stage.last(place, Elsewhere)) != goes_on for place in range(len(back)))


def test_a_peer_that_somebody_still_has_a_link_to_is_waited_for_longer() -> None:
    stage = Stage()
    link = LinkReport(3, "dora", True, 1)
    for place, peer in enumerate(RING[:3]):
        stage.say(place, resume(peer), Recall(ring=RING), Recall(links=(link,)), Recall(last=True))
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
    stage.say(0, Join("newcomer", 0, "", 1, 0))
    stage.wait(LIMITS.newborn_s)
    assert isinstance(stage.last(0, Topology), Topology), "nobody came back, so it begins a run"
    for place, peer in enumerate(RING, start=1):
        stage.come_back(place, peer)
    assert isinstance(stage.last(0, Kick), Kick)
    assert taken_back(stage) == [1, 2, 3, 4]


def test_newcomers_wait_for_those_who_come_back() -> None:
    stage = Stage(follows=True)
    stage.say(0, Join("newcomer", 0, "", 1, 0))
    for place, peer in enumerate(RING, start=1):
        stage.come_back(place, peer)
    assert stage.last(0, Topology) is None
    assert taken_back(stage) == [1, 2, 3, 4]


def test_a_master_without_a_run_sends_those_away_who_begin_none() -> None:
    stage = Stage()
    stage.say(0, Join("newcomer", 0, "", 1, 0, begin=False))
    assert isinstance(stage.last(0, Elsewhere), Elsewhere)
    assert stage.closed == [0]


@pytest.mark.parametrize("how", ["committed", "aborted"])
def test_an_outcome_that_anybody_was_told_holds_for_all(how: str) -> None:
    stage = Stage()
    done = RunReport(5, SPEC, 80, (0,), True)
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
    stage.come_back(0, "anna", RunReport(5, SPEC), aborted=(80,))
    for place, peer in enumerate(RING[1:], start=1):
        stage.come_back(place, peer, RunReport(5, SPEC, 80, (0,), True, "a lane broke"))
    assert [isinstance(stage.last(place, Outcome), Outcome) for place in range(4)] == [False, True, True, True]
    assert "waits for bert, carl, dora (1 of 4" in " ".join(stage.master.explain())


def test_who_had_only_voted_for_an_attempt_is_told_that_it_was_aborted() -> None:
    """The second master aborted what the first had started at some, and died when it had told one of them."""
    stage = Stage()
    stage.come_back(0, "anna", aborted=(80,))
    stage.come_back(1, "bert", RunReport(5, SPEC))
    for place, peer in enumerate(RING[2:], start=2):
        stage.come_back(place, peer, RunReport(5, SPEC, 80, (0,), True, "a lane broke"))
    assert [isinstance(stage.last(place, Outcome), Outcome) for place in range(4)] == [False, True, True, True]
    assert not any("tag 5" in sentence for sentence in stage.master.explain())


@pytest.mark.parametrize("last", [True, False])
def test_what_everybody_has_finished_is_committed_and_what_runs_goes_on(last: bool) -> None:
    stage = Stage()
    for place, peer in enumerate(RING[:3]):
        stage.come_back(place, peer, RunReport(5, SPEC, 80, (0,), True))
    stage.come_back(3, "dora", RunReport(5, SPEC, 80, (0,), last))
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
    stage.come_back(0, "evil", group=1, ring=("evil", "anna"), groups=2, global_size=5)
    for place, peer in enumerate(RING, start=1):
        stage.come_back(place, peer, groups=2, global_size=5)
    assert taken_back(stage) == [0, 1, 2, 3, 4]
    assert stage.master.roster.rings == {0: RING, 1: ("evil",)}


def test_those_who_may_have_been_lost_since_make_no_majority() -> None:
    """The last roster was anna and bert, carl and dora; emil and fred had left the second group, and do not know it."""
    second = ("carl", "dora", "emil", "fred")
    stage = Stage()
    stage.come_back(0, "anna", masters=2, groups=2, epoch=9, ring=("anna", "bert"))
    for place, peer in enumerate(second[2:], start=1):
        stage.come_back(place, peer, masters=2, groups=2, group=1, global_size=6, ring=second)
    stage.wait(LIMITS.silence_s)
    assert taken_back(stage) == []
    assert all(isinstance(stage.last(place, Elsewhere), Elsewhere) for place in range(3))


def test_a_master_of_another_run_is_no_verdict_for_those_who_know_others() -> None:
    stage = Stage()
    for place, peer in enumerate(RING):
        stage.come_back(place, peer)
    stage.come_back(9, "emil", run="somethingelse", ring=("emil",), masters=2)
    assert isinstance(stage.last(9, Elsewhere), Elsewhere)
    assert 9 in stage.closed


def test_no_more_come_back_than_there_can_be() -> None:
    stage = Stage(limits=structs.replace(LIMITS, peers_max=3))
    for place in range(5):
        stage.say(place, resume(f"peer{place}"))
    assert [isinstance(stage.last(place, Kick), Kick) for place in range(5)] == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("recall", "facts"),
    [
        (Recall(runs=tuple(RunReport(tag, SPEC, 80, tuple(range(1024))) for tag in range(3))), {}),
        (Recall(runs=(RunReport(5, SPEC, 91, (0,)),), last=True), {}),
        (Recall(committed=(91,), last=True), {}),
        (Recall(links=(LinkReport(10, "bert", True, 1),), last=True), {}),
        (Recall(last=True), {"topology": 91}),
        (Recall(last=True), {"agreed": Agreed(91, 7, bytes(16), bytes(16))}),
    ],
)
def test_what_cannot_be_is_not_recalled(recall: Recall, facts: dict[str, object]) -> None:
    stage = Stage()
    stage.say(0, resume("anna", **facts), Recall(ring=RING), recall)
    kick = stage.last(0, Kick)
    assert isinstance(kick, Kick)
    assert "broke the protocol" in kick.reason


def test_a_thousand_come_back_in_seconds() -> None:
    """Far below the two seconds in which a peer that dials expects an answer, for each of them."""
    ring = tuple(f"peer{place}" for place in range(1000))
    stage = Stage()
    began = time.process_time()
    for place, peer in enumerate(ring):
        portions = [Recall(ring=ring[start : start + 256]) for start in range(0, len(ring), 256)]
        stage.say(place, resume(peer, global_size=len(ring)), *portions, Recall(last=True))
    assert len(taken_back(stage)) == len(ring)
    assert time.process_time() - began < 10.0, "1.5 s where this was written, 19 s when all is counted with each word"


def test_a_master_that_stops_before_it_takes_us_back_is_not_the_only_one() -> None:
    """Though nobody at this peer waits for anything. It is asked once more: perhaps it has taken us back."""
    limits = PeerLimits(master_silence_s=10.0, master_timeout_s=100.0)
    peer = Peer(PeerIdentity(PeerId("anna"), 0, "", 1, 0, masters=2), limits)
    peer.handle(MasterUp(0), 0.0)
    for message in (Welcome("therun"), Topology(1, ("anna",), 1, 1, 1)):
        peer.handle(FromMaster(message), 0.0)
    peer.handle(MasterClosed("reset"), 0.0)
    dialled = []
    while (due := peer.next_deadline()) is not None and due < 90.0 and len(dialled) < 3:
        dials = [effect for effect in peer.handle(Tick(), due) if isinstance(effect, DialMaster)]
        if dials:
            dialled += dials
            peer.handle(MasterUp(dials[0].place), due)
    assert [dial.place for dial in dialled] == [0, 0, 1]


def test_dials_go_round_and_end() -> None:
    absence = Absence(2, PeerLimits(master_timeout_s=10.0), seed=1)
    absence.begin("reset", 0.0)
    now, places = 0.0, []
    while not absence.over(now):
        due = absence.next_deadline()
        assert due is not None
        now = max(now, due)
        dial = absence.due(now)
        if dial is not None:
            places.append(dial.place)
            absence.go_on("refused", now, broke_off=False)
    assert places[:6] == [0, 1, 0, 1, 0, 1]
    assert now == 10.0
    assert len(places) < 50, "pauses grow to a second"


def tell_with_link(stage: Stage, connection: int, peer: str, other: str, **facts: object) -> None:
    """Of a run of two that are linked; who was linked first dialled."""
    link = LinkReport(9, other, dial=peer < other, lanes=1)
    story = resume(peer, global_size=2, secret=f"of {peer}", **facts)
    stage.say(connection, story, Recall(ring=("anna", "bert"), links=(link,)), Recall(last=True))


def test_who_is_cut_off_after_its_story_is_taken_back_and_hears_of_it_when_it_asks_again() -> None:
    stage = Stage()
    tell_with_link(stage, 0, "bert", "anna", story=1)
    stage.close(0)
    tell_with_link(stage, 1, "anna", "bert", story=1)
    assert stage.last(1, Resumed)
    assert list(stage.master.roster.accepted) == ["anna", "bert"]
    tell_with_link(stage, 2, "bert", "anna", story=2)
    taken, topology = stage.last(2, Resumed), stage.last(2, Topology)
    assert isinstance(taken, Resumed)
    assert taken.story == 1
    assert isinstance(topology, Topology)
    assert topology.ring == ("anna", "bert")
    assert stage.last(2, Kick) is None


def test_who_knows_other_masters_is_not_counted_after_its_connection_ended() -> None:
    stage = Stage()
    tell_with_link(stage, 0, "bert", "anna", masters=2)
    stage.close(0)
    tell_with_link(stage, 1, "anna", "bert", masters=2)
    assert stage.last(1, Resumed) is None


def test_who_is_cut_off_and_has_no_link_left_is_lost_if_it_stays_away() -> None:
    stage = Stage()
    stage.say(0, resume("bert", global_size=2, secret="of bert"), Recall(ring=("anna", "bert")), Recall(last=True))
    stage.close(0)
    tell_with_link(stage, 1, "anna", "bert")
    stage.wait(LIMITS.reunion_s - 1.0)
    assert list(stage.master.roster.accepted) == ["anna", "bert"]
    stage.wait(1.1)
    assert list(stage.master.roster.accepted) == ["anna"]


def test_a_story_stands_when_its_teller_comes_again_and_is_not_done_yet() -> None:
    """The others may have been waited for long enough at this very moment."""
    stage = Stage()
    tell_with_link(stage, 0, "bert", "anna", story=1)
    stage.close(0)
    stage.say(2, resume("bert", global_size=2, secret="of bert", story=2))
    tell_with_link(stage, 1, "anna", "bert", story=1)
    taken = stage.last(2, Resumed)
    assert isinstance(taken, Resumed)
    assert taken.story == 1
    stage.say(2, Recall(ring=("anna", "bert")), Recall(last=True))
    assert stage.last(2, Kick) is None
    assert list(stage.master.roster.accepted) == ["anna", "bert"]
