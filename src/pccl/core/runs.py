"""A peer's part in collectives: from its vote, through the run of its data plane, to the outcome that answers the call.

Owns the lending of lanes to runs. Every run that starts is reported exactly once, done or failed, and every call is
answered exactly once: after the outcome, or, when the membership is lost, after the data plane has let go of the
buffers. Knows nothing of how the membership came or went.
"""

from enum import Enum

from pccl.core.effects import (
    AbortRun,
    Answer,
    Committed,
    Failure,
    FailureKind,
    PeerEffect,
    Resolve,
    RunEnded,
    SendMaster,
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
    Start,
    ToMaster,
)
from pccl.core.outbox import clip
from pccl.core.violation import Violation
from pccl.types import PeerId, tag_name


class RunStage(Enum):
    """Where one of our collectives is."""

    VOTING = "voting"
    RUNNING = "running"
    REPORTED = "reported"
    ENDED = "ended"


RUN_STAGES: dict[RunStage, tuple[str, tuple[RunStage, ...]]] = {
    RunStage.VOTING: ("`Initiate` is sent", (RunStage.RUNNING, RunStage.REPORTED, RunStage.ENDED)),
    RunStage.RUNNING: ("the data plane has buffers and lanes", (RunStage.REPORTED, RunStage.ENDED)),
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
        self.attempt = 0
        self.epoch = 0
        self.ring: tuple[PeerId, ...] = ()

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

    @property
    def tags(self) -> list[int]:
        """Tags in flight."""
        return list(self._runs)

    def initiate(self, call: int, tag: int, spec: CollectiveSpec) -> None:
        """Vote for a collective; the caller has checked that the tag is free."""
        self._runs[tag] = Run(call, tag, spec)
        self._send(Initiate(tag, spec))

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
                run.attempt, run.epoch, run.ring = message.attempt, epoch, ring
                self._start(run, message)
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
            run.become(RunStage.REPORTED)
            self._send(Failed(run.tag, run.attempt, "a lane to a neighbour broke before the start"))
            return
        run.become(RunStage.RUNNING)
        self._effects.append(
            StartRun(run.call, run.tag, run.attempt, run.spec, rank, size, to_next, from_prev, start.segment_bytes)
        )

    def _learn_outcome(self, run: Run, outcome: Outcome, size: int) -> None:
        if run.stage is not RunStage.REPORTED or run.attempt != outcome.attempt:
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
        if loss is not None:
            self._end(run, loss)
            return
        run.become(RunStage.REPORTED)
        if event.cause:
            self._send(Failed(run.tag, run.attempt, clip(event.cause)))
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
