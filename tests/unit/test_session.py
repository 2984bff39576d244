"""Connections to a master that break, and what is said again: by count alone, and by a master that is still there."""

import pytest

from pccl.core.effects.both import Note, Tick
from pccl.core.effects.master import Close, Closed, MasterEffect, Received, Send
from pccl.core.fields import Identity
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.report import ReportPart
from pccl.core.messages.to_master import AskPending, Join, Leave, LinkDown, LinkUp, ToMaster, VoteTopology
from pccl.core.messages.to_peer import Kick, PendingAnswer, Resumed, ToPeer, Topology, Wire
from pccl.core.session import KEPT_MAX, Session
from tests.unit.scripted_master import resume

LIMITS = MasterLimits(silence_s=60.0, reunion_s=5.0)
SECRET = "of bert"


def test_what_was_not_received_is_sent_again_in_order() -> None:
    here, there = Session[ToMaster](), Session[ToPeer]()
    sent_here: list[ToMaster] = [VoteTopology(), Ping(), AskPending(), LinkUp(7)]
    for message in sent_here:
        here.log(message)
    for message in sent_here[:2]:
        there.receive(message)
    assert here.lacking(there.received) == (AskPending(), LinkUp(7))
    assert here.lacking(3) == ()


@pytest.mark.parametrize("received", [-1, 2, 2**63 - 1])
def test_no_end_can_have_received_more_than_was_sent(received: int) -> None:
    session = Session[ToMaster]()
    session.log(VoteTopology())
    assert session.lacking(received) is None


def test_what_is_not_kept_cannot_be_sent_again() -> None:
    session = Session[ToMaster]()
    for link in range(KEPT_MAX + 1):
        session.log(LinkUp(link))
    assert session.lacking(0) is None
    kept = session.lacking(1)
    assert kept is not None
    assert kept[0] == LinkUp(1)


class Pair:
    """A master with anna on connection 1 and bert on connection 2, linked."""

    def __init__(self) -> None:
        self.master = Master("master-1", LIMITS)
        self.now = 1.0
        self.send(1, Join(Identity("anna", 0, "h", 1, 1, secret="of anna")))
        self.send(2, Join(Identity("bert", 0, "h", 2, 1, secret=SECRET)))
        self.send(1, VoteTopology())
        for connection in (1, 2):
            self.send(connection, LinkUp(1))
        assert len(self.master.roster.accepted) == 2

    def send(self, connection: int, message: ToMaster) -> list[MasterEffect]:
        return self.master.handle(Received(connection, message, "h"), self.now)

    def break_off(self, connection: int) -> list[MasterEffect]:
        return self.master.handle(Closed(connection, "reset"), self.now)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.master.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.master.handle(Tick(), self.now)
        self.now = end

    @property
    def here(self) -> list[str]:
        return list(self.master.roster.accepted)

    def come_back(self, connection: int, **facts: object) -> list[MasterEffect]:
        # Welcome, Wire, Topology: bert has received all of it, and reported that its link stands.
        report: dict[str, object] = {"secret": SECRET, "master": "master-1", "received": 3, "run": "master-1", **facts}
        return self.send(connection, resume("bert", **report))


def sent(effects: list[MasterEffect], connection: int) -> list[ToPeer]:
    return [each.message for each in effects if isinstance(each, Send) and connection in each.connections]


def test_who_comes_back_in_time_has_its_place() -> None:
    pair = Pair()
    pair.break_off(2)
    assert pair.here == ["anna", "bert"]
    pair.send(1, AskPending())
    pair.wait(3.0)
    effects = pair.come_back(3)
    assert sent(effects, 3)[:1] == [Resumed(4096, "master-1", 1)]
    for recall in (ReportPart(ring=("anna", "bert")), ReportPart(last=True)):
        pair.send(3, recall)
    # Its vote completes the ballot that anna opened meanwhile: nothing was lost, and nothing was said for nothing.
    effects = pair.send(3, AskPending())
    assert [type(message) for message in sent(effects, 3)] == [PendingAnswer]
    assert pair.here == ["anna", "bert"]


def test_what_it_lacks_is_sent_again() -> None:
    pair = Pair()
    pair.break_off(2)
    told = sent(pair.come_back(3, received=1), 3)
    assert [type(message) for message in told] == [Resumed, Wire, Topology]


def test_who_takes_its_lanes_with_it_is_gone_at_once() -> None:
    pair = Pair()
    pair.break_off(2)
    pair.send(1, LinkDown(1, "closed"))
    assert pair.here == ["anna"]
    assert isinstance(sent(pair.come_back(3), 3)[0], Kick)


def test_a_link_that_broke_first_counts_too() -> None:
    pair = Pair()
    pair.send(1, LinkDown(1, "closed"))
    pair.break_off(2)
    assert pair.here == ["anna"]


def test_who_had_no_link_left_itself_may_come_back() -> None:
    """Its neighbours were lost a moment before: there is nobody who could tell that it lives."""
    pair = Pair()
    pair.send(2, LinkDown(1, "closed"))
    pair.break_off(2)
    pair.wait(LIMITS.reunion_s - 1.0)
    assert pair.here == ["anna", "bert"]
    pair.wait(1.1)
    assert pair.here == ["anna"]


def test_a_master_that_stood_still_hears_those_first_who_came_back_meanwhile() -> None:
    """What they said is unread when it wakes up, just after their time was over."""
    pair = Pair()
    pair.send(2, Leave())
    pair.send(2, Join(Identity("bert", 1, "h", 2, 1, secret=SECRET)))
    pair.send(1, VoteTopology())
    assert pair.here == ["anna", "bert"]
    pair.wait(10.0)
    pair.break_off(2)
    pair.now += LIMITS.reunion_s + 0.2
    pair.send(1, Ping())
    assert isinstance(sent(pair.come_back(3, group=1, received=2), 3)[0], Resumed)


def test_whoever_finds_it_gone_then_ends_the_wait() -> None:
    pair = Pair()
    pair.send(2, LinkDown(1, "closed"))
    pair.break_off(2)
    pair.send(1, LinkDown(2, "refused"))
    assert pair.here == ["anna"]


def test_newcomers_wait_even_if_the_last_one_was_found_gone() -> None:
    """Perhaps it was only the network between the two, and what they have learnt would be lost."""
    pair = Pair()
    pair.send(3, Join(Identity("carl", 0, "h", 3, 1)))
    pair.send(1, LinkDown(1, "closed"))
    pair.send(2, LinkDown(2, "closed"))
    pair.break_off(1)
    pair.break_off(2)
    assert pair.here == []
    pair.wait(LIMITS.reunion_s - 1.0)
    assert pair.here == []
    pair.wait(1.1)
    assert pair.here == ["carl"]


def test_who_answers_was_not_gone() -> None:
    pair = Pair()
    pair.send(2, Pong())
    pair.now = 2.0
    pair.send(1, LinkDown(1, "closed"))
    pair.send(2, Pong())
    pair.break_off(2)
    assert pair.here == ["anna", "bert"]


def test_who_came_back_was_not_gone() -> None:
    pair = Pair()
    pair.send(1, LinkDown(1, "closed"))
    pair.come_back(3)
    pair.break_off(3)
    assert pair.here == ["anna", "bert"]


def test_who_does_not_come_back_is_given_up_like_one_who_is_silent() -> None:
    pair = Pair()
    pair.break_off(2)
    pair.wait(LIMITS.silence_s - 1.0)
    assert pair.here == ["anna", "bert"]
    pair.wait(2.0)
    assert pair.here == ["anna"]


def test_if_all_are_away_most_likely_all_are_dead() -> None:
    pair = Pair()
    pair.break_off(1)
    pair.break_off(2)
    assert pair.here == ["anna", "bert"]
    pair.wait(LIMITS.reunion_s + 0.1)
    assert pair.here == []


def test_a_connection_that_broke_for_the_peer_alone_is_replaced() -> None:
    pair = Pair()
    effects = pair.come_back(3)
    assert sent(effects, 3)[:1] == [Resumed(4096, "master-1", 1)]
    assert isinstance(sent(effects, 2)[-1], Kick)
    assert Close(2) in effects
    assert pair.master.handle(Closed(2, "reset"), pair.now) == []
    assert pair.here == ["anna", "bert"]


@pytest.mark.parametrize(
    "facts", [{"secret": "a guess"}, {"secret": ""}, {"master": "another"}], ids=["guessed", "empty", "another master"]
)
def test_without_the_secret_nobody_gets_its_place(facts: dict[str, object]) -> None:
    pair = Pair()
    effects = pair.come_back(3, **facts)
    assert [type(message) for message in sent(effects, 3)] == [Kick]
    assert pair.master.roster.find(2) is not None
    pair.send(2, Pong())
    assert pair.here == ["anna", "bert"]


def test_who_lacks_more_than_is_kept_is_lost() -> None:
    pair = Pair()
    pair.break_off(2)
    effects = pair.come_back(3, received=4)
    assert isinstance(sent(effects, 3)[-1], Kick)
    assert pair.here == ["anna"]


def test_a_peer_that_never_received_that_it_was_accepted_joins_anew() -> None:
    pair = Pair()
    pair.break_off(2)
    pair.send(3, Join(Identity("bert", 0, "h", 2, 1, secret=SECRET)))
    assert pair.here == ["anna"]
    assert list(pair.master.roster.candidates) == ["bert"]


def test_a_report_is_sent_once() -> None:
    """What follows a `Resume` that was answered is ignored up to its end, and no further."""
    pair = Pair()
    pair.come_back(3)
    pair.send(3, ReportPart(last=True))
    pair.send(3, ReportPart(last=True))
    assert pair.here == ["anna"]


def notes(effects: list[MasterEffect]) -> list[str]:
    return [each.reason for each in effects if isinstance(each, Note)]


def test_one_death_is_one_line() -> None:
    pair = Pair()
    said = notes(pair.break_off(2))
    pair.now += 0.01
    said += notes(pair.send(1, LinkDown(1, "closed")))
    (line,) = said
    assert "bert is gone: its connection closed (reset); 1 peer" in line


def test_a_peer_that_is_away_for_long_is_told_of_with_its_time() -> None:
    pair = Pair()
    assert notes(pair.break_off(2)) == []
    pair.now += 1.0
    assert notes(pair.master.handle(Tick(), pair.now)) == ["bert is away for up to 60 s: its connection closed (reset)"]
    pair.now += 0.5
    (line,) = notes(pair.come_back(3))
    assert line == "bert is back after 1.5 s (reset), and lacked 0 messages"


def test_candidates_that_wait_for_an_earlier_run_read_for_how_long() -> None:
    pair = Pair()
    pair.send(1, LinkDown(1, "closed"))
    pair.send(2, LinkDown(2, "closed"))
    pair.break_off(1)
    pair.break_off(2)
    pair.send(3, Join(Identity("carl", 0, "h", 3, 1)))
    wait = f"candidates carl wait up to {LIMITS.reunion_s:.0f} s: peers of an earlier run may come back first"
    assert pair.master.explain() == (wait,)
