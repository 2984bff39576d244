"""A peer's part in collectives: from its vote, through the run of its data plane, to the outcome that answers the call.

Owns the lending of lanes to runs. Every run that starts is reported exactly once, done or failed, and every call is
answered exactly once: after the outcome, or, when the membership is lost, after the data plane has let go of the
buffers. Knows nothing of how the membership came or went.
"""

from enum import Enum

from pccl.codec import contribution_bytes
from pccl.core.effects import (
    AbortRun,
    Answer,
    Collective,
    Committed,
    Failure,
    FailureKind,
    PeerEffect,
    Resolve,
    RunEnded,
    SendMaster,
    SendParcel,
    StartExchange,
    StartRun,
)
from pccl.core.lanes import Lanes
from pccl.core.messages import (
    Abort,
    CollectiveSpec,
    Done,
    Failed,
    Initiate,
    Outcome,
    RefusedCollective,
    RunReport,
    Start,
    ToMaster,
)
from pccl.core.outbox import clip
from pccl.core.schedule import PARCELS_KEPT_MAX, PARCELS_MAX
from pccl.core.violation import Violation
from pccl.types import CollectiveKind, PeerId, tag_name

IN_VAIN_MAX = 3
"""After this many parcels that were not used few more are sent until our links change: some pair of the group has no
link, so all of its collectives go over the ring."""

PROBE_EVERY = 64
"""Of the collectives after that, every so many-th sends one again: the missing link may be that of two others, and we
are not told when it comes."""


CAUSE_MAX, LOST_MAX = 256, 32
"""What a `RunReport` can carry."""


class RunStage(Enum):
    """Where one of our collectives is."""

    VOTING = "voting"
    RUNNING = "running"
    REPORTED = "reported"
    ENDED = "ended"


RUN_STAGES: dict[RunStage, tuple[str, tuple[RunStage, ...]]] = {
    RunStage.VOTING: ("`Initiate` is sent", (RunStage.RUNNING, RunStage.REPORTED, RunStage.ENDED)),
    RunStage.RUNNING: (
        "a run has buffers and lanes, or an exchange buffers and parcels",
        (RunStage.REPORTED, RunStage.ENDED),
    ),
    RunStage.REPORTED: ("`Done` or `Failed` is sent; waits for the outcome", (RunStage.ENDED,)),
    RunStage.ENDED: ("the call is answered", ()),
}
"""Meaning and successors of each stage; `docs/protocol.md` is checked against this table."""


class Run:
    """Our part in one collective."""

    def __init__(self, call: int, tag: int, spec: CollectiveSpec) -> None:
        self.call = call
        self.tag = tag
        self.spec = spec
        self.stage = RunStage.VOTING
        self.parcel = 0
        """The parcel in which our contribution left with our vote; 0 for none."""
        self.exchanged = False
        """It was started as an exchange."""
        self.attempt = 0
        self.epoch = 0
        self.ring: tuple[PeerId, ...] = ()
        self.lanes: tuple[int, ...] = ()
        self.cause = ""
        """Why our part ended without a result; empty as long as it has not."""

    def become(self, stage: RunStage) -> None:
        """Enter a stage; only the successors of the present one are possible."""
        assert stage in RUN_STAGES[self.stage][1], f"tag {self.tag}: {self.stage} cannot become {stage}"
        self.stage = stage


class Runs:
    """All our collectives that have no answer yet, by tag. Effects are appended to the list given."""

    def __init__(self, me: PeerId, lanes: Lanes, effects: list[PeerEffect]) -> None:
        self._me = me
        self._lanes = lanes
        self._effects = effects
        self._runs: dict[int, Run] = {}
        self._last_parcel = 0
        self._in_vain = 0
        """How many parcels in a row were sent and not used, since our links last changed."""
        self._held_back = 0

    @property
    def tags(self) -> list[int]:
        """Tags in flight."""
        return list(self._runs)

    def initiate(self, call: int, request: Collective, ring: tuple[PeerId, ...], parcel_bytes: int) -> None:
        """Vote for a collective; the caller has checked that the tag is free. A short contribution goes along."""
        run = self._runs[request.tag] = Run(call, request.tag, request.spec)
        if parcel_bytes >= _contribution_bytes(run.spec) > 0 and self._worth_it():
            self._send_parcel(run, tuple(peer for peer in ring if peer != self._me))
        self._send(Initiate(run.tag, run.spec, run.parcel))

    def _worth_it(self) -> bool:
        """After some in vain no parcel is sent, but for one now and then: links of others may have changed."""
        if self._in_vain < IN_VAIN_MAX:
            return True
        self._held_back = (self._held_back + 1) % PROBE_EVERY
        return self._held_back == 0

    def _send_parcel(self, run: Run, others: tuple[PeerId, ...]) -> None:
        lanes = self._lanes.express(others)
        in_use = [each.parcel for each in self._runs.values() if each.parcel]
        apart = self._last_parcel - min(in_use, default=self._last_parcel)
        if lanes is not None and len(in_use) < PARCELS_MAX and apart < PARCELS_KEPT_MAX - 1:
            self._last_parcel = run.parcel = self._last_parcel + 1
            self._effects.append(SendParcel(run.tag, run.parcel, min([run.parcel, *in_use]), lanes, run.spec))

    def recall(self, ring: tuple[PeerId, ...]) -> list[RunReport]:
        """All of them, for a master that knows of none."""
        return [
            RunReport(
                run.tag,
                run.spec,
                run.attempt,
                run.lanes,
                run.stage is RunStage.REPORTED,
                run.cause[:CAUSE_MAX],
                tuple(peer for peer in run.ring if peer not in ring)[:LOST_MAX],
            )
            for run in self._runs.values()
        ]

    def resume(self) -> None:
        """There is another master. What was voted for counts as voted for again, but without the parcels: it cannot
        know over which links they went."""
        for run in self._runs.values():
            if run.stage is RunStage.VOTING:
                run.parcel = 0

    def links_changed(self) -> None:
        """What could not be sent to everybody before perhaps can now."""
        self._in_vain = 0

    # ── the master's words ───────────────────────────────────────────────────────────────────────────────────────────

    def dispatch(
        self, message: Start | Abort | Outcome | RefusedCollective, epoch: int, ring: tuple[PeerId, ...]
    ) -> None:
        """What the master says about one of our collectives, in this epoch with this ring."""
        run = self._runs.get(message.tag)
        if run is None:
            raise Violation(f"{type(message).__name__} for tag {message.tag}, which is not in flight")
        match message:
            case Start():
                if run.stage is not RunStage.VOTING or message.epoch != epoch:
                    raise Violation(f"tag {run.tag} was started in epoch {message.epoch} while {run.stage.value}")
                if run.spec.kind is CollectiveKind.BROADCAST and run.spec.root not in ring:
                    raise Violation(f"tag {run.tag} was started without its root in the ring")
                run.attempt, run.epoch, run.ring, run.lanes = message.attempt, epoch, ring, message.lanes
                if run.parcel:
                    self._in_vain = self._in_vain + 1 if message.lanes else 0
                if message.lanes:
                    self._start(run, message)
                else:
                    self._start_exchange(run, message.parcels)
            case Abort(attempt=attempt):
                if run.stage is RunStage.RUNNING and run.attempt == attempt:
                    self._effects.append(AbortRun(run.tag, attempt))
            case Outcome():
                self._learn_outcome(run, message, len(ring))
            case RefusedCollective() if run.stage is not RunStage.VOTING:
                raise Violation(f"tag {run.tag} was refused after it had started")
            case RefusedCollective(too_few=too_few, reason=reason):
                kind = FailureKind.TOO_FEW_PEERS if too_few else FailureKind.MISMATCH
                self._end(run, Failure(kind, reason, run.tag))

    def _start(self, run: Run, start: Start) -> None:
        rank, size, lanes = run.ring.index(self._me), len(run.ring), start.lanes
        to_next = self._lanes.lend(run.ring[(rank + 1) % size], lanes, run.attempt)
        from_prev = self._lanes.lend(run.ring[rank - 1], lanes, run.attempt)
        if to_next is None or from_prev is None:
            self._lanes.give_back(run.attempt, (), "")
            self._report_broken(run)
            return
        run.become(RunStage.RUNNING)
        root = run.ring.index(PeerId(run.spec.root)) if run.spec.kind is CollectiveKind.BROADCAST else 0
        work = (run.call, run.tag, run.attempt, run.spec, rank, size)
        self._effects.append(StartRun(*work, to_next, from_prev, start.segment_bytes, root))

    def _start_exchange(self, run: Run, parcels: tuple[int, ...]) -> None:
        rank = run.ring.index(self._me)
        if len(parcels) != len(run.ring) or not run.parcel or parcels[rank] != run.parcel:
            raise Violation(f"tag {run.tag} was started with parcels that were not sent")
        others = [peer for peer in run.ring if peer != self._me]
        lanes = self._lanes.express(others)
        if lanes is None:
            self._report_broken(run)
            return
        run.become(RunStage.RUNNING)
        run.exchanged = True
        where = dict(zip(others, lanes, strict=True))
        expected = tuple((where.get(peer), parcel) for peer, parcel in zip(run.ring, parcels, strict=True))
        self._effects.append(StartExchange(run.call, run.tag, run.attempt, run.spec, rank, expected))

    def _report_broken(self, run: Run) -> None:
        run.become(RunStage.REPORTED)
        run.cause = "a link to another peer broke before the start"
        self._send(Failed(run.tag, run.attempt, run.cause))

    def _learn_outcome(self, run: Run, outcome: Outcome, size: int) -> None:
        # A master that followed another one may abort what was started at others and not here: then we only voted.
        unheard = run.stage is RunStage.VOTING and not outcome.committed
        if not unheard and (run.stage is not RunStage.REPORTED or run.attempt != outcome.attempt):
            raise Violation(f"an outcome for tag {run.tag} attempt {outcome.attempt}, which has not been reported")
        if outcome.committed:
            self._end(run, Committed(run.attempt, run.epoch, run.ring))
            return
        reason = (
            f"collective {tag_name(run.tag)} was aborted: {outcome.reason}. Its input is as it was and the group is "
            f"rewired with {size} peers: call it again"
        )
        lost = tuple(PeerId(peer) for peer in outcome.lost)
        self._end(run, Failure(FailureKind.ABORTED, reason, run.tag, lost))

    # ── the data plane's words ───────────────────────────────────────────────────────────────────────────────────────

    def ended(self, event: RunEnded, loss: Failure | None) -> None:
        """The data plane has let go: report, or answer at once if there is nobody to report to any more."""
        run = self._runs[event.tag]
        assert run.attempt == event.attempt, "a tag has one run at a time, and it ends once"
        self._lanes.give_back(run.attempt, event.broken, event.cause)
        if event.cause and run.exchanged:
            # Perhaps the link is too slow for so many parcels: what is tried again goes over the ring.
            self._in_vain = IN_VAIN_MAX
        if loss is not None:
            self._end(run, loss)
            return
        run.become(RunStage.REPORTED)
        if event.cause:
            run.cause = clip(event.cause)
            self._send(Failed(run.tag, run.attempt, run.cause))
        else:
            self._send(Done(run.tag, run.attempt))

    def lose(self, loss: Failure) -> None:
        """We are out of the run: stop what runs, and answer the rest now."""
        for run in list(self._runs.values()):
            if run.stage is RunStage.RUNNING:
                self._effects.append(AbortRun(run.tag, run.attempt))
            else:
                self._end(run, loss)

    # ── small helpers ────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self, run: Run, answer: Answer) -> None:
        run.become(RunStage.ENDED)
        del self._runs[run.tag]
        self._effects.append(Resolve(run.call, answer))

    def _send(self, message: ToMaster) -> None:
        self._effects.append(SendMaster(message))


def _contribution_bytes(spec: CollectiveSpec) -> int:
    """What would go into a parcel; nothing for what is no sum of everybody's."""
    if spec.kind is not CollectiveKind.ALL_REDUCE:
        return 0
    return contribution_bytes(spec.codec, spec.count, spec.dtype)
