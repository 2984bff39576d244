"""The first message of a connection: which peers may come in, and as what.

Owns the objections to a `Join` and to a `Resume`, and the memory that they need: why members are gone, and which runs
have ended here. What becomes of a peer that came in is up to the other parts. Rules: docs/protocol.md, "Connections"
and "Membership"; for a `Resume` docs/recovery.md, "Who is turned away" and "Late messages".
"""

from pccl.core.effects.both import Note
from pccl.core.effects.master import Received
from pccl.core.fields import KickKind, same_secret
from pccl.core.master.admission import Admission
from pccl.core.master.part import Common, Departure, Part
from pccl.core.master.recovery.away import Away
from pccl.core.master.recovery.gathering import Gathering
from pccl.core.master.roster import Member
from pccl.core.master.visits import VISITORS_MAX, Visits
from pccl.core.messages.to_master import First, Join, Resume
from pccl.core.messages.to_peer import Kick
from pccl.core.rights import Rights
from pccl.types import PeerId, count_peers, short

GONE_MAX = 64
"""Members of which it is remembered why they are gone, for the case that they come back: some were kicked and have not
received that. A few hundred bytes each, and no peer comes back after minutes."""


class Arrivals(Part):
    """Which peers come in."""

    def __init__(self, common: Common, admission: Admission, visits: Visits, away: Away, gathering: Gathering) -> None:
        super().__init__(common)
        self._admission = admission
        self._visits = visits
        self._away = away
        self._gathering = gathering
        self._gone: dict[PeerId, str] = {}
        """Why members are gone, the latest last."""
        self._over: list[str] = []
        """Runs that ended here and of which no peer is expected back, the latest last."""

    def greet(self, event: Received, now: float) -> None:
        """The first message of a connection; anything else on an unknown one is the tail of one just closed."""
        first = event.message
        if not isinstance(first, First) or self._outdated(first):
            self._outbox.close(event.connection)
            return
        if self._roster.member(first.me.peer) is None:
            # It may be refused, and then the sentence has its name.
            self._roster.names.learn(first.me.peer, first.me.label.name)
            self._roster.names.retire(first.me.peer)
        if Rights.JOIN not in event.rights:
            self._refuse(first, event, Kick(KickKind.NO_RIGHT, "it may observe or operate; join with the role peer"))
        elif isinstance(first, Join):
            self._join(first, event, now)
        elif not self._away.take_back(first, event.connection, now):
            self._resume(first, event, now)
        if (member := self._roster.find(event.connection)) is not None:
            member.rights = event.rights

    def _refuse(self, first: First, event: Received, kick: Kick) -> None:
        """Say why to the peer, and to the operator."""
        sentence = f"refused {short(first.me.peer)}: {kick.reason}"
        self._outbox.note_outsider(Note(sentence, "refused", warns=True, peer=first.me.peer), event.host)
        self._outbox.kick(event.connection, kick)

    def _outdated(self, first: First) -> bool:
        """It was sent on a connection that its peer has given up since, and arrives after that of a newer one."""
        other = self._roster.member(first.me.peer)
        return other is not None and other.knows(first.me) and other.dial > first.dial

    def _join(self, join: Join, event: Received, now: float) -> None:
        """A peer wants to be a candidate, or comes as a visitor."""
        if (other := self._roster.member(join.me.peer)) is not None and other.knows(join.me):
            # It lost its connection before it received that it was accepted.
            self._outbox.close(other.connection)
            self._door.remove(Departure(other, "it joined again on another connection", now))
        if kick := self._why_not_join(join, event.host):
            self._refuse(join, event, kick)
            return
        member = Member(join, event.connection, event.host, now)
        if join.me.visits:
            self._roster.add_visitor(member)
            self._visits.arrive(member, now)
        else:
            self._roster.add_candidate(member)
            self._admission.candidates.arrive(member, now)
            self._gathering.recount()
        self._outbox.send((member.peer,), self._lead.welcome(self._limits.tags_max))

    def _why_not_join(self, join: Join, host: str) -> Kick | None:
        """Why this peer can be neither a candidate nor a visitor; None if it can."""
        me = join.me
        if self._roster.member(me.peer) is not None:
            reason = f"a peer with the id {me.peer} is already connected; every Communicator draws its own"
            return Kick(KickKind.ID_TAKEN, reason)
        if not me.visits and len(self._roster) >= self._limits.peers_max:
            return self._full()
        if me.visits and len(self._roster.visitors) >= VISITORS_MAX:
            reason = f"{VISITORS_MAX} visitors are here already; come later, or connect without prefetch_shared_state"
            return Kick(KickKind.FULL, reason)
        candidates = self._admission.candidates
        return candidates.other_lanes(me) or (None if me.visits else candidates.objection(me, host))

    def _full(self) -> Kick:
        return Kick(KickKind.FULL, f"the run is full: {count_peers(self._limits.peers_max)} (peers_max of the master)")

    # ── peers that were in a run ─────────────────────────────────────────────────────────────────────────────────────

    def _resume(self, resume: Resume, event: Received, now: float) -> None:
        """A peer was in a run and has lost its master, which was another than this one under its present name."""
        other, kick = self._roster.member(resume.me.peer), self._why_not_resume(resume, now)
        if kick is not None:
            self._refuse(resume, event, kick)
        elif other is None or not self._gathering.reconnect(other, resume, event.connection, now):
            self._gathering.add(Member(resume, event.connection, event.host, now), resume, now)

    def _why_not_resume(self, resume: Resume, now: float) -> Kick | None:
        """Why this peer cannot go on with its run here; None if it perhaps can."""
        peer, me = resume.me.peer, short(resume.me.peer)
        if len(self._roster) + len(self._roster.returning) >= self._limits.peers_max:
            return self._full()
        if not self._roster.accepted or self._gives_way(resume, now):
            if why := self._lead.tickets.objection(resume):
                return Kick(
                    KickKind.UNSIGNED, f"{me} was in a run that is not known here: {why}. Build a new Communicator"
                )
            other = self._roster.member(peer)
            taken = other is not None and not same_secret(other.secret, resume.me.secret)
            return Kick(KickKind.ID_TAKEN, f"another peer has the id {peer}") if taken else None
        if resume.run != self._lead.run:
            reason = (
                f"this master leads another run ({self._lead.run}) than the one that {me} was in ({resume.run}). Join "
                "it with a new Communicator, or start a master of your own at another address"
            )
            return Kick(KickKind.OTHER_RUN, reason)
        if peer in self._roster.accepted:
            reason = f"{me} is connected already; the peer that is here first stays. Build a new Communicator"
            return Kick(KickKind.ID_TAKEN, reason)
        how = self._gone.get(peer, "its connection had ended")
        return Kick(KickKind.LATE, f"the run has gone on without {me} ({how}). Build a new Communicator")

    def _gives_way(self, resume: Resume, now: float) -> bool:
        """The run here is young: it began with candidates alone, before the peers of an earlier one, which was no
        smaller, had noticed that their master was gone. A machine that loses its power closes no connection. Or it came
        back a moment ago, and this peer was in a later one."""
        young = now - self._admission.began_at < self._limits.silence_s
        earlier = resume.run not in (self._lead.run, *self._over) and resume.global_size >= len(self._roster.accepted)
        later = resume.run not in self._over and self._gathering.outdone_by(resume, now)
        return self._lead.follows and ((young and earlier) or later)

    def lose(self, gone: Departure) -> None:
        """Remember why, for the case that it comes back."""
        self._gone[gone.peer] = gone.how
        if len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]

    def note_end(self) -> None:
        """The run has ended, and none of its peers is expected back."""
        self._over = [*self._over, self._lead.run][-GONE_MAX:]
