"""A training run, as its user meets it: a context manager around a loop that stays as it was.

Owns what users call and look at, saving, and the end of a process that is told to go. Does not know how
rounds are made.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self

import torch
from torch import nn, optim

from pccl import Communicator, MembershipLost, PCCLError, UsageError
from pccl.training.checkpoint import KEEP, Saver
from pccl.training.data import Batches, ShardBatches
from pccl.training.group import TimeIsOver
from pccl.training.notice import Notice
from pccl.training.rounds import Rounds
from pccl.training.settings import Settings
from pccl.training.shards import Shards

log = logging.getLogger("pccl.training")


class Run(Rounds):
    """What `DiLoCo` and its kin have in common; see there."""

    def __init__(
        self,
        place: str | Communicator,
        model: nn.Module,
        optimizer: optim.Optimizer | Sequence[optim.Optimizer],
        settings: Settings,
        scheduler: Any = None,
    ) -> None:
        super().__init__(place, model, optimizer, settings, scheduler)
        self._notice = Notice(settings.notice_s)
        self._saver: Saver | None = None
        self._told_to_go: Callable[[], None] | None = None

    # ── what a user looks at ─────────────────────────────────────────────────────────────────────────────────────────

    @property
    def round(self) -> int:
        """Rounds that the run has finished, those before this peer came included."""
        return self._round

    @property
    def step(self) -> int:
        """The step of the run: that of the last round's end, and those made here since."""
        return self._step_of_round + self._inner

    @property
    def round_step(self) -> int:
        """Steps made here since the last round's end."""
        return self._inner

    @property
    def communicator(self) -> Communicator:
        """The peer's membership, for calls that all peers make alike between rounds."""
        return self._group.communicator

    @property
    def parties(self) -> tuple[str, ...]:
        """Those that took part in the last round, by name, or in the meeting that let one in since: the same on all
        peers of all of them. A peer that has none is called by its id."""
        communicator = self.communicator
        return tuple(sorted(communicator.party_of(peer) for peer in self._among))

    def outer_digest(self) -> str:
        """Of all outer parameters and momentum: equal on all peers after each round."""
        return self._contents.digest()

    def outer_parameters(self) -> dict[str, torch.Tensor]:
        """A copy of what all peers hold alike, by name: float32 on the CPU. Of a sharded model what lies here."""
        return {name: each.clone() for name, each in self._contents.outer().items()}

    def sharded_outer_parameters(self) -> dict[str, Any]:
        """Of a sharded model what all parties hold alike, by name: DTensors of float32 on the CPU, of which this peer
        has its part. Empty if the model lies whole in each process."""
        return self._contents.sharded_outer()

    def metrics(self) -> dict[str, Any]:
        """Figures of the last round and of the whole time here, as plain values."""
        return {"round": self.round, "step": self.step, **self._meter.metrics()}

    def count_tokens(self, number: int) -> None:
        """Say how many tokens the steps since the last call have seen; then tokens weigh, not steps."""
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise UsageError(f"count_tokens: number must be an integer from 0 on, got {number!r}")
        self._tokens = (self._tokens or 0) + number

    def note_loss(self, loss: float) -> None:
        """The loss of a step, for the round's line and metrics."""
        self._meter.loss = float(loss)

    def batches(self, dataset: Any, batch_size: int, *, epochs: int | None = None, **options: Any) -> Iterable[Any]:
        """Batches of a dataset, in which each sample counts once in an epoch, however peers come and go: each peer
        leases what it needs for a round, and what no committed round has used is given out again. All peers pass the
        same dataset, `epochs` (None: without end), `seed` and `shuffle`; other options are those of a DataLoader. A
        dataset that can only be read in order is passed as `Shards`. Samples are counted as tokens. Call it before you
        enter the run; a peer that calls it later has no lease for its first round, and contributes nothing to that."""
        self.data.check_whole("batches")
        kind = ShardBatches if isinstance(dataset, Shards) else Batches
        return kind(self, dataset, batch_size, epochs, **options)

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that it takes to go on from the last round, as plain tensors and numbers."""
        feedback = None if self._feedback is None else self._feedback.state_dict()
        return {
            "round": self._round,
            "step": self._step_of_round,
            "settings": dict(self.settings.shared),
            **self._contents.state_dict(),
            "leases": self.data.saved(),
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
            "feedback": None if feedback is None else tensors_of(feedback["residuals"]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what was saved, also with another number of peers. Before the run is entered: the newest state of
        all peers is then what all have."""
        if self._state is not None:
            raise UsageError("load_state_dict: load before the run is entered; other peers train already")
        self._contents.load_state_dict(state)
        self._round = int(state["round"])
        every = int(state["settings"]["sync_every"])  # Before steps were saved, all rounds of a run had as many.
        self._apart.fill_(state.get("step", self._round * every) - self._round * self.settings.sync_every)
        self.data.words.copy_(state["leases"])
        self.data.unpack()
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        self._bring_scheduler(self.step)  # It was saved within a step, after which the loop has stepped it.
        alike = all(state["settings"].get(name) == self.settings.shared[name] for name in _DIVIDING)
        if self._feedback is not None and state["feedback"] is not None and alike:
            residuals = {tag: each.numpy() for tag, each in state["feedback"].items()}
            self._feedback.load_state_dict({"codec": str(self._feedback.codec), "residuals": residuals})

    def checkpoint(self, folder: str, every: int = 1, keep: int = KEEP) -> None:
        """Save after each round whose number `every` divides, beside the training; only the newest `keep` files stay.
        Also what SIGTERM saves. Checkpoints of later rounds than the run's are put aside when it is entered."""
        for name, value in (("every", every), ("keep", keep)):
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"checkpoint: {name} must be an integer from 1 on, got {value!r}")
        self._saver = self._contents.saver(folder, every, keep)
        if self._synced:
            self._saver.put_aside(self._round)

    def resume(self, folder: str) -> bool:
        """Load the newest checkpoint of a folder, before the run is entered; False if there is none."""
        state = self._contents.newest(folder, self.state_dict)
        if state is not None:
            self.load_state_dict(state)
        return state is not None

    def export_safetensors(self, path: str) -> None:
        """Write the outer parameters, whole and in float32, into a file of safetensors. Of a sharded model all peers of
        the party call it, between the same steps, and the first one writes."""
        self._contents.export(path)

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        self._meter.begin()
        self._guards.attach()
        self._state = self._contents.shared_state(self._round, self._books)
        self._bring()
        with self._naming_settings():
            self._group.join(self._state)
        try:
            self._guarded(lambda: self._meet(admit=False))
            self._attach()
            self._notice.watch(self._group.give_up)
            if self._saver is not None:
                self._saver.put_aside(self._round)
        except BaseException:
            self.leave()
            raise
        self._meter.start()
        return self

    def _attach(self) -> None:
        self._contents.attach(self.step_done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._state is not None:
                self._meter.stop()
                self._guarded(self._land_all)
        finally:
            self.leave()

    def leave(self) -> None:
        """Leave the run; the model stays as it is. Leaving the `with` block does the same, after what is under way."""
        self._contents.detach()
        self._guards.detach()
        self._notice.unwatch()
        self._group.end()  # First: what is under way would last until the slowest peer has come to it.
        self._drop_flights()
        self._meter.end()
        self._state = None
        if self._saver is not None:
            self._saver.finish()

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def step_done(self) -> None:
        """The optimizer has made a step. Called by its hook; call it yourself where hooks do not fire."""
        if self._state is None:
            raise UsageError("step_done: this run is not joined; enter it with `with`")
        self._count_step()
        due = any(flight.due <= self._clock for flight in self._flights)
        if due or self._inner >= self._offset(self._next) or self._hurried():
            self._meter.stop()
            self._in_step = True
            self._guarded(self._events)
            self._in_step = False
            self._meter.start()
        if self._is_told_to_go():
            self._heed_notice()

    def _is_told_to_go(self) -> bool:
        """Peers of a party learn of it at different steps, and must end with the same: that of a round's end."""
        if self._contents.sharded:
            return not self._inner and self._group.agreed(self._notice.given)
        return self._notice.given

    def _heed_notice(self) -> None:
        """Go on to the end of the round if there is time for it; then save, say goodbye, and end the process."""
        if self._inner and self._notice.allows(self._meter.seconds_for(self._quota - self._inner)):
            return
        log.warning("SIGTERM: leaving after round %d with %d steps in no round", self._round, self._inner)
        if self._told_to_go is None:
            self._save_and_exit()
        self._told_to_go()

    def when_told_to_go(self, act: Callable[[], None]) -> None:
        """Call this where SIGTERM would save and end the process, for a loop that has an end of its own: when the round
        is over, or cannot be finished in time. The loop then makes no further step, and leaves the run."""
        self._told_to_go = act

    def _save_and_exit(self) -> NoReturn:
        saver = self._saver
        if saver is not None:
            with contextlib.suppress(OSError):  # It was logged, and this one may do better.
                saver.finish()
            saver.save(self._round, self.state_dict())
        self._drop_flights()  # The others would have to reduce again; when the time is over, the run is left anyway.
        self.leave()
        raise SystemExit(0)

    def finish_round(self) -> None:
        """End this peer's part in the round now, with the steps that it has made."""
        if not self._inner:
            self.data.outran()
        self._meter.stop()
        self._guarded(self._rush)
        self._meter.start()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            super()._guarded(action)
        except PCCLError:
            if not self._notice.given or self._group.joined or self._contents.sharded:
                raise
            self._end_in_round()

    def _come_back(self, lost: MembershipLost) -> None:
        if isinstance(lost, TimeIsOver):  # At one of this party's peers, and all of them know.
            self._end_in_round()
        super()._come_back(lost)

    def _end_in_round(self) -> NoReturn:
        log.warning("SIGTERM: the time is over, and round %d is not", self._round + 1)
        self._group.end()
        self._save_and_exit()

    def _round_ended(self) -> None:
        if self._saver is not None and self._round % self._saver.every == 0:
            self._saver.save(self._round, self.state_dict())


def tensors_of(residuals: dict[int, Any]) -> dict[int, torch.Tensor]:
    """Residuals of error feedback as tensors, which a checkpoint may hold."""
    return {tag: torch.frombuffer(bytearray(each), dtype=_KINDS[each.typecode]) for tag, each in residuals.items()}


_DIVIDING = ("fragments", "bucket_bytes")
"""Settings that say which parameters are reduced together: what coding has lost of others is of no use."""

_KINDS = {"f": torch.float32, "d": torch.float64}
