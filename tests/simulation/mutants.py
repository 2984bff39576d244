"""Breaks rules of the core on purpose: `python -m tests.simulation.mutants` tells which checker noticed, and when."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from inspect import Parameter, getattr_static, signature
from math import inf
from typing import Any
from unittest.mock import PropertyMock, patch

from msgspec import Struct

from pccl.core.effects.peer_effects import Committed, Failure, FailureKind, SendMaster
from pccl.core.master.admission import Admission
from pccl.core.master.arrivals import Arrivals
from pccl.core.master.collectives import Collectives
from pccl.core.master.link import LinkStage
from pccl.core.master.links import Links
from pccl.core.master.liveness import Liveness
from pccl.core.master.master import Master
from pccl.core.master.observers import Observers
from pccl.core.master.pulse import Pulse
from pccl.core.master.recovery import restore as restoring
from pccl.core.master.recovery.away import Away
from pccl.core.master.recovery.census import Census
from pccl.core.master.recovery.gathering import Gathering
from pccl.core.master.refusals import Refusals
from pccl.core.master.roster import Roster
from pccl.core.master.sync import Syncs
from pccl.core.master.visits import Visits
from pccl.core.messages.report import TransferReport
from pccl.core.messages.to_peer import RefusedSync, Resumed
from pccl.core.names import Names
from pccl.core.peer import collectives as runs
from pccl.core.peer.calls import Calls
from pccl.core.peer.links import LinkEnd
from pccl.core.peer.links import Links as PeerLinks
from pccl.core.peer.masters import Masters
from pccl.core.peer.report import Answers
from pccl.core.peer.stages import PeerStage
from pccl.core.peer.sync import Sync
from pccl.core.peer.visits import Visits as PeerVisits
from pccl.core.rules import election
from pccl.core.rules.ballot import Ballot
from pccl.core.session import Session
from pccl.core.text import Violation as ProtocolViolation
from tests.simulation import aimed
from tests.simulation.checkers import NAMES
from tests.simulation.runner import Verdict, play

SEEDS_MAX = 300
"""A mutant that lives through this many seeds shows a hole in the checkers."""


class Mutant(Struct, frozen=True):
    """A rule and how to break it."""

    rule: str
    owner: Any
    name: str
    broken: Any
    first: int = 0
    """The seed to begin with: some rules matter only in one play of hundreds."""
    aimed: str = ""
    """Aimed schedules of this family are played instead of seeds: no seed in hundreds has the luck."""

    def patch(self) -> Any:
        """The rule, broken. A method that is replaced by one with other parameters would be noticed by its own
        exception, and show nothing about the checkers."""
        rule = getattr_static(self.owner, self.name)
        if callable(rule) and not isinstance(rule, type):
            parameters, broken = (list(signature(each).parameters.values()) for each in (rule, self.broken))
            any_number = any(each.kind is Parameter.VAR_POSITIONAL for each in broken)
            alike = [_shape(each) for each in parameters] == [_shape(each) for each in broken]
            assert any_number or alike, f"{self.rule}: {self.name} takes {[each.name for each in parameters]}"
        return patch.object(self.owner, self.name, self.broken)


def _shape(parameter: Parameter) -> tuple[str, bool]:
    return parameter.name, parameter.default is Parameter.empty


# The broken methods take `self` and whatever else; types would only repeat those of the methods they replace.
def _around(method: Callable[..., Any], name: str, replacement: Any) -> Callable[..., Any]:
    """The method, with an attribute of its object replaced while it runs."""

    def broken(self: Any, *arguments: Any) -> Any:
        with patch.object(self, name, replacement):
            return method(self, *arguments)

    return broken


def _suspend_for_nobody(self: Any, now: float, until: float = inf) -> None:
    _SUSPEND(self, now, until if until == inf else now)


def _majority(self: Any) -> bool:
    return len(self.votes) * 2 > len(self._electorate())


def _advance_anyway(self: Any, now: float) -> Any:
    with patch.object(self.links, "stands", lambda group: True):
        return _ADVANCE(self, now)


def _start_anyway(self: Any, group: int, now: float) -> None:
    with patch.object(self._links, "stands", lambda group: True):
        _START(self, group, now)


def _report_done(self: Any, member: Any, tag: int, attempt: int, cause: str | None, now: float) -> None:
    _REPORT(self, member, tag, attempt, None, now)


def _lend_again(self: Any, peer: Any, lanes: Any, attempt: int) -> Any:
    with patch.object(self, "_lent", {}):
        lent = _LEND(self, peer, lanes, attempt)
    self._lent.update(dict.fromkeys(lent or (), attempt))
    return lent


def _all_lanes(self: Any, group: int) -> tuple[int, ...]:
    return tuple(range(self._roster.lanes[group]))


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


def _report_without_cause(self: Any, member: Any, attempt: int, cause: str) -> None:
    _REPORT_SYNC(self, member, attempt, "")


def _popular_only(eligible: Any) -> Any:
    states = [claim.state for claim in eligible.values()]
    return max(eligible.values(), key=lambda claim: states.count(claim.state))


def _wait_for_nobody(self: Any, sync: Any) -> None:
    _START_SYNC(self, sync)
    sync.unreported.clear()


def _unsay(self: Any, call: int) -> None:
    _ABANDON(self, call)
    self._open = {name: waiting for name, waiting in self._open.items() if waiting is not None}


def _forget_sync(self: Any, call: int) -> None:
    if self._call == call:
        self._answer(Failure(FailureKind.USAGE, "interrupted"))


def _open_whatever(self: Any, member: Any, tag: int) -> Any:
    collective = self._collectives.get(member.group, {}).get(tag)
    return collective if collective is not None and member.peer in collective.ballot.votes else None


def _vote_at_once(self: Any, call: int, request: Any) -> None:
    self._request = None
    _BEGIN_SYNC(self, call, request)


# ── recovery ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _believe_the_last(self: Any, other: Any, resume: Any, connection: int, now: float) -> bool:
    stands = _RECONNECT(self, other, resume, connection, now)
    if stands:
        other.session.received = resume.sent
    return bool(stands)


def _forget_where_from(self: Any, resume: Any, connection: int, now: float) -> bool:
    member = self._roster.accepted.get(resume.me.peer)
    if member is not None:
        member.came_from = None
    return bool(_TAKE_BACK(self, resume, connection, now))


def _keep_three(self: Any, message: Any, kept_max: float = 3) -> None:
    _LOG(self, message, 3)


def _keep_one_while_away(self: Any, message: Any, kept_max: float = 1) -> None:
    _LOG(self, message, 1 if kept_max == inf else kept_max)


def _refuse_a_refusal(self: Any, message: Any) -> None:
    if self._running and isinstance(message, RefusedSync):
        raise ProtocolViolation("RefusedSync answers no call of ours")
    _DISPATCH_SYNC(self, message)


def _settle_what_rests(restored: Any, group: int, reports: Any) -> None:
    resting = [each for each in reports if each.resume.sync.transfer is not TransferReport.RUNNING]
    _SETTLE_SYNC(restored, group, resting)


def _restore_without_number(self: Any, restored: Any) -> None:
    _RESTORE_SYNCS(self, restored)
    self._first = 0


def _follow_from_zero(self: Any, master: str) -> None:
    _FOLLOW(self, master)
    self.sent = 0
    self._latest.clear()


def _follow_and_count_on(self: Any, master: str) -> None:
    self.master = master


def _send_while_returning(self: Any, effects: Any, stage: Any, tags_max: int) -> Any:
    return _PASS_ON(self, effects, PeerStage.ACCEPTED if stage is PeerStage.RETURNING else stage, tags_max)


def _log_nothing_while_away(self: Any, effects: Any, stage: Any, tags_max: int) -> Any:
    if stage is PeerStage.AWAY:
        return [effect for effect in effects if not isinstance(effect, SendMaster)]
    return _PASS_ON(self, effects, stage, tags_max)


def _log_repeats(self: Any, effects: Any, stage: Any, tags_max: int) -> Any:
    for effect in effects:
        if isinstance(effect, SendMaster) and effect.again:
            self.session.log(effect.message)
    return _PASS_ON(self, effects, stage, tags_max)


def _have_nothing(self: Any, member: Any) -> Resumed:
    return Resumed(self._limits.tags_max, self._lead.name, 0)


_RECONNECT, _TAKE_BACK, _LOG, _FOLLOW = Gathering.reconnect, Away.take_back, Session.log, Session.follow
_DISPATCH_SYNC, _SETTLE_SYNC, _PASS_ON = Sync.dispatch, restoring._settle_sync, Masters.pass_on
_RESTORE_SYNCS = Syncs.restore
_ABANDON = Calls.abandon
_BEGIN_SYNC = Sync.begin
_REPORT_SYNC, _START_SYNC = Syncs.report, Syncs._start
_ADVANCE, _START, _REPORT, _LEND = Admission.advance, Collectives._advance, Collectives.report, PeerLinks.lend
_SUSPEND = Admission.suspend
_FAIL = Links._fail


_answer = Observers.answer


def _count_observers(self: Any, event: Any, now: float) -> Any:
    self._roster.epoch += 1
    return _answer(self, event, now)


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "commit without all votes": (Mutant("a majority is enough", Ballot, "complete", property(_majority)),),
    "keep the vote of the dead": (Mutant("a ballot forgets who is gone", Ballot, "forget", lambda self, voter: None),),
    "no recount on a death": (
        Mutant("ballots are counted again", Collectives, "lose", _around(Collectives.lose, "_count", lambda *_: None)),
    ),
    "admit before lanes stand": (Mutant("the ring is tried first", Admission, "advance", _advance_anyway),),
    "answer before the rewiring": (Mutant("callers wait for the ring", Collectives, "_advance", _start_anyway),),
    "commit a failure": (Mutant("one failure aborts", Collectives, "report", _report_done),),
    "lend a lane twice": (
        Mutant("the master gives each collective its own lanes", Collectives, "_free_lanes", _all_lanes),
        Mutant("a peer lends a lane once", PeerLinks, "lend", _lend_again),
    ),
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
            _around(Admission._judge_trial, "_go_around", lambda *_: False),
        ),
    ),
    "in step before the transfer": (
        Mutant("all are in step when the last transfer is over", Syncs, "_start", _wait_for_nobody),
    ),
    "count the votes of the lost in a sync": (
        Mutant("a sync forgets who is gone", Syncs, "lose", lambda self, gone: None),
    ),
    "forgive a puller that failed": (
        Mutant("who did not get it makes all call again", Syncs, "report", _report_without_cause),
    ),
    "elect the most popular revision": (Mutant("the highest wins", election, "_most_popular", _popular_only),),
    "elect from strategies that do not go together": (
        Mutant("enforce what is popular at all or at none", election, "_mixed", lambda claims: ""),
    ),
    "elect who only receives": (
        Mutant("a mixture is offered to nobody", election, "_eligible", lambda claims: dict(claims), first=300),
    ),
    "let anybody serve visitors": (
        Mutant("holders are those who were in step", Visits, "_holders", lambda self, group: self._roster.ring(group)),
    ),
    "serve beyond the end": (Mutant("who is out serves nobody", PeerVisits, "lose", lambda self, loss: None),),
    "take visitors for candidates": (
        Mutant("visitors stay outside", Roster, "add_visitor", lambda self, member: self.add_candidate(member, 1)),
    ),
    "never kick": (Mutant("a silent peer is kicked", Liveness, "watch", lambda self, waited_for, now: []),),
    "ignore that time is over": (
        Mutant("a vote can be taken back", Master, "_withdraw", lambda self, member, tags, now: None),
    ),
    "take a vote back after the start": (Mutant("what has started goes on", Collectives, "open_vote", _open_whatever),),
    "leave contradictions alone": (
        Mutant("calls that cannot complete fail", Refusals, "advance", lambda self, now: False),
    ),
    "forget the open calls": (Mutant("every call is answered", Calls, "lose", lambda self, loss: self._open.clear()),),
    "vote again after an interrupt": (Mutant("the vote of an interrupted call stands", Calls, "abandon", _unsay),),
    "vote again in an interrupted sync": (
        Mutant("the next one takes over its vote, or waits for its end", Sync, "begin", _vote_at_once),
    ),
    "hear no more of an interrupted sync": (Mutant("it goes on without its caller", Sync, "abandon", _forget_sync),),
    "go on with whoever is first": (Mutant("everybody gets the time to come back", Census, "whole", True),),
    "count from one again": (
        Mutant("numbers start beyond all that were given", restoring, "beyond", lambda highest, apart, salt: 1),
    ),
    "commit what some never heard of": (
        Mutant("an attempt that some failed at is aborted", restoring, "_why_aborted", lambda *_: ""),
    ),
    "forget the answers": (
        Mutant("an answer holds for all", Answers, "note", lambda self, message, outcomes_max: None),
    ),
    "forget the votes": (Mutant("votes count as cast", restoring, "_settle_ballots", lambda *_: None),),
    "gather beside a roster": (
        Mutant("a peer that is not on the roster is out", Arrivals, "_why_not_resume", lambda self, resume, now: None),
    ),
    "begin beside a run that comes back": (
        Mutant("newcomers wait meanwhile", Admission, "suspend", lambda self, now, until=inf: None),
    ),
    "send between report and answer": (
        Mutant("nothing numbered is sent then", Masters, "pass_on", _send_while_returning),
    ),
    "log nothing without a connection": (Mutant("all is logged", Masters, "pass_on", _log_nothing_while_away),),
    "log what is sent again": (Mutant("a message has one number", Masters, "pass_on", _log_repeats),),
    "count from zero with every master": (Mutant("a peer counts on", Session, "follow", _follow_from_zero),),
    "count on what the last master sent": (
        Mutant("each master counts from zero", Session, "follow", _follow_and_count_on),
    ),
    "have nothing of anybody": (Mutant("a master knows what it has", Away, "resumed", _have_nothing),),
    "keep three messages": (Mutant("all that may be lacking is kept", Session, "log", _keep_three, first=100),),
    "keep one message while away": (
        Mutant("nothing is forgotten then", Session, "log", _keep_one_while_away, aimed="silent"),
    ),
    "believe the last report's number": (
        Mutant("the report that is used counts", Gathering, "reconnect", _believe_the_last, aimed="correct"),
    ),
    "forget where a peer came from": (
        Mutant("a peer may not know that it is back", Away, "take_back", _forget_where_from, aimed="again"),
    ),
    "believe what arrives late": (
        Mutant("the newest connection counts", Arrivals, "_outdated", lambda self, first: False, aimed="late"),
    ),
    "believe what arrives late, by seeds": (
        Mutant("the newest connection counts", Arrivals, "_outdated", lambda self, first: False),
    ),
    "blame the late end of a transfer": (
        Mutant("an earlier master's is ignored", Syncs, "restore", _restore_without_number, aimed="transfer"),
    ),
    "blame the refusal of a transfer": (
        Mutant("a transfer may be refused while it runs", Sync, "dispatch", _refuse_a_refusal, aimed="transfer"),
    ),
    "leave a transfer alone": (
        Mutant("one that runs is refused", restoring, "_settle_sync", _settle_what_rests, aimed="transfer"),
    ),
    "wait for nobody whom nobody can see": (
        Mutant("nobody found it gone", Pulse, "suspected", True),
        Mutant("nor is its place taken", Admission, "suspend", _suspend_for_nobody),
    ),
    "send nothing again": (
        Mutant("a peer that comes back receives what it lacks", Session, "lacking", lambda self, received: ()),
    ),
    "send all of it again": (
        Mutant("nothing is sent twice", Session, "lacking", lambda self, received: tuple(self._latest)),
    ),
    "wait for nobody who is away": (
        Mutant("whose links stand is not dead", Away, "_linked_members", lambda self, peer: []),
        Mutant("nor is one whom nobody found gone", Pulse, "suspected", True),
    ),
    "wait for the dead": (
        Mutant("who has no link left is dead", Away, "_deadline", lambda self, away: away.since + 1e6),
    ),
    "look for a master for ever": (Mutant("calls end when none comes", Masters, "over", lambda self, now: False),),
    "each its own candidates": (Mutant("one for all", runs, "Committed", lambda *a: Committed(*a[:4], id(a) % 3 > 0)),),
    "count observers": (Mutant("an observer changes nothing", Observers, "answer", _count_observers),),
    "call nobody by its name": (Mutant("sentences have names", Names, "spell", lambda self, sentence: sentence),),
    "say nothing": (Mutant("every wait has words", Master, "explain", lambda self: ()),),
}


def hunt(name: str, plays_max: int = SEEDS_MAX) -> tuple[int, Verdict | None]:
    """Play seeds or aimed schedules with a broken core until a checker notices; how many it took. What a core or a
    mutant raises itself does not count."""
    with ExitStack() as stack:
        for mutant in MUTANTS[name]:
            stack.enter_context(mutant.patch())
        for plays, verdict in enumerate(_plays(MUTANTS[name][0], plays_max), start=1):
            if verdict.checker in NAMES:
                return plays, verdict
    return plays_max, None


def _plays(mutant: Mutant, plays_max: int) -> Iterator[Verdict]:
    if mutant.aimed:
        return map(aimed.play, aimed.sample(plays_max, 0, (mutant.aimed,)))
    return map(play, range(mutant.first, mutant.first + plays_max))


def main() -> int:
    """Hunt all mutants and print a table."""
    alive = 0
    for name in sys.argv[1:] or MUTANTS:
        plays, verdict = hunt(name)
        alive += verdict is None
        caught = f"[{verdict.checker}] after {plays}: {verdict.name}" if verdict else f"NOT CAUGHT in {plays}"
        print(f"{name:<36} {caught}", flush=True)
    return alive


if __name__ == "__main__":
    sys.exit(main())
