"""Accepted peers whose connection to the master broke and whom nobody found dead: they may well come back.

Owns how long each of them is waited for, and the taking back. A process that dies takes its links with it, and those at
their other ends notice: so whoever was found gone like that is gone at once, as in any crash, and nobody waits for a
dead one. Does not know what is said to a peer, only that all of it is said in the end (`session`).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from pccl.core.messages import Kick, Rejoined, Resume
from pccl.core.resettling import resumed
from pccl.core.roster import Member
from pccl.types import PeerId, short

if TYPE_CHECKING:
    from pccl.core.master import Master


class Absentees:
    """Who is on the roster without a connection."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._away: dict[PeerId, tuple[Member, float, str]] = {}
        """Since when, and why the connection ended."""

    def begin(self, member: Member, cause: str, now: float) -> None:
        """A connection ended without a goodbye."""
        if member.peer not in self._master.roster.accepted:
            if not self._master.reunion.keeps(member, cause):
                self._master.outbox.close(member.connection)
                self._master.remove(member, f"its connection closed ({cause})", now)
            return
        self._away[member.peer] = member, now, cause
        if self._witnesses(member.peer) or not member.doubted:
            self._master.outbox.note(f"{short(member.peer)} is away: its connection closed ({cause})")

    def take_back(self, resume: Resume, connection: int, now: float) -> bool:
        """Somebody comes back. True if it is one of ours and goes on where it was, as if nothing had happened."""
        master = self._master
        member = master.roster.accepted.get(PeerId(resume.peer))
        if member is None or not resume.secret or resume.secret != member.secret:
            return False
        # Whoever has not even heard that we took it back names its last master, and has said nothing since.
        unaware = bool(member.story) and not member.session.heard and resume.story > member.story
        if resume.master != master.name and not unaware:
            return False
        first = resumed(master, member) if resume.master != master.name else Rejoined(member.session.heard)
        lacking = member.session.unheard(resume.heard if resume.master == master.name else 0)
        if lacking is None:
            master.outbox.close(member.connection)
            master.remove(member, "it came back, and lacks more of what it was told than is kept", now)
            return False
        master.outbox.repeat(connection, (first, *lacking))
        self.move(member, connection, self._away.pop(member.peer, None) is not None, now)
        master.outbox.note(f"{short(member.peer)} is back, and lacked {len(lacking)} messages")
        return True

    def move(self, member: Member, connection: int, ended: bool, now: float) -> None:
        """A member goes on with another connection, on which it first tells what we know already. If its last one has
        not ended, that broke for it alone; or there is a copy of its process, and only one of them can be here."""
        outbox, before = self._master.outbox, member.connection
        self._master.roster.rebind(member, connection)
        member.pings.clear()
        member.doubted_at = -inf
        member.slow_at = now  # What was asked of it meanwhile it did not hear, and nobody else is to blame.
        member.refused_at = 0.0  # What is said again, and what was refused before, is not for us to tell apart.
        member.recalls = True
        if not ended:
            outbox.send_connection(before, Kick("another connection came with this identity and its secret"))
        outbox.close(before)

    def forget(self, member: Member) -> None:
        """A member is gone."""
        self._away.pop(member.peer, None)

    def advance(self, now: float) -> bool:
        """Give up one whom nobody reaches any more, or who did not come in time; False if there is none. The ring that
        closes without it may leave others without a link."""
        for member, since, cause in self._away.values():
            if now >= self._deadline(member.peer):
                late = ", and it did not come back" if now > since else ""
                self._master.outbox.close(member.connection)
                self._master.remove(member, f"its connection closed ({cause}){late}", now)
                if not self._master.roster.accepted:
                    # Newcomers would begin another run, without anything that this one has learnt.
                    self._master.admission.suspend(now, since + self._master.limits.reunion_s)
                    self._master.reunion.expect_back()
                return True
        return False

    def next_deadline(self) -> float | None:
        """When `advance` has something to do though nothing happened."""
        return min(map(self._deadline, self._away), default=None)

    def excuse(self, missed_s: float) -> None:
        """We did not listen for this long ourselves."""
        self._away = {peer: (member, since + missed_s, cause) for peer, (member, since, cause) in self._away.items()}

    def _deadline(self, peer: PeerId) -> float:
        """While somebody who is here has a link to it, it is as good as one who is silent. If all who have one are away
        themselves, most likely a whole site is. Without any link it is gone if somebody found it so; but if its
        neighbours were lost just before, or it had none, there is nobody who could tell."""
        limits, witnesses = self._master.limits, self._witnesses(peer)
        member, since, _ = self._away[peer]
        if any(each not in self._away for each in witnesses):
            return since + limits.silence_s
        return since if member.doubted and not witnesses else since + limits.reunion_s

    def _witnesses(self, peer: PeerId) -> list[PeerId]:
        """Those on the roster who have a link to it that stands."""
        return [other for other in self._master.wiring.linked(peer) if other in self._master.roster.accepted]
