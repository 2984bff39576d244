"""Rules of the way back to a master, broken."""

from math import inf
from typing import Any

from pccl.core.effects.peer_effects import SendMaster
from pccl.core.master.admission import Admission
from pccl.core.master.arrivals import Arrivals
from pccl.core.master.pulse import Pulse
from pccl.core.master.recovery import restore as restoring
from pccl.core.master.recovery.away import Away
from pccl.core.master.recovery.census import Census
from pccl.core.master.recovery.gathering import Gathering
from pccl.core.master.sync import Syncs
from pccl.core.master.tickets import Tickets
from pccl.core.messages.report import TransferReport
from pccl.core.messages.to_peer import RefusedSync, Resumed
from pccl.core.peer.masters import Masters
from pccl.core.peer.report import Answers
from pccl.core.peer.stages import PeerStage
from pccl.core.peer.sync import Sync
from pccl.core.session import Session
from pccl.core.text import Violation as ProtocolViolation
from tests.simulation.mutants.mutant import Mutant


def _suspend_for_nobody(self: Any, now: float, until: float = inf) -> None:
    _SUSPEND(self, now, until if until == inf else now)


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


def _log_once_more(self: Any, effects: Any, stage: Any, tags_max: int) -> Any:
    for effect in effects:
        if isinstance(effect, SendMaster) and effect.again:
            self.session.log(effect.message)
    return _PASS_ON(self, effects, stage, tags_max)


def _go_on_at_once(self: Any) -> float:
    certain = self._census is not None and self._census.certain
    return float(self._since) if certain else float(_GOES_ON_AT(self))


def _have_nothing(self: Any, member: Any) -> Resumed:
    return Resumed(self._limits.tags_max, self._lead.name, 0)


_GOES_ON_AT = Gathering._goes_on_at
_RECONNECT = Gathering.reconnect
_TAKE_BACK = Away.take_back
_LOG = Session.log
_FOLLOW = Session.follow
_DISPATCH_SYNC = Sync.dispatch
_SETTLE_SYNC = restoring._settle_sync
_PASS_ON = Masters.pass_on
_RESTORE_SYNCS = Syncs.restore
_SUSPEND = Admission.suspend


MUTANTS: dict[str, tuple[Mutant, ...]] = {
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
    "log what is sent again": (Mutant("a message has one number", Masters, "pass_on", _log_once_more),),
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
    "believe what no master has signed": (
        Mutant("a report has a ticket", Tickets, "objection", lambda self, resume: ""),
    ),
    "believe another ring than the signed one": (
        Mutant("a ticket is of one ring", Tickets, "names", lambda self, ticket, ring: True, first=1460, hostile=True),
    ),
    "go on at once with what was signed": (
        Mutant("a later ticket may still come", Gathering, "_goes_on_at", _go_on_at_once, first=50, hostile=True),
        Mutant("nor does it win later", Gathering, "outdone_by", lambda self, resume, now: False),
    ),
    "look for a master for ever": (Mutant("calls end when none comes", Masters, "over", lambda self, now: False),),
}
