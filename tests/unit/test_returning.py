"""A peer without a master: when it dials, what it numbers and keeps, and what it sends again."""

import pytest
from msgspec import structs

from pccl.core.effects.both import Note, Tick
from pccl.core.effects.peer_effects import DialMaster, Failure, FailureKind, PeerEffect, Resolve, SendMaster
from pccl.core.effects.peer_events import (
    ArePeersPending,
    Call,
    CallCollective,
    FromMaster,
    LaneOffered,
    MasterClosed,
    MasterUp,
)
from pccl.core.fields import Identity, LinkSpec
from pccl.core.limits import PeerLimits
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.to_master import Initiate, Resume
from pccl.core.messages.to_peer import PendingAnswer, Resumed, ToPeer, Topology, Welcome, Wire
from pccl.core.peer.masters import Masters
from pccl.core.peer.peer import Peer
from pccl.types import PeerId
from tests.unit.scripted_master import SPEC


def test_dials_end() -> None:
    masters = Masters(PeerLimits(master_timeout_s=10.0), seed=1)
    masters.miss("reset", 0.0)
    now, dials = 0.0, 0
    while not masters.over(now):
        due = masters.next_deadline()
        assert due is not None
        now = max(now, due)
        if masters.due(now) is not None:
            dials += 1
            masters.miss("refused", now)
    assert now == 10.0
    assert 10 < dials < 50, "pauses grow to a second"


def test_a_long_search_is_told_again_with_its_age_and_its_bound() -> None:
    anna = Returning().peer
    notes, now = anna.handle(MasterClosed("reset"), 0.0), 0.0
    while now < 250.0:
        due = anna.next_deadline()
        assert due is not None
        now = max(now, due)
        effects = anna.handle(Tick(), now)
        notes += effects
        if any(isinstance(effect, DialMaster) for effect in effects):
            notes += anna.handle(MasterClosed("refused"), now)
    ages = [note.reason.split(" s now")[0] for note in notes if isinstance(note, Note) and note.event == "master away"]
    assert ages[0] == "the master is away: dialling it for up to 300 s (reset)"
    assert [each.rpartition(" ")[0] for each in ages[1:]] == ["the master is away for"] * 2
    told_at = [int(each.rpartition(" ")[2]) for each in ages[1:]]
    assert 10 <= told_at[0] <= 12
    assert 60 <= told_at[1] <= 62
    assert "s more at most (refused)" in anna.waiting


class Returning:
    """A peer that was accepted, and whose connection has broken."""

    def __init__(self) -> None:
        self.peer = Peer(Identity(PeerId("anna"), 0, "", 1, 0), PeerLimits())
        self.peer.handle(MasterUp(), 0.0)
        for message in (Welcome("therun", 2, "one"), Topology(1, ("anna", "bert"), 2, 1, 2)):
            self.hear(message)

    def hear(self, message: ToPeer) -> list[PeerEffect]:
        return self.peer.handle(FromMaster(message), 0.0)

    def sent(self, effects: list[PeerEffect]) -> list[object]:
        return [effect.message for effect in effects if isinstance(effect, SendMaster)]

    def dial(self) -> Resume:
        due = self.peer.next_deadline()
        assert due is not None
        assert DialMaster in map(type, self.peer.handle(Tick(), due))
        first = self.sent(self.peer.handle(MasterUp(), 0.0))[0]
        assert isinstance(first, Resume)
        return first


def test_a_peer_numbers_its_messages_over_all_its_masters() -> None:
    """Between `Resume` and its answer nothing is sent that is numbered; after it, what this master lacks."""
    anna = Returning()
    anna.peer.handle(Call(1, ArePeersPending()), 0.0)
    anna.peer.handle(MasterClosed("reset"), 0.0)
    for tag in range(2):
        assert anna.sent(anna.peer.handle(Call(2 + tag, CallCollective(tag, SPEC)), 0.0)) == []
    assert anna.dial().sent == 3
    # The same master lacks what was called while it was away.
    again = [each for each in anna.hear(Resumed(2, "one", 1)) if isinstance(each, SendMaster)]
    assert [(each.message, each.again) for each in again] == [(Initiate(tag, SPEC), True) for tag in range(2)]
    anna.peer.handle(MasterClosed("reset"), 0.0)
    report = anna.dial()
    assert (report.master, report.received, report.sent) == ("one", 2, 3)
    # Another one has the report.
    assert anna.sent(anna.hear(Resumed(2, "two", 3))) == []
    anna.hear(PendingAnswer(False, 7))
    anna.peer.handle(MasterClosed("reset"), 0.0)
    report = anna.dial()
    assert (report.master, report.received, report.sent) == ("two", 1, 3)


@pytest.mark.parametrize("received", [2, 2**62])
def test_no_master_has_more_messages_than_were_sent(received: int) -> None:
    anna = Returning()
    anna.peer.handle(Call(1, ArePeersPending()), 0.0)
    anna.peer.handle(MasterClosed("reset"), 0.0)
    anna.dial()
    effects = anna.hear(Resumed(2, "one", received))
    (answer,) = [each.answer for each in effects if isinstance(each, Resolve)]
    assert isinstance(answer, Failure)
    assert answer.kind is FailureKind.PROTOCOL


def test_nothing_is_forgotten_while_there_is_no_master() -> None:
    """However many messages there are: far more than are kept while one is there."""
    anna = Returning()
    anna.hear(Wire(tuple(LinkSpec(number, "bert", False, "h", 1, 1) for number in range(1, 31))))
    anna.peer.handle(MasterClosed("reset"), 0.0)
    for number in range(1, 31):
        hello = LaneHello("therun", "bert", "anna", number, 0)
        anna.peer.handle(LaneOffered(number, hello), 0.0)
        anna.peer.handle(LaneOffered(100 + number, structs.replace(hello, lane=1)), 0.0)
    assert anna.dial().sent == 30
    assert len(anna.sent(anna.hear(Resumed(2, "one", 0)))) == 30
