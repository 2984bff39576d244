"""Accepted peers whose connection to the master broke and that no peer found dead: they may well come back.

Owns how long each of them is waited for, and the taking back; and how long one that said goodbye is kept until the rest
of its party has said so. A process that dies takes its links with it, and the
peers at their other ends notice: a peer that was found gone like that is gone at once, as in any crash, and no peer
waits for the dead. Does not know what is sent to a peer, only that all of it arrives in the end (`session`). Rules:
docs/recovery.md, "Broken connection" and "Who is waited for".
"""

from msgspec import Struct

from pccl.core.effects.both import Note
from pccl.core.fields import KickKind
from pccl.core.master.collectives import Collectives
from pccl.core.master.links import Links
from pccl.core.master.part import Common, Departure, Part, Wait
from pccl.core.master.roster import Member, MemberStage
from pccl.core.messages.to_master import Resume
from pccl.core.messages.to_peer import Kick, Resumed
from pccl.types import PeerId, short

NOTED_AFTER_S = 1.0
"""A peer that is away for so long is worth a line in the log. One that has died is found gone within milliseconds, and
one whose connection merely broke is back as soon: each of these is one line."""


TOGETHER_S = 1.0
"""A member that said goodbye keeps its place for so long, until all of its party have said so: they do within
milliseconds of each other where a whole machine leaves. Peers that need its vote wait no longer for it than this."""


class Absent(Struct, eq=False):
    """One of them."""

    member: Member
    since: float
    cause: str
    """Why the connection ended."""
    noted: bool = False
    """The operator has read of it."""
    left: bool = False
    """It said goodbye, and the rest of its party has not."""


class Away(Part):
    """Members on the roster without a connection."""

    def __init__(self, common: Common, links: Links, collectives: Collectives) -> None:
        super().__init__(common)
        self._links = links
        self._collectives = collectives
        self._away: dict[PeerId, Absent] = {}

    def begin(self, member: Member, cause: str, now: float, *, left: bool = False) -> None:
        """The connection of an accepted peer ended without a goodbye; or with one that its party has still to say."""
        if not self.has_left(member):
            member.enter(MemberStage.AWAY)
            self._away[member.peer] = Absent(member, now, cause, left=left)
            self._look(member)

    def leave(self, member: Member, now: float) -> None:
        """It says goodbye. Peers of a party do so one after the other, so the first ones wait for the last."""
        mates = self._roster.mates(member)
        if not all(map(self.has_left, mates)):
            self.begin(member, "it said goodbye", now, left=True)
            return
        self._door.remove(*(Departure(each, "it said goodbye", now, event="left") for each in (member, *mates)))
        for each in (member, *mates):
            self._outbox.close(each.connection)

    def has_left(self, member: Member) -> bool:
        """It said goodbye, and waits for its party."""
        return member.peer in self._away and self._away[member.peer].left

    def take_back(self, resume: Resume, connection: int, now: float) -> bool:
        """A peer comes back. True if it is one of ours and goes on where it was, as if nothing had happened."""
        member = self._roster.accepted.get(resume.me.peer)
        if member is None or not member.knows(resume.me):
            return False
        # A peer that has not received our `Resumed` still names its last master, and has sent nothing since.
        unaware = (resume.master, resume.received) == member.came_from
        if resume.master != self._lead.name and not unaware:
            return False
        lacking = member.session.lacking(resume.received if resume.master == self._lead.name else 0)
        if lacking is None:
            self._outbox.close(member.connection)
            self._door.remove(Departure(member, "it came back, and lacks more messages than are kept", now))
            return False
        self._outbox.repeat(connection, (self.resumed(member), *lacking))
        away = self._away.pop(member.peer, None)
        if away is not None:
            member.enter(MemberStage.ACCEPTED)
        self.move(member, connection, resume.dial, ended=away is not None, now=now)
        how = "" if away is None else f" after {now - away.since:.1f} s ({away.cause})"
        sentence = f"{short(member.peer)} is back{how}, and lacked {len(lacking)} messages"
        self._outbox.note(Note(sentence, "back", peer=member.peer, seconds=None if away is None else now - away.since))
        return True

    def resumed(self, member: Member) -> Resumed:
        """What takes a member back."""
        return Resumed(self._limits.tags_max, self._lead.name, member.session.received)

    def move(self, member: Member, connection: int, dial: int, *, ended: bool, now: float) -> None:
        """A member goes on with another connection, on which it first reports what we know already. If its last one has
        not ended, that broke for it alone; or there is a copy of its process, and only one of them can be here."""
        before, member.dial = member.connection, dial
        self._roster.rebind(member, connection)
        member.pulse.begin_again(now)
        self._collectives.forget_refusal(member.peer)
        member.repeats_report = True
        if ended:
            self._outbox.close(before)
        else:
            reason = "another connection came with this identity and its secret"
            self._outbox.kick(before, Kick(KickKind.REPLACED, reason))

    def lose(self, gone: Departure) -> None:
        """It is not waited for any more."""
        self._away.pop(gone.peer, None)

    def advance(self, now: float) -> bool:
        """Give up those that no peer reaches any more, and those that did not come in time. The rings that close
        without them may leave others without a link."""
        for away in self._away.values():
            self._look(away.member)
        overdue = [away for away in self._away.values() if now >= self._deadline(away)]
        for away in self._away.values():
            if not away.noted and now >= away.since + NOTED_AFTER_S and away not in overdue:
                away.noted = True
                self._outbox.note(Note(self._explain(away), "away", warns=True, peer=away.member.peer))
        for away in overdue:
            self._outbox.close(away.member.connection)
        if overdue:
            self._door.remove(*(self._departure(away, now) for away in overdue))
        return bool(overdue)

    def _departure(self, away: Absent, now: float) -> Departure:
        if away.left:
            return Departure(away.member, away.cause, now, event="left")
        late = f", and it did not come back within {now - away.since:.0f} s" if away.noted else ""
        how = f"its connection closed ({away.cause}){late}"
        return Departure(away.member, how, now, back_until=away.since + self._limits.reunion_s)

    def next_deadline(self) -> float | None:
        """When the operator is to read of a peer, or it has had its time."""
        notes = (away.since + NOTED_AFTER_S for away in self._away.values() if not away.noted)
        return min((*map(self._deadline, self._away.values()), *notes), default=None)

    def shift_deadlines(self, missed_s: float, now: float) -> None:
        """The `Resume` of a peer that is back may be unread."""
        for away in self._away.values():
            away.since = min(away.since + missed_s, now)  # Some have gone since we stood still, and were found gone.

    def waits(self) -> list[Wait]:
        """The master waits for members that are away; looking at that now and then shows if it stood still."""
        return [
            Wait((), self._explain(away), away.since, "", (peer,), until=self._deadline(away))
            for peer, away in self._away.items()
        ]

    def _explain(self, away: Absent) -> str:
        patience_s = self._deadline(away) - away.since
        name = short(away.member.peer)
        if away.left:
            return f"{name} said goodbye, and waits up to {patience_s:g} s for the rest of its party to do so"
        return f"{name} is away for up to {patience_s:g} s: its connection closed ({away.cause})"

    def _deadline(self, away: Absent) -> float:
        """While a peer that is here has a link to it, it is as good as one that is silent. If all that have one are
        away themselves, most likely a whole site is. Without any link it is gone if a peer found it so; but if its
        neighbours were lost just before, or it had none, no peer can know."""
        if away.left:
            return away.since + TOGETHER_S
        linked = self._linked_members(away.member.peer)
        if self._any_here(linked):
            return away.since + self._limits.silence_s
        found_gone = away.member.pulse.suspected and not linked
        return away.since if found_gone else away.since + self._limits.reunion_s

    def _look(self, member: Member) -> None:
        """One peer that denies its link does not outweigh another that has one: without this, a member that is away
        would be gone at once if its last link stood until we had no more use for it."""
        if self._any_here(self._linked_members(member.peer)):
            member.pulse.clear()

    def _any_here(self, members: list[PeerId]) -> bool:
        return any(each not in self._away for each in members)

    def _linked_members(self, peer: PeerId) -> list[PeerId]:
        """The members at the other ends of its links that stand."""
        return [other for other in self._links.linked(peer) if other in self._roster.accepted]
