"""How a master that has no roster takes over a run: it gathers the reports of the peers that were in it.

Owns the gathering: which peers came back, how long the missing ones are waited for, and when the run goes on. The
roster follows from the reports (`census`), and what the run was doing does, too (`restore`). A master with a roster
knows which of its members are away (`away`); it gathers only peers of an earlier run, while its own is young
(`arrivals`). Rules: docs/recovery.md, "Restarted master" and "Who is waited for".
"""

from math import inf

from pccl.core.fields import KickKind
from pccl.core.master.admission import Admission
from pccl.core.master.part import Common, Departure, Part, Wait
from pccl.core.master.recovery.away import Away
from pccl.core.master.recovery.census import Census, Returned, take_census
from pccl.core.master.recovery.restore import restore
from pccl.core.master.recovery.restored import Base
from pccl.core.master.roster import Member
from pccl.core.messages.report import Correction, ReportPart
from pccl.core.messages.to_master import Resume, ToMaster
from pccl.core.messages.to_peer import Kick
from pccl.core.names import shown
from pccl.core.staged import Stage, Staged
from pccl.core.text import Violation, names
from pccl.types import PeerId, count_peers

_UNREPORTED = Kick(KickKind.PROTOCOL, "it did not report in time what it knew of its run")


class GatheringStage(Stage):
    """Where the taking over of a run is."""

    IDLE = "no peer has come back", ("REPORTING",)
    REPORTING = (
        "peers came back, and none of them has sent its whole report; given up after `reunion_s`",
        ("WAITING", "IDLE"),
    )
    WAITING = (
        "reports tell who was on the roster; waits for those of it that are missing, then the run goes on",
        ("REPORTING", "IDLE"),
    )


class Gathering(Part, Staged[GatheringStage]):
    """The gathering, while there is one."""

    def __init__(self, common: Common, admission: Admission, away: Away) -> None:
        Part.__init__(self, common)
        Staged.__init__(self, GatheringStage.IDLE)
        self._admission = admission
        self._away = away
        self._returned: dict[PeerId, Returned] = {}
        self._since = 0.0
        """When the first peer came back."""
        self._census: Census | None = None
        """Which peers are here; None while no report is complete."""
        self._stale = False
        """That has changed since. A thousand peers come back at once: it is not counted at every event."""
        self._went_on_at = -inf
        self._went_on_with = 0, 0
        """When a run last went on; when its latest ticket was issued, and when the first one of ours."""

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, member: Member, resume: Resume, now: float) -> None:
        """A peer came back, and begins to report."""
        member.came_from, member.session.received = (resume.master, resume.received), resume.sent
        self._roster.add_returning(member)
        self._returned[member.peer] = Returned(member, resume, self._lead.tickets.date(resume))
        self._stale = True
        if self.stage is GatheringStage.IDLE:
            self.enter(GatheringStage.REPORTING)
            self._since = now
            self._admission.suspend(now)

    def reconnect(self, other: Member, resume: Resume, connection: int, now: float) -> bool:
        """A peer that is here already comes with another connection. True if its report stands: the peer sends later
        what happened since. A report that is incomplete, or older than another master that the peer had since, is
        dropped together with its member, and the peer reports from the start."""
        returned = self._returned.get(other.peer)
        if returned is None or not returned.complete or other.came_from != (resume.master, resume.received):
            self._outbox.close(other.connection)
            self._door.remove(Departure(other, "it came back on another connection", now))
            return False
        self._away.move(other, connection, resume.dial, ended=returned.cut is not None, now=now)
        returned.cut = None
        return True

    def receive(self, member: Member, message: ToMaster) -> None:
        """A part of the report of a peer that came back."""
        match message:
            case ReportPart():
                returned = self._returned[member.peer]
                returned.add(message, self._limits)
                if message.last and not self._lead.tickets.names(returned.resume.ticket, returned.ring):
                    raise Violation("reports another ring than the one in its ticket")
                self._stale |= message.last
            case Correction(link=link):
                self._returned[member.peer].correct(link)
                self._stale = True
            case _:
                raise Violation(f"sent {type(message).__name__} before it was taken back")

    def disconnect(self, member: Member, cause: str) -> bool:
        """The connection of a peer that came back has ended. True if its report is complete: it stands, and the peer
        will dial again."""
        returned = self._returned.get(member.peer)
        if returned is None or not returned.complete:
            return False
        returned.cut = cause
        return True

    def lose(self, gone: Departure) -> None:
        """Its report does not count."""
        self._returned.pop(gone.peer, None)
        self._stale = True

    def recount(self) -> None:
        """A candidate joined: it may be on the roster, and have lost its connection before it received that."""
        self._stale = True

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> bool:
        """Go on with the run if its peers are here, or have had the time to come."""
        if self.stage is GatheringStage.IDLE:
            return False
        if self._stale:
            self._census, self._stale = take_census(self._returned, self._roster), False
            stage = GatheringStage.REPORTING if self._census is None else GatheringStage.WAITING
            if stage is not self.stage:
                self.enter(stage)
        if now < self._goes_on_at():
            return False
        census, returned = self._census, self._returned
        self.enter(GatheringStage.IDLE)
        self._census, self._returned = None, {}
        self._admission.begin_at = 0.0
        if census is None:
            for each in returned.values():
                self._door.expel(each.member, _UNREPORTED, now)
        else:
            self._go_on(census, returned, now)
        return False

    def _goes_on_at(self) -> float:
        """How long missing peers are waited for: not at all if none can be missing; for `silence_s` if one of them may
        still come; otherwise for `reunion_s`, from when the first peer came back. A ticket says what was, not that it
        is the latest: with a secret those that have a later one get the time in which a peer dials, at least."""
        if self._census is not None and self._census.certain:
            return self._since + (self._limits.newborn_s if self._lead.tickets.on else 0.0)
        may_still_come = self._census is not None and self._census.may_still_come
        return self._since + (self._limits.silence_s if may_still_come else self._limits.reunion_s)

    def _go_on(self, census: Census, returned: dict[PeerId, Returned], now: float) -> None:
        """Lead the run of the census. Members of one that gives way, peers of another one and parts of parties cannot
        stay."""
        census, accepted = census.of_whole_parties(self._roster), self._roster.accepted
        if not census.reports or (accepted and not self._displaces(census)):
            run, epoch = (self._lead.run, self._roster.epoch) if accepted else (census.run, census.epoch)
            for each in returned.values():
                self._door.expel(each.member, _why_not(each, run, epoch, census.missing), now)
            return
        for young in list(self._roster.accepted.values()):
            reason = "an earlier run that was led from this address before has come back; build a new Communicator"
            self._door.expel(young, Kick(KickKind.DISPLACED, reason), now)
        for each in returned.values():
            if census.back.get(each.member.peer) is not each:
                self._door.expel(each.member, _why_not(each, census.run, census.epoch, census.missing), now)
        self._admission.began_at = -inf
        ours = self._lead.tickets.follow(census.issued_at, now)
        self._went_on_at, self._went_on_with = now, (census.issued_at, ours)
        base = Base(self._lead.name, self._roster.epoch, self._roster.number, self._limits.default_lanes)
        self._door.go_on_with(restore(census, base), now)
        for each in census.reports:
            if each.cut is not None and each.member.peer in self._roster.accepted:
                self._away.begin(each.member, each.cut, now)

    def outdone_by(self, resume: Resume, now: float) -> bool:
        """What goes on here since a moment was not the latest: this peer has a ticket that was issued later, and not by
        us. Peers that notice late that their master is gone must not lose their run to one that kept an old ticket."""
        latest, ours = self._went_on_with
        restored = self._admission.began_at < self._went_on_at and now - self._went_on_at < self._limits.silence_s
        return restored and latest < self._lead.tickets.date(resume) < ours

    def _displaces(self, census: Census) -> bool:
        """The members that are here make way for those that came back. A run that began here moments ago does for an
        earlier one; with a secret only for more peers than it has, since any ticket of an earlier run would do, and one
        peer may have kept it for long. One that came back does for a later one; of the same run for a later roster, if
        none of those that are here is in it."""
        if self._admission.began_at > self._went_on_at:
            return not self._lead.tickets.on or len(census.reports) > len(self._roster.accepted)
        return census.run != self._lead.run or census.excludes(self._roster.accepted)

    # ── time and words ───────────────────────────────────────────────────────────────────────────────────────────────

    def next_deadline(self) -> float | None:
        """When the missing peers have had their time."""
        return None if self.stage is GatheringStage.IDLE else self._goes_on_at()

    def shift_deadlines(self, missed_s: float, now: float) -> None:
        """Peers that came back may be unread."""
        self._since += missed_s

    def waits(self) -> list[Wait]:
        """The peers that came back, and the candidates."""
        if self.stage is GatheringStage.IDLE:
            return []
        missing = () if self._census is None else tuple(self._census.missing)
        waiting = (*self._returned, *self._roster.candidates)
        return [Wait(waiting, self._explain(), self._since, "", missing, until=self._goes_on_at())]

    def _explain(self) -> str:
        census = self._census
        if census is None:
            return f"an earlier run is about to go on; {count_peers(len(self._returned))} came back, and report"
        if census.divided:
            return "peers of several runs have come back; that of which most do goes on in a moment"
        if census.whole:
            back = count_peers(len(census.back))
            return f"an earlier run is about to go on with {back}, or more if some were admitted just before"
        unnamed = [f"{count_peers(census.unknown)} of other groups"] if census.unknown else []
        absent = " and ".join([*([names(census.missing)] if census.missing else []), *unnamed])
        return (
            f"the run waits for {absent} to come back to this master, for {self._goes_on_at() - self._since:g} s from "
            f"when the first peer came back; {len(census.back)} of {count_peers(census.size)} are here"
        )


def _why_not(returned: Returned, goes_on: str, epoch: int, lost: tuple[PeerId, ...]) -> Kick:
    """Why a peer that came back has no place in the run that goes on, or would have gone on, without the lost ones."""
    if not returned.complete:
        return _UNREPORTED
    run = returned.resume.run
    if run != goes_on:
        reason = f"this master goes on with run {goes_on}, and this peer was in {run}. Build a new Communicator"
        return Kick(KickKind.OTHER_RUN, reason)
    if returned.member.peer in lost:
        reason = f"the rest of its party {shown(returned.member.party.name)} did not come back"
        return Kick(KickKind.PARTY, f"{reason}; a party goes as a whole. Build a new Communicator")
    reason = f"the run went on without it: it is not in the last ring of its group (epoch {epoch})"
    return Kick(KickKind.LATE, reason)
