"""Shared states of all groups, as the master sees them: votes, the election, who pulls from whom, and the outcome.

A sync begins when every member of a group has voted, and is decided by one election. Whoever lacks what was elected
pulls it from a few holders at once; a holder that dies costs nothing while another lives. All members get the same
answer when the last transfer is over: in step, or call it again. Only those whom the election left out, or whose state
has another layout, get an answer of their own, and hold nobody up. Knows nothing of digests or bytes.
"""

from enum import Enum

from msgspec import Struct, structs

from pccl.core.admission import Admission
from pccl.core.ballot import Ballot, names
from pccl.core.election import Claim, Elected, elect
from pccl.core.limits import MasterLimits
from pccl.core.messages import RefusedSync, StartSync, Synced, SyncState
from pccl.core.outbox import Outbox, clip
from pccl.core.ring import pair
from pccl.core.roster import Member, Roster
from pccl.core.schedule import transfer_lanes
from pccl.core.violation import Violation
from pccl.types import PeerId, short

HOLDERS_MAX = 4
"""Holders that serve one puller: several fill a link that one cannot, and one that dies is missed little."""

PULLERS_MAX = 64
"""Pullers for each holder in one sync: with a few lanes each as many connections and threads as a process bears. The
others are served in the next call, when those who have it by then are holders."""


class SyncStage(Enum):
    """Where a sync is in its life."""

    VOTING = "voting"
    LINKING = "linking"
    RUNNING = "running"
    ENDED = "ended"


SYNC_STAGES: dict[SyncStage, tuple[str, tuple[SyncStage, ...]]] = {
    SyncStage.VOTING: ("some members of the group have said what they hold", (SyncStage.LINKING, SyncStage.ENDED)),
    SyncStage.LINKING: (
        "all have, and one state was elected; links between pullers and holders are being made",
        (SyncStage.RUNNING, SyncStage.ENDED),
    ),
    SyncStage.RUNNING: ("pullers pull from holders", (SyncStage.ENDED,)),
    SyncStage.ENDED: ("every caller has its answer", ()),
}
"""Meaning and successors of each stage; `docs/protocol.md` is checked against this table."""


class Sync:
    """One sync of one group."""

    def __init__(self, group: int, ballot: Ballot[Claim]) -> None:
        self.group = group
        self.ballot = ballot
        self.stage = SyncStage.VOTING
        self.elected = Elected(None)
        self.sources: dict[PeerId, tuple[PeerId, ...]] = {}
        """By puller, the holders that serve it."""
        self.link_until = 0.0
        self.attempt = 0
        self.unreported: dict[PeerId, None] = {}
        """Those whose transfer is not over."""
        self.failures: dict[PeerId, str] = {}
        """Pullers that do not hold what was elected, and why."""
        self.refused: dict[PeerId, str] = {}
        """Whom the election left out, and why; told with the others, so that nobody votes anew in the middle of it."""

    def become(self, stage: SyncStage) -> None:
        """Enter a stage; only the successors of the present one are possible."""
        assert stage in SYNC_STAGES[self.stage][1], f"sync of group {self.group}: {self.stage} cannot become {stage}"
        self.stage = stage

    @property
    def claim(self) -> Claim:
        """What was elected."""
        assert self.elected.claim is not None, "there was something to elect"
        return self.elected.claim

    @property
    def holders(self) -> list[PeerId]:
        """Those that serve."""
        return list(dict.fromkeys(holder for holders in self.sources.values() for holder in holders))

    def explain(self) -> str:
        """What it waits for, in words."""
        if self.stage is SyncStage.VOTING:
            return self.ballot.explain()
        holders = names(self.holders) or "nobody who is left"
        what = f"{self.ballot.question}: revision {self.claim.revision} goes from {holders}"
        if self.stage is SyncStage.LINKING:
            return f"{what} to {names(self.sources)}; links between them are being made"
        return f"{what} to {names(self.sources)}; not over at {names(self.unreported)}"


class Agreed(Struct, frozen=True):
    """What the last sync of a group put everybody in step with."""

    claim: Claim
    holders: tuple[PeerId, ...]
    """Those that held it when it was elected: what they know of its content is what they sent then."""


class Syncs:
    """The syncs of all groups, at most one each."""

    def __init__(self, roster: Roster, admission: Admission, outbox: Outbox, limits: MasterLimits) -> None:
        self._roster = roster
        self._admission = admission
        self._outbox = outbox
        self._limits = limits
        self._syncs: dict[int, Sync] = {}
        self.agreed: dict[int, Agreed] = {}
        """What each group agreed on last."""

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def vote(self, member: Member, vote: SyncState, now: float) -> None:
        """A peer says what it holds."""
        if self.concerns(member.peer):
            raise Violation("called sync_shared_state again before its answer")
        sync = self._syncs.get(member.group)
        if sync is not None and sync.stage is not SyncStage.VOTING:
            raise Violation("called sync_shared_state in the middle of one that it has no part in")
        if sync is None:
            ballot = Ballot[Claim]("sync_shared_state", lambda: self._roster.ring(member.group))
            sync = self._syncs[member.group] = Sync(member.group, ballot)
        sync.ballot.cast(member.peer, Claim(vote.revision, vote.strategy, vote.layout, vote.content), now)

    def restore(self, group: int, claim: Claim, holders: tuple[PeerId, ...]) -> None:
        """This is what the group agreed on last, under an earlier master."""
        self.agreed[group] = Agreed(claim, holders)

    def report(self, member: Member, attempt: int, cause: str) -> None:
        """A peer's transfer is over, well or not."""
        sync = self._syncs.get(member.group)
        if sync is None or sync.attempt != attempt or member.peer not in sync.unreported:
            raise Violation(f"ended transfer {attempt}, in which it has no part left")
        del sync.unreported[member.peer]
        if cause and member.peer in sync.sources:
            sync.failures[member.peer] = cause
        # A holder that could not serve everybody still has what was elected: its pullers say what became of them.

    def lose(self, member: Member, now: float) -> None:
        """A member is gone, with its vote, and with what it had to give or to get."""
        if not self._roster.ring(member.group):
            self.agreed.pop(member.group, None)
        sync = self._syncs.get(member.group)
        if sync is None:
            return
        sync.ballot.forget(member.peer)
        sync.unreported.pop(member.peer, None)
        sync.failures.pop(member.peer, None)
        sync.sources = {
            puller: tuple(holder for holder in holders if holder != member.peer)
            for puller, holders in sync.sources.items()
            if puller != member.peer
        }
        if not sync.ballot.votes:
            self._end(sync, now)

    def refuse_contradicting(self, ballot: Ballot[Claim], reason: str, now: float) -> None:
        """Its voters wait for peers that wait in another call, and these for them."""
        self._outbox.send(ballot.votes, RefusedSync(True, reason))
        self._end(next(sync for sync in self._syncs.values() if sync.ballot is ballot), now)

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> None:
        """Do whatever the last event made possible."""
        for sync in list(self._syncs.values()):
            if sync.stage is SyncStage.VOTING and sync.ballot.complete:
                self._elect(sync, now)
            if sync.stage is SyncStage.LINKING and (sync.link_until <= now or self._linked(sync)):
                self._start(sync)
            if sync.stage is SyncStage.RUNNING and not sync.unreported:
                self._conclude(sync, now)

    def _elect(self, sync: Sync, now: float) -> None:
        votes = sync.ballot.votes
        by_age = sorted(votes, key=lambda peer: self._roster.accepted[peer].seniority)
        agreed, claims = self.agreed.get(sync.group), {peer: votes[peer] for peer in by_age}
        sync.elected = elect(claims, None if agreed is None else agreed.claim.revision)
        sync.refused = dict(sync.elected.refused)
        if sync.elected.claim is None:
            for peer, reason in sync.refused.items():
                self._outbox.send((peer,), RefusedSync(True, clip(reason)))
            self._end(sync, now)
            return
        served = PULLERS_MAX * len(sync.elected.holders)
        for place, puller in enumerate(sync.elected.pullers):
            chosen = self._choose(puller, sync.elected.holders, place) if place < served else ()
            sync.sources[puller] = chosen
        sync.become(SyncStage.LINKING)
        sync.attempt = self._roster.draw_number()
        sync.link_until = now + 2 * self._limits.link_timeout_s
        if sync.sources:
            self._outbox.note(sync.explain())
            ends = tuple(pair(puller, holder) for puller, holders in sync.sources.items() for holder in holders)
            self._admission.link_also(sync.attempt, sync.group, ends, now)

    def _choose(self, puller: PeerId, holders: tuple[PeerId, ...], turn: int) -> tuple[PeerId, ...]:
        """A few holders for a puller, linked ones first; where there are many, not the same few for everybody."""
        turned = holders[turn % len(holders) :] + holders[: turn % len(holders)]
        wiring = self._admission.wiring
        return tuple(sorted(turned, key=lambda holder: not wiring.reaches_all(puller, (holder,))))[:HOLDERS_MAX]

    def _linked(self, sync: Sync) -> bool:
        """No link that a puller could use is still being made."""
        wiring = self._admission.wiring
        return not any(wiring.dials(puller, holders) for puller, holders in sync.sources.items())

    def _start(self, sync: Sync) -> None:
        """Every link stands, or has had its time: whoever reaches a holder pulls."""
        wiring, group, claim = self._admission.wiring, sync.group, sync.claim
        work: dict[PeerId, list[PeerId]] = {}
        for puller, holders in sync.sources.items():
            reached = [holder for holder in holders if wiring.reaches_all(puller, (holder,))]
            if not reached:
                sync.failures[puller] = f"no link to {names(holders)}" if holders else "no holder was left for it"
                continue
            work[puller] = reached
            for holder in reached:
                work.setdefault(holder, []).append(puller)
        lanes = transfer_lanes(self._roster.lanes[group], wiring.round_trip_s(group))
        start = StartSync(sync.attempt, True, (), lanes, claim.revision, claim.layout, claim.content)
        for peer, others in work.items():
            self._outbox.send((peer,), structs.replace(start, pull=peer in sync.sources, peers=tuple(others)))
        sync.unreported = dict.fromkeys(work)
        sync.become(SyncStage.RUNNING)

    def _conclude(self, sync: Sync, now: float) -> None:
        """Everybody's transfer is over."""
        claim, votes = sync.claim, sync.ballot.votes
        odd = {peer: reason for peer, reason in sync.refused.items() if peer in votes}
        # Whoever could look at the elected entries says in what its own differ from them; the others hold them.
        odd |= {peer: cause for peer, cause in sync.failures.items() if votes[peer].layout != claim.layout}
        for peer, cause in odd.items():
            self._outbox.send((peer,), RefusedSync(True, clip(cause)))
        others = [peer for peer in votes if peer not in odd]
        failed = [f"{short(peer)}: {cause}" for peer, cause in sync.failures.items() if peer not in odd]
        if failed:
            reason = f"revision {claim.revision} did not reach everybody ({'; '.join(failed)}); call it again"
            self._outbox.send(others, RefusedSync(False, clip(reason)))
        else:
            self.agreed[sync.group] = Agreed(claim, sync.elected.holders)
            self._outbox.send(others, Synced(sync.attempt, claim.revision))
        self._end(sync, now)

    def _end(self, sync: Sync, now: float) -> None:
        sync.become(SyncStage.ENDED)
        del self._syncs[sync.group]
        # Not before: an end that closed its idle lanes would break the link of one that has not heard of the start.
        self._admission.unlink(sync.attempt, now)

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def concerns(self, peer: PeerId) -> bool:
        """It has voted and has no answer yet."""
        return any(peer in sync.ballot.votes for sync in self._syncs.values())

    def all(self) -> list[Sync]:
        """Those that have not ended."""
        return list(self._syncs.values())

    def voting(self) -> list[Ballot[Claim]]:
        """The ballots that wait for votes."""
        return [sync.ballot for sync in self._syncs.values() if sync.stage is SyncStage.VOTING]

    def next_deadline(self) -> float | None:
        """When `advance` has something to do though nothing happened."""
        return min((sync.link_until for sync in self._syncs.values() if sync.stage is SyncStage.LINKING), default=None)

    def waited_for(self) -> list[PeerId]:
        """Those whose vote, or the end of whose transfer, others wait for."""
        return [
            peer
            for sync in self._syncs.values()
            for peer in (sync.ballot.missing() if sync.stage is SyncStage.VOTING else sync.unreported)
        ]
