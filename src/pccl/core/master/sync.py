"""Shared states of all groups, as the master sees them: votes, the election, transfers between peers, and the outcome.

A sync begins when every member of a group has voted, and is decided by one election. A peer that lacks what was elected
pulls it from a few holders at once; a holder that dies costs nothing while another lives. All members get the same
answer when the last transfer is over: in step, or call it again. Only peers that the election left out, or whose
state has another layout, get an answer of their own, and hold no peer up. Knows nothing of digests or bytes.

Rules: docs/protocol.md, "Shared state".
"""

from collections.abc import Iterable

from msgspec import Struct, structs

from pccl.core.effects.both import Note
from pccl.core.fields import Flow
from pccl.core.master.admission import Admission
from pccl.core.master.lanes import Lanes
from pccl.core.master.link import Link
from pccl.core.master.part import Common, Departure, Part, Wait
from pccl.core.master.recovery.restored import Restored
from pccl.core.master.roster import Member
from pccl.core.messages.to_master import SyncState
from pccl.core.messages.to_peer import RefusedSync, StartSync, Synced
from pccl.core.rights import Rights
from pccl.core.rules.ballot import Ballot
from pccl.core.rules.election import Elected, elect
from pccl.core.rules.ring import pair
from pccl.core.rules.schedule import transfer_lanes
from pccl.core.staged import Stage, Staged
from pccl.core.text import Violation, clip, names
from pccl.types import PeerId, short

HOLDERS_MAX = 4
"""Holders that serve one puller: several fill a link that one cannot, and one that dies is missed little."""

PULLERS_MAX = 64
"""Pullers for each holder in one sync: with a few lanes each as many connections and threads as a process bears. The
others are served in the next call, when the peers that have it by then are holders."""


class SyncStage(Stage):
    """Where a sync is in its life."""

    VOTING = "some members of the group have sent what they hold", ("LINKING", "ENDED")
    LINKING = (
        "all have, and one state was elected; links between pullers and holders are being made",
        ("RUNNING", "ENDED"),
    )
    RUNNING = "pullers pull from holders", ("ENDED",)
    ENDED = "every caller has its answer", ()


class Sync(Staged[SyncStage]):
    """One sync of one group."""

    def __init__(self, group: int, ballot: Ballot[SyncState]) -> None:
        super().__init__(SyncStage.VOTING)
        self.group = group
        self.ballot = ballot
        self.elected = Elected(None)
        self.sources: dict[PeerId, tuple[PeerId, ...]] = {}
        """By puller, the holders that serve it."""
        self.elected_at = self.link_until = 0.0
        self.attempt = 0
        self.unreported: dict[PeerId, None] = {}
        """Those whose transfer is not over."""
        self.failures: dict[PeerId, str] = {}
        """Pullers that do not hold what was elected, and why."""
        self.refused: dict[PeerId, str] = {}
        """Peers that the election left out, and why; sent with the other answers: none shall vote again meanwhile."""

    @property
    def claim(self) -> SyncState:
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
        holders = names(self.holders) or "no peer that is left"
        what = f"{self.ballot.question}: revision {self.claim.revision} goes from {holders}"
        if self.stage is SyncStage.LINKING:
            return f"{what} to {names(self.sources)}; links between them are being made"
        return f"{what} to {names(self.sources)}; not over at {names(self.unreported)}"


class Agreed(Struct, frozen=True):
    """What the last sync of a group put all its peers in step with."""

    claim: SyncState
    holders: tuple[PeerId, ...]
    """Those that held it when it was elected: what they know of its content is what they sent then."""


class Syncs(Part):
    """The syncs of all groups, at most one each."""

    def __init__(self, common: Common, admission: Admission, lanes: Lanes) -> None:
        super().__init__(common)
        self._lanes = lanes
        lanes.users.append(self)
        self._admission = admission
        self._syncs: dict[int, Sync] = {}
        self.agreed: dict[int, Agreed] = {}
        """What each group agreed on last."""
        self._first = 0
        """Transfers up to this number are those of an earlier master."""

    # ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def vote(self, member: Member, vote: SyncState, now: float) -> None:
        """A peer sends what it holds."""
        if self.concerns(member.peer):
            raise Violation("called sync_shared_state again before its answer")
        sync = self._syncs.get(member.group)
        if sync is not None and sync.stage is not SyncStage.VOTING:
            raise Violation("called sync_shared_state in the middle of one that it has no part in")
        if sync is None:
            ballot = Ballot[SyncState]("sync_shared_state", lambda: self._roster.ring(member.group))
            sync = self._syncs[member.group] = Sync(member.group, ballot)
        sync.ballot.cast(member.peer, vote, now)

    def restore(self, restored: Restored) -> None:
        """This is what the groups agreed on last, under an earlier master, which gave the numbers up to this one."""
        self.agreed = {group: Agreed(*each) for group, each in restored.agreed.items()}
        self._first = restored.number

    def report(self, member: Member, attempt: int, cause: str, flow: Flow) -> None:
        """A peer's transfer is over, well or not; that of one which an earlier master started is over anyway."""
        if attempt <= self._first:
            return
        sync = self._syncs.get(member.group)
        if sync is None or sync.attempt != attempt or member.peer not in sync.unreported:
            raise Violation(f"ended transfer {attempt}, in which it has no part left")
        del sync.unreported[member.peer]
        if member.peer not in sync.sources:
            self._lanes.add(member, flow)
        if cause and member.peer in sync.sources:
            sync.failures[member.peer] = cause
        # A holder that could not serve all its pullers still has what was elected: the pullers report themselves.

    def lose(self, gone: Departure) -> None:
        """An accepted peer is gone, with its vote, and with what it had to give or to get."""
        peer, group = gone.peer, gone.member.group
        if not self._roster.ring(group):
            self.agreed.pop(group, None)
        sync = self._syncs.get(group)
        if sync is None or not gone.accepted:
            return
        sync.ballot.forget(peer)
        sync.unreported.pop(peer, None)
        sync.failures.pop(peer, None)
        sync.sources = {
            puller: tuple(holder for holder in holders if holder != peer)
            for puller, holders in sync.sources.items()
            if puller != peer
        }
        if not sync.ballot.votes:
            self._end(sync, gone.now)

    def refuse_contradicting(self, ballot: Ballot[SyncState], reason: str, now: float) -> None:
        """Its voters wait for peers that wait in another call, and these for them."""
        self._outbox.send(ballot.votes, RefusedSync(True, reason))
        self._end(next(sync for sync in self._syncs.values() if sync.ballot is ballot), now)

    # ── progress ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, now: float) -> bool:
        """Elect when all have voted, start when the links stand, conclude when all transfers are over."""
        for sync in list(self._syncs.values()):
            if sync.stage is SyncStage.VOTING and sync.ballot.complete:
                self._elect(sync, now)
            if sync.stage is SyncStage.LINKING and (sync.link_until <= now or self._linked(sync)):
                self._start(sync, now)
            if sync.stage is SyncStage.RUNNING and not sync.unreported:
                self._conclude(sync, now)
        return False

    def _elect(self, sync: Sync, now: float) -> None:
        votes = sync.ballot.votes
        by_age = sorted(votes, key=lambda peer: self._roster.accepted[peer].seniority)
        agreed, claims = self.agreed.get(sync.group), {peer: votes[peer] for peer in by_age}
        unproved = [peer for peer in votes if Rights.BRING_STATE not in self._roster.accepted[peer].rights]
        sync.elected = elect(claims, None if agreed is None else agreed.claim.revision, unproved)
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
        sync.enter(SyncStage.LINKING)
        sync.attempt = self._roster.draw_number()
        sync.elected_at, sync.link_until = now, now + 2 * self._limits.link_timeout_s
        if sync.sources:
            self._outbox.note(Note(sync.explain(), "transfer"))
            ends = tuple(pair(puller, holder) for puller, holders in sync.sources.items() for holder in holders)
            self._admission.link_also(sync.attempt, sync.group, ends, now)

    def _choose(self, puller: PeerId, holders: tuple[PeerId, ...], turn: int) -> tuple[PeerId, ...]:
        """A few holders for a puller, linked ones first; where there are many, not the same few for all pullers."""
        turned = holders[turn % len(holders) :] + holders[: turn % len(holders)]
        links = self._admission.links
        return tuple(sorted(turned, key=lambda holder: not links.reaches_all(puller, (holder,))))[:HOLDERS_MAX]

    def _linked(self, sync: Sync) -> bool:
        """No link that a puller could use is still being made."""
        links = self._admission.links
        return not any(links.dials(puller, holders) for puller, holders in sync.sources.items())

    def _start(self, sync: Sync, now: float) -> None:
        """Every link stands, or has had its time: every puller that reaches a holder pulls."""
        links, group, claim = self._admission.links, sync.group, sync.claim
        work: dict[PeerId, list[PeerId]] = {}
        for puller, holders in sync.sources.items():
            reached = [holder for holder in holders if links.reaches_all(puller, (holder,))]
            if not reached:
                sync.failures[puller] = f"no link to {names(holders)}" if holders else "no holder was left for it"
                continue
            work[puller] = reached
            for holder in reached:
                work.setdefault(holder, []).append(puller)
        ends = [pair(peer, other) for peer, others in work.items() for other in others]
        lanes = transfer_lanes(links.lanes(ends) or 1, links.round_trip_s(group))
        start = StartSync(sync.attempt, True, (), lanes, claim.revision, claim.layout, claim.content)
        for peer, others in work.items():
            self._outbox.send((peer,), structs.replace(start, pull=peer in sync.sources, peers=tuple(others)))
        links.use(group, now)
        self._lanes.begin(group, now)
        if len(lanes) != links.ring_lanes(group):
            self._lanes.spoil(group)  # Of other numbers they tell nothing.
        sync.unreported = dict.fromkeys(work)
        sync.enter(SyncStage.RUNNING)

    def _conclude(self, sync: Sync, now: float) -> None:
        """The transfers of all peers are over."""
        claim, votes = sync.claim, sync.ballot.votes
        odd = {peer: reason for peer, reason in sync.refused.items() if peer in votes}
        # A puller that could look at the elected entries reports in what its own differ; the others hold them.
        odd |= {peer: cause for peer, cause in sync.failures.items() if votes[peer].layout != claim.layout}
        for peer, cause in odd.items():
            self._outbox.send((peer,), RefusedSync(True, clip(cause)))
        others = [peer for peer in votes if peer not in odd]
        failed = [f"{short(peer)}: {cause}" for peer, cause in sync.failures.items() if peer not in odd]
        reason = f"revision {claim.revision} did not reach everybody ({'; '.join(failed)}); call it again"
        if sync.sources:
            end = reason if failed else f"revision {claim.revision} has reached {names(sync.sources)}"
            seconds = now - sync.elected_at
            sentence = f"sync_shared_state: {end}, after {seconds:.1f} s"
            self._outbox.note(Note(sentence, "transferred", warns=bool(failed), seconds=seconds))
        if failed:
            self._outbox.send(others, RefusedSync(False, clip(reason)))
        else:
            self.agreed[sync.group] = Agreed(claim, sync.elected.holders)
            told = sync.attempt, claim.revision
            ticket = self._lead.tickets.of_state(self._lead.run, sync.group, *told, claim.layout, claim.content)
            self._outbox.send(others, Synced(*told, ticket))
        self._end(sync, now)

    def _end(self, sync: Sync, now: float) -> None:
        sync.enter(SyncStage.ENDED)
        del self._syncs[sync.group]
        # Not before: an end that closed its idle lanes would break the link of one that has not received the start.
        self._admission.unlink(sync.attempt, now)

    # ── questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def moves(self, group: int) -> bool:
        """A sync of the group uses its links, or is about to."""
        sync = self._syncs.get(group)
        return sync is not None and sync.stage is not SyncStage.VOTING

    def remade(self, link: Link) -> None:
        """Nothing is on its way over links before a transfer."""

    def concerns(self, peer: PeerId) -> bool:
        """It has voted and has no answer yet."""
        return any(peer in sync.ballot.votes for sync in self._syncs.values())

    def waits(self) -> list[Wait]:
        """The callers of each."""
        waits = []
        for sync in self._syncs.values():
            facts = sync.explain(), sync.ballot.since, sync.ballot.question, tuple(self._missing(sync))
            waits.append(Wait(tuple(sync.ballot.votes), *facts, works=self.moves(sync.group)))
        return waits

    def voting(self) -> list[Ballot[SyncState]]:
        """The ballots that wait for votes."""
        return [sync.ballot for sync in self._syncs.values() if sync.stage is SyncStage.VOTING]

    def shift_deadlines(self, missed_s: float, now: float) -> None:
        """Links may stand of which the reports are unread."""
        for sync in self._syncs.values():
            sync.link_until += missed_s

    def next_deadline(self) -> float | None:
        """When links have had their time."""
        return min((sync.link_until for sync in self._syncs.values() if sync.stage is SyncStage.LINKING), default=None)

    def waited_for(self) -> list[PeerId]:
        """Those whose vote, or the end of whose transfer, others wait for."""
        return [peer for sync in self._syncs.values() for peer in self._missing(sync)]

    def _missing(self, sync: Sync) -> Iterable[PeerId]:
        return sync.ballot.missing() if sync.stage is SyncStage.VOTING else sync.unreported
