"""A peer's part in collectives: from its vote, through the work of its data plane, to the outcome and the answer.

Owns the lending of lanes to attempts. Every attempt that starts is reported exactly once, done or failed, and every
call is answered exactly once: after the outcome, or, when the membership is lost, after the data plane has let go of
the buffers. Knows nothing of how the membership came or went. (protocol.md, Collectives)
"""

from msgspec import Struct

from pccl.codec import contribution_bytes
from pccl.core.effects.peer_effects import (
    AbortAttempt,
    Answer,
    Committed,
    Failure,
    FailureKind,
    SendParcel,
    StartAttempt,
    StartExchange,
)
from pccl.core.effects.peer_events import AttemptEnded, CallCollective
from pccl.core.fields import CollectiveSpec
from pccl.core.messages.report import AttemptReport
from pccl.core.messages.to_master import Done, Failed, Initiate, Withdraw
from pccl.core.messages.to_peer import Abort, Outcome, RefusedCollective, Start, ToCollectives, Withdrawn
from pccl.core.peer.links import Links
from pccl.core.peer.outbox import Outbox
from pccl.core.rules.schedule import PARCELS_BYTES_MAX, PARCELS_KEPT_MAX, PARCELS_MAX
from pccl.core.staged import Stage, Staged
from pccl.core.text import ALONE, Violation, clip
from pccl.types import CollectiveKind, PeerId, count_peers, tag_name

UNUSED_MAX = 3
"""After this many parcels that were not used few more are sent until our links change: some pair of the group has no
link, so all of its collectives go over the ring."""

PROBE_EVERY = 64
"""Of the collectives after that, every so many-th sends one again: the missing link may be that of two others, and we
are not told when it comes."""


CAUSE_MAX, LOST_MAX = 256, 32
"""What an `AttemptReport` can carry."""


class AttemptStage(Stage):
    """Where one of our collectives is."""

    VOTING = "`Initiate` is sent", ("RUNNING", "REPORTED", "ENDED")
    RUNNING = "the data plane has buffers and lanes, or for an exchange buffers and parcels", ("REPORTED", "ENDED")
    REPORTED = "`Done` or `Failed` is sent; waits for the outcome", ("ENDED",)
    ENDED = "the call is answered", ()


class Attempt(Staged[AttemptStage]):
    """Our part in one collective."""

    def __init__(self, call: int, tag: int, spec: CollectiveSpec) -> None:
        super().__init__(AttemptStage.VOTING)
        self.call = call
        self.tag = tag
        self.spec = spec
        self.parcel = 0
        """The parcel in which our contribution left with our vote; 0 for none."""
        self.withdrawing: tuple[int, ...] = ()
        """Our votes for these tags, of which it is one, are to be taken back."""
        self.number = 0
        """Of the attempt that the master started; 0 while we have only voted."""
        self.epoch = 0
        self.ring: tuple[PeerId, ...] = ()
        self.lanes: tuple[int, ...] = ()
        """None of an exchange."""
        self.last = ""
        """The peer that voted last."""
        self.pending = False
        """Candidates waited when it was started."""
        self.cause = ""
        """Why our part ended without a result; empty as long as it has not."""
        self.digest = b""
        """Of our result."""


class Room(Struct, frozen=True):
    """What a new collective finds in the present epoch."""

    ring: tuple[PeerId, ...]
    tags_max: int
    parcel_bytes: int
    """Contributions of up to this length go along with the vote."""


class Collectives:
    """All our collectives that have no answer yet, by tag."""

    def __init__(self, me: PeerId, links: Links, outbox: Outbox) -> None:
        self._me = me
        self._links = links
        self._outbox = outbox
        self.threads = 1
        """That we have for each of them."""
        self._attempts: dict[int, Attempt] = {}
        self._last_parcel = 0
        self._kept: dict[int, int] = {}
        """The length of each parcel that others may still keep."""
        self._unused = 0
        """How many parcels in a row were sent and not used, since our links last changed."""
        self._skipped = 0

    @property
    def tags(self) -> list[int]:
        """Tags in flight."""
        return list(self._attempts)

    def objection(self, tag: int, room: Room) -> Failure | None:
        """Why there can be no collective with this tag now; None if there can."""
        if tag in self._attempts:
            reason = f"tag {tag} is in flight; wait for it, or choose another tag"
            return Failure(FailureKind.TAG_IN_USE, reason, tag)
        if len(self._attempts) >= room.tags_max:
            reason = f"{room.tags_max} collectives are in flight, which is all the master allows (tags_max); wait first"
            return Failure(FailureKind.USAGE, reason, tag)
        return Failure(FailureKind.TOO_FEW_PEERS, ALONE, tag) if len(room.ring) < 2 else None

    def initiate(self, call: int, request: CallCollective, ring: tuple[PeerId, ...], parcel_bytes: int) -> None:
        """Vote for a collective; the caller has checked that the tag is free. A short contribution goes along."""
        attempt = self._attempts[request.tag] = Attempt(call, request.tag, request.spec)
        if parcel_bytes >= _contribution_bytes(attempt.spec) > 0 and self._worth_it():
            self._send_parcel(attempt, tuple(peer for peer in ring if peer != self._me))
        self._outbox.send(Initiate(attempt.tag, attempt.spec, attempt.parcel))

    def _worth_it(self) -> bool:
        """Whether this collective sends a parcel: after some unused ones only every `PROBE_EVERY`-th does, since links
        of others may have changed. Counts the collectives that do not."""
        if self._unused < UNUSED_MAX:
            return True
        self._skipped = (self._skipped + 1) % PROBE_EVERY
        return self._skipped == 0

    def _send_parcel(self, attempt: Attempt, others: tuple[PeerId, ...]) -> None:
        lanes = self._links.express(others)
        in_use = [each.parcel for each in self._attempts.values() if each.parcel]
        apart = self._last_parcel - min(in_use, default=self._last_parcel)
        oldest = min([self._last_parcel + 1, *in_use])
        self._kept = {number: nbytes for number, nbytes in self._kept.items() if number >= oldest}
        nbytes = _contribution_bytes(attempt.spec)
        fits = sum(self._kept.values()) + nbytes <= PARCELS_BYTES_MAX
        if lanes is not None and len(in_use) < PARCELS_MAX and apart < PARCELS_KEPT_MAX - 1 and fits:
            self._last_parcel = attempt.parcel = self._last_parcel + 1
            self._kept[attempt.parcel] = nbytes
            self._outbox.add(SendParcel(attempt.tag, attempt.parcel, oldest, lanes, attempt.spec))

    def withdraw(self, calls: tuple[int, ...]) -> None:
        """The caller of all these waits no longer for a start. If one has started, all go on to their outcomes."""
        attempts = [attempt for attempt in self._attempts.values() if attempt.call in calls]
        voting = all(attempt.stage is AttemptStage.VOTING and not attempt.withdrawing for attempt in attempts)
        if len(attempts) == len(calls) and voting:
            tags = tuple(attempt.tag for attempt in attempts)
            for attempt in attempts:
                attempt.withdrawing = tags
            self._outbox.send(Withdraw(tags))

    def report(self, ring: tuple[PeerId, ...]) -> list[AttemptReport]:
        """All of them, for a master that knows of none."""
        return [
            AttemptReport(
                tag=attempt.tag,
                spec=attempt.spec,
                attempt=attempt.number,
                lanes=attempt.lanes,
                over=attempt.stage is AttemptStage.REPORTED,
                cause=attempt.cause[:CAUSE_MAX],
                digest=attempt.digest,
                lost=tuple(peer for peer in attempt.ring if peer not in ring)[:LOST_MAX],
            )
            for attempt in self._attempts.values()
        ]

    def resume(self) -> None:
        """There is another master. What was voted for counts as voted for again, but without the parcels: it cannot
        know over which links they went. Perhaps the last one was not asked any more to take a vote back."""
        voting = [attempt for attempt in self._attempts.values() if attempt.stage is AttemptStage.VOTING]
        for attempt in voting:
            attempt.parcel = 0
        for tags in dict.fromkeys(attempt.withdrawing for attempt in voting if attempt.withdrawing):
            self._outbox.send(Withdraw(tags))

    def links_changed(self) -> None:
        """What could not be sent to all others before perhaps can now."""
        self._unused = 0

    # ── from the master ─────────────────────────────────────────────────────────────────────────────────────────────

    def dispatch(self, message: ToCollectives, epoch: int, ring: tuple[PeerId, ...]) -> None:
        """The master sent this about one of our collectives, in this epoch with this ring."""
        if isinstance(message, Withdrawn):
            self._be_withdrawn(message)
            return
        attempt = self._attempts.get(message.tag)
        if attempt is None:
            raise Violation(f"{type(message).__name__} for tag {message.tag}, which is not in flight")
        match message:
            case Start():
                if attempt.stage is not AttemptStage.VOTING or message.epoch != epoch:
                    raise Violation(f"tag {attempt.tag} was started in epoch {message.epoch} while {attempt.stage}")
                if attempt.spec.kind is CollectiveKind.BROADCAST and attempt.spec.root not in ring:
                    raise Violation(f"tag {attempt.tag} was started without its root in the ring")
                attempt.number, attempt.epoch, attempt.ring, attempt.lanes = message.attempt, epoch, ring, message.lanes
                attempt.last = message.last
                attempt.pending = message.pending
                if attempt.parcel:
                    self._unused = self._unused + 1 if message.lanes else 0
                if message.lanes:
                    self._start(attempt, message)
                else:
                    self._start_exchange(attempt, message.parcels)
            case Abort(attempt=number):
                if attempt.stage is AttemptStage.RUNNING and attempt.number == number:
                    self._outbox.add(AbortAttempt(attempt.tag, number))
            case Outcome():
                self._learn_outcome(attempt, message, len(ring))
            case RefusedCollective() if attempt.stage is not AttemptStage.VOTING:
                raise Violation(f"tag {attempt.tag} was refused after it had started")
            case RefusedCollective(too_few=too_few, reason=reason):
                kind = FailureKind.TOO_FEW_PEERS if too_few else FailureKind.MISMATCH
                self._end(attempt, Failure(kind, reason, attempt.tag))

    def _be_withdrawn(self, message: Withdrawn) -> None:
        attempts = [attempt for attempt in self._attempts.values() if attempt.tag in message.tags]
        if len(attempts) != len(message.tags) or any(attempt.stage is not AttemptStage.VOTING for attempt in attempts):
            raise Violation(f"votes for tags {message.tags} were taken back after a start, or are none of ours")
        if any(attempt.withdrawing != message.tags for attempt in attempts):
            raise Violation(f"votes for tags {message.tags} were taken back, which we did not ask for")
        for attempt in attempts:
            self._end(attempt, Failure(FailureKind.TIMED_OUT, message.reason, attempt.tag, message.missing))

    def _start(self, attempt: Attempt, start: Start) -> None:
        if start.strands > min(self.threads, len(start.lanes)):
            raise Violation(
                f"tag {attempt.tag} was started in {start.strands} strands, with {len(start.lanes)} lanes and "
                f"{self.threads} threads"
            )
        rank, size, lanes = attempt.ring.index(self._me), len(attempt.ring), start.lanes
        to_next = self._links.lend(attempt.ring[(rank + 1) % size], lanes, attempt.number)
        from_prev = self._links.lend(attempt.ring[rank - 1], lanes, attempt.number)
        if to_next is None or from_prev is None:
            self._links.give_back(attempt.number, (), "")
            self._report_broken(attempt)
            return
        attempt.enter(AttemptStage.RUNNING)
        root = attempt.ring.index(attempt.spec.root) if attempt.spec.kind is CollectiveKind.BROADCAST else 0
        work = (attempt.call, attempt.tag, attempt.number, attempt.spec, rank, size)
        self._outbox.add(StartAttempt(*work, to_next, from_prev, start.segment_bytes, root, start.strands))

    def _start_exchange(self, attempt: Attempt, parcels: tuple[int, ...]) -> None:
        rank = attempt.ring.index(self._me)
        if len(parcels) != len(attempt.ring) or not attempt.parcel or parcels[rank] != attempt.parcel:
            raise Violation(f"tag {attempt.tag} was started with parcels that were not sent")
        others = [peer for peer in attempt.ring if peer != self._me]
        lanes = self._links.express(others)
        if lanes is None:
            self._report_broken(attempt)
            return
        attempt.enter(AttemptStage.RUNNING)
        where = dict(zip(others, lanes, strict=True))
        expected = tuple((where.get(peer), parcel) for peer, parcel in zip(attempt.ring, parcels, strict=True))
        self._outbox.add(StartExchange(attempt.call, attempt.tag, attempt.number, attempt.spec, rank, expected))

    def _report_broken(self, attempt: Attempt) -> None:
        attempt.enter(AttemptStage.REPORTED)
        attempt.cause = "a link to another peer broke before the start"
        self._outbox.send(Failed(attempt.tag, attempt.number, attempt.cause))

    def _learn_outcome(self, attempt: Attempt, outcome: Outcome, size: int) -> None:
        # A master that followed another one may abort what was started at others and not here: then we only voted.
        only_voted = attempt.stage is AttemptStage.VOTING and not outcome.committed
        if not only_voted and (attempt.stage is not AttemptStage.REPORTED or attempt.number != outcome.attempt):
            raise Violation(f"an outcome for tag {attempt.tag} attempt {outcome.attempt}, which has not been reported")
        if outcome.committed:
            told = (attempt.number, attempt.epoch, attempt.ring, PeerId(attempt.last), attempt.pending)
            self._end(attempt, Committed(*told, len(attempt.lanes)))
            return
        if attempt.number and not attempt.lanes:
            # Perhaps what the others received of one parcel differs: what is tried again goes over the ring, where each
            # part of the result is made by one peer.
            self._unused = UNUSED_MAX
        reason = (
            f"collective {tag_name(attempt.tag)} was aborted: {outcome.reason}. Its input is as it was and the group "
            f"is rewired with {count_peers(size)}: call it again"
        )
        self._end(attempt, Failure(FailureKind.ABORTED, reason, attempt.tag, outcome.lost))

    # ── from the data plane ─────────────────────────────────────────────────────────────────────────────────────────

    def ended(self, event: AttemptEnded, loss: Failure | None) -> None:
        """The data plane has let go: report, or answer at once if we are out of the run."""
        attempt = self._attempts[event.tag]
        assert attempt.number == event.attempt, "a tag has one attempt at a time, and it ends once"
        self._links.give_back(attempt.number, event.broken, event.cause)
        if event.cause and not attempt.lanes:
            # Perhaps the link is too slow for so many parcels: what is tried again goes over the ring.
            self._unused = UNUSED_MAX
        if loss is not None:
            self._end(attempt, loss)
            return
        attempt.enter(AttemptStage.REPORTED)
        if event.cause:
            attempt.cause = clip(event.cause)
            self._outbox.send(Failed(attempt.tag, attempt.number, attempt.cause))
        else:
            attempt.digest = event.digest
            self._outbox.send(Done(attempt.tag, attempt.number, attempt.digest, event.flow))

    def lose(self, loss: Failure) -> None:
        """We are out of the run: stop the attempts that run, and answer the rest now."""
        for attempt in list(self._attempts.values()):
            if attempt.stage is AttemptStage.RUNNING:
                self._outbox.add(AbortAttempt(attempt.tag, attempt.number))
            else:
                self._end(attempt, loss)

    # ── small helpers ────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self, attempt: Attempt, answer: Answer) -> None:
        attempt.enter(AttemptStage.ENDED)
        del self._attempts[attempt.tag]
        self._outbox.resolve(attempt.call, answer)


def _contribution_bytes(spec: CollectiveSpec) -> int:
    """What would go into a parcel; nothing for what is no sum over all peers."""
    if spec.kind is not CollectiveKind.ALL_REDUCE:
        return 0
    return contribution_bytes(spec.codec, spec.count, spec.dtype)
