"""A crowd of parties that are not complete: what it costs the master follows from how many there are, not its square,
and the operator reads a few lines of it."""

import pytest

from pccl.core.effects.both import Note, Tick
from pccl.core.effects.master import MasterEffect, Received, Send
from pccl.core.fields import Identity, KickKind, Party
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.master.ration import LINES_MAX, WINDOW_S
from pccl.core.master.roster import Member
from pccl.core.messages.observers import AskStatus, KickPeer
from pccl.core.messages.to_master import Join
from pccl.core.messages.to_peer import Kick, Waiting
from pccl.core.rights import Rights
from pccl.core.text import NAMES_MAX
from pccl.types import PeerId


class Crowd:
    """A member, and candidates of as many parties, each of which lacks a peer."""

    def __init__(self, halves: int, limits: MasterLimits | None = None) -> None:
        self.master = Master("run", limits or MasterLimits())
        self.effects: list[MasterEffect] = []
        self.now = 0.0
        self._do(Received(1, Join(Identity(PeerId("anna"), 0, "", 1, 1)), "10.0.0.1"))
        assert list(self.master.roster.accepted) == ["anna"]
        for number in range(halves):
            self.join(number)

    def join(self, number: int, host: str = "") -> None:
        party = Party("x", 2, number.to_bytes(32))
        me = Identity(PeerId(f"half{number:04d}"), 0, "", 1, 1, party=party)
        self._do(Received(100 + number, Join(me), host or f"10.1.{number // 50}.1"))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.master.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self._do(Tick())
        self.now = end

    def _do(self, event: Received | Tick) -> None:
        self.effects += self.master.handle(event, self.now)

    @property
    def notes(self) -> list[Note]:
        return [each for each in self.effects if isinstance(each, Note) and each.event == "waits"]


class Counting(str):
    """Counts how often it is looked at."""

    looks = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counting.looks += 1
        return str.__eq__(self, other)

    def __format__(self, spec: str) -> str:
        Counting.looks += 1
        return str.__format__(self, spec)


def looks_at_names(halves: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """In one look of the master at all that wait, and one answer to an observer."""
    crowd = Crowd(halves)
    for each in crowd.master.roster.candidates.values():
        each.party = Party(Counting(each.party.name), each.party.size, each.party.key)
    monkeypatch.setattr(Counting, "looks", 0)
    crowd.pass_time(3.0)
    crowd.master.handle(Received(9999, AskStatus(), "10.9.9.9"), crowd.now)
    return Counting.looks


def test_a_crowd_of_half_parties_costs_no_more_than_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = looks_at_names(100, monkeypatch), looks_at_names(400, monkeypatch)
    assert 0 < many <= 4 * few


def test_the_operator_reads_a_few_lines_of_them() -> None:
    crowd = Crowd(300)
    crowd.pass_time(WINDOW_S - 1)
    assert 1 <= len(crowd.notes) <= LINES_MAX
    assert len(crowd.master.explain()) <= NAMES_MAX + 2
    assert f"of {300 - NAMES_MAX} more parties" in " ".join(crowd.master.explain())
    crowd.pass_time(2 * WINDOW_S)
    crowd.join(301)
    crowd.pass_time(WINDOW_S)
    assert any("more of those that wait outside that were not told" in each.reason for each in crowd.notes)


def test_each_of_them_reads_what_it_waits_for() -> None:
    crowd = Crowd(3 * NAMES_MAX)
    crowd.pass_time(30.0)
    told = [each for each in crowd.effects if isinstance(each, Send) and isinstance(each.message, Waiting)]
    read = {connection: each.message.reason for each in told for connection in each.connections}
    assert set(read) == set(range(100, 100 + 3 * NAMES_MAX))
    assert "half0000 waits for 1 more rank of party x" in read[100]
    assert "wait for the rest of their parties" in read[100 + 3 * NAMES_MAX - 1]


def test_they_are_candidates_like_others() -> None:
    """They have no places beside those of candidates, in all and from one address."""
    crowd = Crowd(0, MasterLimits(candidates_max=40, address_candidates_max=8))
    for number in range(20):
        crowd.join(number, "203.0.113.9")
    assert len(crowd.master.roster.candidates) == 8
    for number in range(100, 200):
        crowd.join(number, f"10.7.{number}.1")
    assert len(crowd.master.roster.candidates) == 40
    kicks = [each.message for each in crowd.effects if isinstance(each, Send) and isinstance(each.message, Kick)]
    assert {each.kind for each in kicks} == {KickKind.FULL}


def test_parties_of_one_name_are_called_by_numbers_without_trying_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def tries(parties: int) -> int:
        roster = Master("run", MasterLimits()).roster
        members = []
        for number in range(parties):
            party = Party(Counting("x"), 2, number.to_bytes(32))
            me = Identity(PeerId(f"half{number:04d}"), number, "", 1, 1, party=party)
            members.append(Member(Join(me), number, "", 0.0))
            roster.add_candidate(members[-1])
        monkeypatch.setattr(Counting, "looks", 0)
        roster.accept([each.peer for each in members], {each.group: (each.peer,) for each in members})
        assert [each.party_called for each in members[:3]] == ["x", "x #2", "x #3"]
        return Counting.looks

    assert tries(400) <= 4 * tries(100) + 100


def test_who_asks_to_kick_without_the_right_is_a_few_lines() -> None:
    crowd = Crowd(0)
    lines = []
    for number in range(100):
        asked = Received(500 + number, KickPeer("anna", ""), "203.0.113.9", rights=Rights.JOIN)
        lines += [each for each in crowd.master.handle(asked, 1.0) if isinstance(each, Note)]
    assert 1 <= len(lines) <= LINES_MAX
