"""How a master that knows nothing comes to know a run: from peers that were in it and have lost their master.

Owns the gathering: who came back, on whom it still waits, and when it goes on with those who are here. Whom the roster
consists of is told by `muster`; those of it who do not come back in time are lost as in any crash. What the run was
doing is settled by `resettling`. A master with a roster knows whom it has lost (`absentees`), and gathers only peers
of an earlier run, while its own has just begun.

The next master at the same address cannot exist beside the last one. Where peers know several addresses it can, so
there more than half of the roster must come back, or exactly half with the first of the first ring: no two masters have
that of the same roster.
"""

from __future__ import annotations

from collections.abc import ValuesView
from math import inf
from typing import TYPE_CHECKING

from pccl.core.ballot import names
from pccl.core.messages import Elsewhere, Kick, Leave, Ping, Pong, Recall, Resume, ToMaster
from pccl.core.muster import Muster, Return, count_back
from pccl.core.outbox import clip
from pccl.core.resettling import resettle
from pccl.core.roster import Member
from pccl.core.violation import Violation
from pccl.types import PeerId, short

if TYPE_CHECKING:
    from pccl.core.master import Master

GONE_MAX = 64
"""Of so many who are gone it is remembered why, to tell those who come back: some were kicked and never heard of it. A
few hundred bytes each, and nobody comes back after minutes."""


class Reunion:
    """The gathering, while there is one."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._returns: dict[PeerId, Return] = {}
        self._since: float | None = None
        """When the first came back."""
        self._changes = 0
        """How often somebody has told all, or gone."""
        self._version: tuple[int, int] | None = None
        self._latest: Muster | None = None
        """Who was here at that version."""
        self._gone: dict[PeerId, str] = {}
        """How some left, the last ones last."""
        self._over: list[str] = []
        """Runs that ended here and of which nobody is expected back, the last ones last."""
        self._names: list[str] = []
        """Of this master, while it led runs that ended here."""
        self._holds_off_until = 0.0

    @property
    def gathering(self) -> bool:
        """Somebody came back, and it is open who else does."""
        return self._since is not None

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def greet(self, resume: Resume, connection: int, host: str, now: float) -> None:
        """Somebody was in a run and has lost its master."""
        master, peer = self._master, PeerId(resume.peer)
        if master.absentees.take_back(resume, connection, now):
            return
        reason = self._objection(resume, now)
        if reason:
            # That this master leads another run says nothing about the others that the peer knows, unless it was the
            # last that the peer had.
            perhaps = resume.masters > 1 and resume.run != master.run and resume.master not in self._names
            master.outbox.send_connection(connection, (Elsewhere if perhaps else Kick)(clip(reason)))
            master.outbox.close(connection)
            return
        other = master.roster.member(peer)
        if other is not None and other.secret != resume.secret:
            master.outbox.send_connection(connection, Kick(f"somebody else has the id {peer}"))
            master.outbox.close(connection)
            return
        if other is not None and self._tells_again(other, connection, now):
            return
        if self._since is None:
            self._since = now
            master.admission.suspend(now)
        member = Member(peer, resume.group, connection, (resume.host or host, resume.port))
        member.lanes, member.serves, member.joined_at = resume.lanes, resume.serves, now
        member.secret, member.story = resume.secret, resume.story
        master.roster.add_returning(member)
        self._returns[peer] = Return(member, resume)

    def _tells_again(self, other: Member, connection: int, now: float) -> bool:
        """Somebody who is here already comes with another connection. True if the story that it has told stands: what
        happened since it says later."""
        master, ret = self._master, self._returns.get(other.peer)
        if ret is None or not ret.complete:
            master.expel(other, "another connection came with the same identity", now)
            return False
        master.absentees.move(other, connection, ret.cut is not None, now)
        ret.cut = None
        return True

    def _gives_way(self, resume: Resume, now: float) -> bool:
        """The run here began with newcomers, before those of an earlier one, which was no smaller, had noticed that
        their master was gone: a machine that loses its power tells nobody."""
        master = self._master
        young = now - master.admission.began_at < master.limits.silence_s
        upstart = young and (master.follows or resume.masters > 1)
        earlier = resume.run not in (master.run, *self._over)
        return upstart and earlier and resume.global_size >= len(master.roster.accepted)

    def _objection(self, resume: Resume, now: float) -> str:
        """Why this peer cannot go on with its run here; empty if it perhaps can."""
        master, me = self._master, short(PeerId(resume.peer))
        if len(master.roster) + len(master.roster.returning) >= master.limits.peers_max:
            return f"the run is full: {master.limits.peers_max} peers (peers_max of the master)"
        if not master.roster.accepted or self._gives_way(resume, now):
            return ""
        if resume.run != master.run:
            return (
                f"this master leads another run ({master.run}) than the one that {me} was in ({resume.run}). Join it "
                "with a new Communicator, or start a master of your own at another address"
            )
        if PeerId(resume.peer) in master.roster.accepted:
            return f"{me} is connected already; whoever is here first stays. Build a new Communicator"
        how = self._gone.get(PeerId(resume.peer), "its connection had ended")
        return f"the run has gone on without {me} ({how}). Build a new Communicator"

    def hear(self, member: Member, message: ToMaster, now: float) -> None:
        """Something from somebody who came back and has not been taken back yet."""
        match message:
            case Recall(last=last) if member.recalls:
                member.recalls = not last
            case Recall():
                self._returns[member.peer].hear(message, self._master.limits)
                self._changes += message.last
            case Ping():
                self._master.outbox.send((member.peer,), Pong())
            case Pong():
                member.answer(now, self._master.limits.link_timeout_s / 2)
            case Leave():
                self._master.remove(member, "it said goodbye", now)
                self._master.outbox.close(member.connection)
            case _:
                raise Violation(f"sent {type(message).__name__} before it was taken back")

    def keeps(self, member: Member, cause: str) -> bool:
        """The connection of one who came back has ended. What it told stands, and it will ask again; but where there
        are other masters it may go to one of those, and nobody may count it twice."""
        ret = self._returns.get(member.peer)
        if ret is None or not ret.complete or ret.resume.masters > 1:
            return False
        ret.cut = cause
        return True

    def forget(self, member: Member, how: str) -> None:
        """A member is gone."""
        self._gone[member.peer] = how
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
        self._returns.pop(member.peer, None)
        self._changes += 1

    def note_end(self) -> None:
        """Nobody of the run is left here."""
        self._over = [*self._over, self._master.run][-GONE_MAX:]
        self._names = [*self._names, self._master.name][-GONE_MAX:]

    def expect_back(self) -> None:
        """The last one of the run that has just ended may come back."""
        self._over.pop()

    def holds_off(self, now: float) -> bool:
        """Some were sent to their other masters and may be back: newcomers ask those, too, and wait for none here."""
        return now < self._holds_off_until and not self.gathering and not self._master.roster.accepted

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> None:
        """Go on with the run if everybody is here, or has had the time to come."""
        self._release_guests(now)
        muster = self._muster()
        if muster is None:
            if self._since is not None and now >= self._deadline(None):
                self._give_up(now)
            return
        if not (muster.whole and muster.sure and not self._divided(muster)) and now < self._deadline(muster):
            return
        if not muster.whole and self._rivals() and not muster.unmatched:
            self._send_away(muster, now)
            return
        others = [ret for peer, ret in self._returns.items() if muster.back.get(peer) is not ret]
        self._end()
        for upstart in list(self._master.roster.accepted.values()):
            reason = "an earlier run that was led from this address before has come back; build a new Communicator"
            self._master.expel(upstart, reason, now)
        for ret in others:
            self._master.expel(ret.member, _why_not(ret, muster), now)
        self._master.admission.began_at = -inf
        resettle(self._master, muster, now)
        for told in muster.back.values():
            if told is not None and told.cut is not None and told.member.peer in self._master.roster.accepted:
                self._master.absentees.begin(told.member, told.cut, now)

    def _give_up(self, now: float) -> None:
        """Everybody who came back is gone again, or tells nothing."""
        returns = list(self._returns.values())
        self._end()
        for ret in returns:
            self._master.expel(ret.member, "it did not tell in time what it knew of its run", now)
        self._release("an earlier run came back to this master and is gone again", now, list(self._candidates))

    @property
    def _candidates(self) -> ValuesView[Member]:
        return self._master.roster.candidates.values()

    def _release_guests(self, now: float) -> None:
        """They came for a run that is gone, and no other one begins with them before they have asked everywhere."""
        master = self._master
        if not (master.roster.accepted or self.gathering) and now >= master.admission.begin_at:
            guests = [member for member in self._candidates if not member.begins]
            self._release("the run that was led here has ended", now, guests)

    def _release(self, reason: str, now: float, newcomers: list[Member]) -> None:
        """Newcomers who waited for a run that does not go on here. Those who know other masters ask them again before
        they begin one beside it; the others come back at once. Where another run is led they wait for that one."""
        for newcomer in [] if self._master.roster.accepted else newcomers:
            self._master.outbox.send((newcomer.peer,), Elsewhere(clip(reason)))
            self._master.outbox.close(newcomer.connection)
            self._master.remove(newcomer, "it was sent to its other masters", now)

    def _end(self) -> None:
        self._since, self._returns = None, {}
        self._changes += 1
        self._master.admission.begin_at = 0.0

    def _muster(self) -> Muster | None:
        """Who is here; None while nobody has told all it knows. It is asked for with every event, and a thousand peers
        come back at once: it is found out anew only when somebody else is here or gone."""
        # Whenever anybody goes it is counted as a change, so between two of them candidates only become more.
        version = self._changes, len(self._master.roster.candidates)
        if version != self._version:
            self._version, self._latest = version, count_back(self._returns, self._master.roster)
        return self._latest

    def _divided(self, muster: Muster) -> bool:
        """Somebody is here of another run that was no smaller. It may be the earlier one, of which more are about to
        come: whoever tells faster must not end it."""
        others = [ret.resume for ret in self._returns.values() if ret.resume.run != muster.run]
        return any(resume.global_size >= muster.size for resume in others)

    def _rivals(self) -> bool:
        """There may be another master to whom others went."""
        return any(ret.resume.masters > 1 for ret in self._returns.values())

    def _send_away(self, muster: Muster, now: float) -> None:
        """Too few of a roster that may be at another master."""
        reason = (
            f"{len(muster.back)} of {muster.size} peers came back, and the others may be with another master: "
            "it takes more than half to go on"
        )
        self._master.outbox.note(reason)
        for ret in list(self._returns.values()):
            self._master.outbox.send((ret.member.peer,), Elsewhere(clip(reason)))
            self._master.outbox.close(ret.member.connection)
            self._master.remove(ret.member, "it was sent to its other masters", now)
        self._end()
        # They will be back if nobody else takes them: no other run begins in their place meanwhile.
        self._release(reason, now, list(self._candidates))
        self._holds_off_until = now + self._master.limits.silence_s

    # ── time and words ───────────────────────────────────────────────────────────────────────────────────────────────

    def _deadline(self, muster: Muster | None) -> float:
        limits = self._master.limits
        since = 0.0 if self._since is None else self._since
        # Too few for a run that may go on elsewhere look there before they have lost their place in it.
        late = muster is not None and muster.late and (muster.unmatched or not self._rivals())
        return since + (limits.silence_s if late else limits.reunion_s)

    def next_deadline(self) -> float | None:
        """When `advance` has something to do though nothing happened."""
        return None if self._since is None else self._deadline(self._muster())

    def excuse(self, missed_s: float) -> None:
        """We did not listen for this long ourselves."""
        if self._since is not None:
            self._since += missed_s

    def explain(self) -> tuple[tuple[PeerId, ...], str, float] | None:
        """Who waits, for what, and since when."""
        if self._since is None:
            return None
        muster = self._muster()
        if muster is None:
            sentence = f"an earlier run is about to go on; of those who came back {len(self._returns)} are here"
        elif self._divided(muster):
            sentence = "peers of several runs have come back; that of which most do goes on in a moment"
        elif muster.whole:
            sentence = (
                f"an earlier run is about to go on with {len(muster.back)} peers, or more if they have just let some in"
            )
        else:
            unnamed = [f"{muster.unknown} peers of other groups"] if muster.unknown else []
            absent = " and ".join([*([names(muster.missing)] if muster.missing else []), *unnamed])
            sentence = (
                f"the run goes on when {absent} have come back to this master, or "
                f"have had the time to; {len(muster.back)} of {muster.size} peers are here"
            )
        return (*self._returns, *self._master.roster.candidates), sentence, self._since


def _why_not(ret: Return, muster: Muster) -> str:
    if not ret.complete:
        return "it did not tell in time what it knew of its run"
    if ret.resume.run != muster.run:
        return f"this master goes on with another run ({muster.run}) than the one that it was in ({ret.resume.run})"
    return f"the run went on without it: it is not in the last ring of its group (epoch {muster.epoch})"
