"""Several masters, and runs that end and come back: who begins one, and when nobody may."""

import pytest

from pccl.core.absence import BEGIN_AFTER_S, BEGIN_ANYWAY_S, REDIAL_TIMEOUT_S, Absence
from pccl.core.effects import DialMaster, Note
from pccl.core.limits import PeerLimits
from pccl.core.messages import (
    Elsewhere,
    Join,
    Kick,
    Leave,
    LinkReport,
    Recall,
    Rejoined,
    Resumed,
    Topology,
    Welcome,
)
from tests.unit.test_reunion import LIMITS, RING, Stage, resume, taken_back


class Search:
    """A newcomer that knows two masters and looks for a run."""

    def __init__(self) -> None:
        self.absence = Absence(2, PeerLimits(), seed=1)
        self.now = 0.0
        self.said: list[str] = []
        self.connect_s = 0.0
        self.absence.connected(0)
        self.turn_away()

    def turn_away(self) -> None:
        effects = self.absence.turned_away("no run", self.now)
        self.said += [effect.reason for effect in effects if isinstance(effect, Note)]
        self.absence.go_on("no run", self.now, broke_off=False)

    def dial(self) -> DialMaster:
        due = self.absence.next_deadline()
        assert due is not None
        self.now = max(self.now, due)
        dial = self.absence.due(self.now)
        assert dial is not None
        self.now += self.connect_s
        return dial

    def until_it_begins(self, standby_answers: bool) -> float:
        """How long it takes, with a first master that has no run."""
        while True:
            place = self.dial().place
            if place == 0 or standby_answers:
                self.absence.connected(place)
                if self.absence.may_begin(self.now):
                    return self.now
                self.turn_away()
            else:
                self.absence.go_on("connection refused", self.now, broke_off=False)


def test_a_newcomer_begins_a_run_when_all_others_have_none_for_a_while() -> None:
    search = Search()
    assert BEGIN_AFTER_S <= search.until_it_begins(standby_answers=True) < BEGIN_AFTER_S + 2.0
    assert search.said == [], "so it is whenever a run begins"


def test_a_newcomer_waits_longer_for_one_that_does_not_answer() -> None:
    search = Search()
    assert BEGIN_ANYWAY_S <= search.until_it_begins(standby_answers=False) < BEGIN_ANYWAY_S + 2.0
    assert len(search.said) == 1, "and says why"


def test_a_newcomer_that_was_cut_off_from_all_begins_nothing() -> None:
    search = Search()
    while search.now < 2 * BEGIN_ANYWAY_S:
        search.dial()
        search.absence.go_on("no route", search.now, broke_off=False)
    assert search.until_it_begins(standby_answers=False) >= 3 * BEGIN_ANYWAY_S


def test_one_answer_after_a_silence_is_not_enough() -> None:
    """The standby has just been started: those who were in its run are on their way."""
    search = Search()
    while search.now < BEGIN_ANYWAY_S / 2:
        if search.dial().place == 0:
            search.absence.connected(0)
            search.turn_away()
        else:
            search.absence.go_on("connection refused", search.now, broke_off=False)
    begun_at = search.until_it_begins(standby_answers=True)
    assert BEGIN_ANYWAY_S / 2 + BEGIN_AFTER_S <= begun_at < BEGIN_ANYWAY_S


def test_at_the_only_master_it_begins_at_once() -> None:
    absence = Absence(1, PeerLimits(), seed=1)
    absence.connected(0)
    assert absence.may_begin(0.0)


def test_a_master_that_was_about_to_take_us_back_is_asked_once_more() -> None:
    absence = Absence(2, PeerLimits(), seed=1)
    absence.begin("reset", 0.0)
    places = []
    for now in range(1, 6):
        dial = absence.due(float(now))
        assert dial is not None
        places.append(dial.place)
        absence.connected(dial.place)
        absence.go_on("reset", float(now), broke_off=True)
    assert places == [0, 0, 1, 1, 0]


def with_one_peer() -> Stage:
    stage = Stage()
    stage.say(0, Join("anna", 0, "", 1, 0, secret="hers"))
    assert isinstance(stage.last(0, Topology), Topology)
    return stage


def test_newcomers_do_not_take_the_place_of_the_last_one_who_is_cut_off() -> None:
    stage = with_one_peer()
    stage.say(1, Join("bert", 0, "", 2, 0))
    stage.close(0)
    assert stage.last(1, Topology) is None
    assert any("bert" in sentence for sentence in stage.master.explain())
    stage.say(2, resume("anna", run="another", secret="hers", master="another", heard=2))
    assert isinstance(stage.last(2, Rejoined), Rejoined)
    stage.wait(LIMITS.reunion_s)
    assert stage.last(1, Topology) is None, "whoever is back is asked"


def test_newcomers_begin_another_run_if_the_last_one_stays_away() -> None:
    stage = with_one_peer()
    stage.say(1, Join("bert", 0, "", 2, 0))
    stage.close(0)
    stage.wait(LIMITS.reunion_s)
    assert isinstance(stage.last(1, Topology), Topology)
    welcome = stage.last(1, Welcome)
    assert isinstance(welcome, Welcome)
    assert welcome.run != "another"


def test_newcomers_do_not_wait_for_one_who_said_goodbye() -> None:
    stage = with_one_peer()
    stage.say(1, Join("bert", 0, "", 2, 0))
    stage.say(0, Leave())
    assert isinstance(stage.last(1, Topology), Topology)


@pytest.mark.parametrize("masters", [1, 2])
def test_a_run_that_has_just_begun_in_its_place_gives_way_to_one_that_comes_back(masters: int) -> None:
    """However old the master is."""
    stage = with_one_peer()
    stage.master.follows = True
    stage.wait(1000.0)
    stage.close(0)
    stage.say(1, Join("bert", 0, "", 2, 0))
    stage.wait(LIMITS.reunion_s + 1.0)
    assert isinstance(stage.last(1, Topology), Topology)
    stage.come_back(2, "anna", ring=("anna",), global_size=1, run="another", secret="hers", masters=masters)
    assert isinstance(stage.last(1, Kick), Kick)
    assert isinstance(stage.last(2, Resumed), Resumed)


def test_whoever_comes_too_late_to_where_its_run_ended_is_sent_nowhere_else() -> None:
    stage = with_one_peer()
    stage.close(0)
    stage.say(1, Join("bert", 0, "", 2, 0))
    stage.wait(LIMITS.reunion_s + LIMITS.silence_s + 1.0)
    story = {"ring": ("anna",), "global_size": 1, "run": "another", "masters": 2}
    stage.come_back(2, "anna", secret="hers", master="another", **story)
    assert isinstance(stage.last(2, Kick), Kick)
    assert stage.last(2, Elsewhere) is None
    stage.come_back(3, "carl", ring=("carl",), global_size=1, run="another", masters=2, master="the next one")
    assert isinstance(stage.last(3, Elsewhere), Elsewhere), "another master has led it since, and may be back"


def test_too_few_look_elsewhere_before_they_lose_their_place_there() -> None:
    """Though somebody of the others lives, for all that they know."""
    stage = Stage()
    link = LinkReport(3, "dora", True, 1)
    stage.say(0, resume("carl", masters=2), Recall(ring=RING), Recall(links=(link,)), Recall(last=True))
    stage.say(1, Join("newcomer", 0, "", 1, 0, begin=False))
    stage.wait(LIMITS.reunion_s)
    assert isinstance(stage.last(0, Elsewhere), Elsewhere)
    assert isinstance(stage.last(1, Elsewhere), Elsewhere), "a newcomer that waited with them asks the others again"
    assert taken_back(stage) == []


def test_most_of_them_wait_for_those_who_live() -> None:
    stage = Stage()
    link = LinkReport(3, "dora", True, 1)
    for place, peer in enumerate(RING[:3]):
        stage.say(place, resume(peer, masters=2), Recall(ring=RING), Recall(links=(link,)), Recall(last=True))
    stage.wait(LIMITS.reunion_s + 1.0)
    assert all(stage.last(place, Elsewhere) is None for place in range(3))
    stage.wait(LIMITS.silence_s)
    assert taken_back(stage) == [0, 1, 2]


def test_a_newcomer_joins_those_who_are_about_to_begin() -> None:
    stage = Stage(follows=True)
    stage.say(0, Join("anna", 0, "", 1, 0, begin=True))
    stage.say(1, Join("bert", 0, "", 1, 0, begin=False))
    assert isinstance(stage.last(1, Welcome), Welcome)


def test_two_masters_that_go_on_with_the_same_run_count_from_different_numbers() -> None:
    """Each may have led it before."""
    epochs = set()
    for name in ("one", "two"):
        stage = Stage()
        stage.master.name, stage.master.run = name, "therun"
        for place, peer in enumerate(RING):
            stage.come_back(place, peer)
        topology = stage.last(0, Topology)
        assert isinstance(topology, Topology)
        epochs.add(topology.epoch)
    assert len(epochs) == 2


def test_a_straggler_of_a_run_that_is_over_ends_no_other() -> None:
    """It was given up, and the others went on without it until they said goodbye."""
    stage = with_one_peer()
    stage.master.follows = True
    stage.say(0, Leave())
    stage.say(1, Join("carl", 0, "", 2, 0))
    stage.wait(1.0)
    stage.come_back(2, "anna", ring=("anna",), global_size=9, run="another", secret="hers")
    assert isinstance(stage.last(2, Kick), Kick)
    assert stage.last(1, Kick) is None


def test_a_young_run_gives_way_only_to_those_who_can_go_on() -> None:
    stage = Stage()
    stage.say(9, Join("newcomer", 0, "", 2, 0))
    assert isinstance(stage.last(9, Topology), Topology)
    stage.come_back(0, "carl", masters=2)
    stage.wait(LIMITS.reunion_s)
    assert isinstance(stage.last(0, Elsewhere), Elsewhere), "one of four"
    assert stage.last(9, Kick) is None
    for place, peer in enumerate(RING[:3], start=1):
        stage.come_back(place, peer, masters=2)
    stage.wait(LIMITS.reunion_s)
    assert isinstance(stage.last(9, Kick), Kick)
    assert taken_back(stage) == [1, 2, 3]


def test_of_two_runs_that_come_back_that_with_more_peers_goes_on() -> None:
    """A master's machine was lost, newcomers began another run before the others had noticed, and the next master died
    before these had told it all they knew."""
    stage = Stage()
    stage.say(0, resume("anna"), Recall(ring=RING))
    stage.come_back(9, "upstart", ring=("upstart",), global_size=1, run="young")
    assert stage.last(0, Kick) is None, "it is not done yet"
    assert any("several runs" in sentence for sentence in stage.master.explain())
    stage.say(0, Recall(last=True))
    for connection, peer in enumerate(RING[1:], start=1):
        stage.come_back(connection, peer)
    stage.wait(LIMITS.reunion_s)
    assert taken_back(stage) == [0, 1, 2, 3]
    assert isinstance(stage.last(9, Kick), Kick)


def test_a_straggler_of_a_smaller_run_holds_nobody_up() -> None:
    stage = Stage()
    stage.come_back(9, "straggler", ring=("straggler", "other"), global_size=2, run="old")
    for connection, peer in enumerate(RING):
        stage.come_back(connection, peer)
    assert taken_back(stage) == [0, 1, 2, 3]


def test_those_who_wait_for_a_young_run_are_not_disturbed_by_somebody_who_comes_and_goes() -> None:
    stage = Stage()
    stage.say(8, Join("newcomer", 0, "", 2, 0))
    stage.say(9, Join("waits", 0, "", 2, 0))
    stage.say(0, resume("carl", masters=2))
    stage.close(0)
    stage.wait(LIMITS.reunion_s + 1.0)
    assert stage.last(9, Elsewhere) is None
    stage.come_back(1, "dora", masters=2)
    stage.wait(LIMITS.reunion_s)
    assert isinstance(stage.last(1, Elsewhere), Elsewhere)
    assert stage.last(9, Elsewhere) is None


def test_no_run_begins_at_a_standby_with_those_who_waited_for_another_one() -> None:
    stage = Stage()
    stage.come_back(0, "anna", ring=("anna",), global_size=1, masters=2)
    stage.say(1, Join("bert", 0, "", 2, 0, begin=False))
    stage.close(0)
    stage.wait(LIMITS.reunion_s)
    assert isinstance(stage.last(1, Elsewhere), Elsewhere)
    assert stage.last(1, Topology) is None


def test_after_some_were_sent_away_newcomers_look_elsewhere_too() -> None:
    stage = Stage()
    stage.come_back(0, "carl", masters=2)
    stage.wait(LIMITS.reunion_s)
    stage.say(1, Join("bert", 0, "", 2, 0, begin=True))
    assert isinstance(stage.last(1, Elsewhere), Elsewhere)
    stage.wait(LIMITS.silence_s)
    stage.say(2, Join("bert", 0, "", 2, 0, begin=True))
    assert isinstance(stage.last(2, Topology), Topology)


def test_a_newcomer_that_stood_still_asks_again() -> None:
    search = Search()
    assert search.dial().place == 1
    search.absence.connected(1)
    search.turn_away()
    search.now += 2 * BEGIN_ANYWAY_S
    assert search.dial().place == 0
    search.absence.connected(0)
    assert not search.absence.may_begin(search.now)


def test_a_newcomer_that_connects_slowly_begins_nevertheless() -> None:
    search = Search()
    search.connect_s = 1.6
    assert search.until_it_begins(standby_answers=True) < 4 * BEGIN_AFTER_S


def test_whoever_was_taken_back_asks_once_more_the_next_time_too() -> None:
    absence = Absence(2, PeerLimits(), seed=1)
    for now in (0.0, 10.0):
        absence.begin("reset", now)
        assert absence.due(now + 1.0) == DialMaster(0, REDIAL_TIMEOUT_S)
        absence.connected(0)
        absence.go_on("reset", now + 1.0, broke_off=True)
        assert absence.due(now + 2.0) == DialMaster(0, REDIAL_TIMEOUT_S)
        absence.connected(0)
        absence.end()
