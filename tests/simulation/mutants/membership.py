"""Rules of membership, links and liveness, broken."""

from typing import Any
from unittest.mock import PropertyMock, patch

from msgspec import structs

from pccl.core.master.admission import Admission
from pccl.core.master.candidates import Candidates
from pccl.core.master.link import LinkStage
from pccl.core.master.links import Links
from pccl.core.master.liveness import Liveness
from pccl.core.master.operators import Operators
from pccl.core.peer.links import LinkEnd
from pccl.core.rights import Rights
from pccl.core.rules.ballot import Ballot
from tests.simulation.mutants.mutant import Mutant, around


def _majority(self: Any) -> bool:
    return len(self.votes) * 2 > len(self._electorate())


def _advance_anyway(self: Any, now: float) -> Any:
    with patch.object(self.links, "stands", lambda group: True):
        return _ADVANCE(self, now)


def _fail_if_answered(self: Any, link: Any, cause: str, now: float) -> None:
    answered = [self._roster.member(peer).pulse.answered_at for peer in link.ends]
    if link.stage is LinkStage.DIALLING and min(answered) <= link.changed_at:
        self._retire_number(link)
        link.number, link.up = 0, []
        self._become(link, LinkStage.RESTING, now, self._limits.redial_s)
    else:
        _FAIL(self, link, cause, now)


def _fail_unless_it_stood(self: Any, link: Any, cause: str, now: float) -> None:
    if link.stage is LinkStage.STANDING:
        link.failures, link.causes = 0, {}
        self._dial(link, now)
    else:
        _FAIL(self, link, cause, now)


_ADVANCE = Admission.advance
_FAIL = Links._fail


def _kick_for_anybody(self: Any, event: Any, ask: Any, now: float) -> None:
    _KICK(self, structs.replace(event, rights=Rights.ALL), ask, now)


def _settle_any(self: Any, tried: Any) -> list[Any]:
    _SETTLE(self, tried)
    return []


_KICK, _SETTLE = Operators.kick, Candidates.settle_lanes

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "blame the younger": (
        Mutant(
            "one with more trouble is at fault",
            Links,
            "suspect",
            lambda self, ends: self._roster.younger(ends).peer,
            first=300,
        ),
    ),
    "link peers that seal their lanes in different ways": (
        Mutant("they are refused when they join", Candidates, "other_lanes", lambda self, me: None),
        Mutant("or when a run begins with them", Candidates, "settle_lanes", _settle_any),
    ),
    "kick for anybody": (Mutant("operators have a right", Operators, "kick", _kick_for_anybody),),
    "wait for a vote for ever": (Mutant("there may be a limit", Liveness, "voteless", lambda self, waits, now: []),),
    "commit without all votes": (Mutant("a majority is enough", Ballot, "complete", property(_majority)),),
    "keep the vote of the dead": (Mutant("a ballot forgets who is gone", Ballot, "forget", lambda self, voter: None),),
    "admit before lanes stand": (Mutant("the ring is tried first", Admission, "advance", _advance_anyway),),
    "report a link too early": (Mutant("all lanes stand", LinkEnd, "complete", PropertyMock(return_value=True)),),
    "ignore answers to pings": (
        Mutant(
            "a busy peer is not silent",
            Liveness,
            "_silence",
            lambda self, member, now: now - self._waited_since[member.peer],
        ),
    ),
    "count only what was answered before": (
        Mutant("a dial that fails at once has failed", Links, "_fail", _fail_if_answered),
    ),
    "forgive a link that stood": (
        Mutant("a candidate's link that breaks has failed", Links, "_fail", _fail_unless_it_stood),
    ),
    "try one place only": (
        Mutant(
            "a candidate may do well elsewhere in the ring",
            Admission,
            "_judge_trial",
            around(Admission._judge_trial, "_go_around", lambda *_: False),
        ),
    ),
    "never kick": (Mutant("a silent peer is kicked", Liveness, "watch", lambda self, waited_for, now: []),),
}
