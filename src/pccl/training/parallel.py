"""Data parallelism: every step is made by all peers together, with the mean of their gradients.

Owns when gradients are sent and waited for, which are the hooks of a step. A step is a round of one step: how peers
meet, are let in and come back is `rounds.py`. Must not know how gradients are laid out.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import torch
from torch import nn, optim

from pccl import Communicator, MembershipLost, UsageError
from pccl.training.data import share_of
from pccl.training.gradients import Gradients
from pccl.training.group import NOTHING, Flight, Landed
from pccl.training.run import Run
from pccl.training.settings import ParallelOptions, Settings

CHECK_EVERY = 100
"""Steps between two comparisons of all parameters, and between two lines in the log: a digest costs one pass over the
model, and a line a step would fill a log."""


class DataParallel(Run):
    """Train as one machine with a batch as large as those of all peers: each step is made with the mean of all peers'
    gradients, weighed by their tokens. Buckets of gradients travel while backward goes on.

        with DataParallel("master.example.org:48148", model, optimizer) as run:
            for x, y in loader:
                loss(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()

    The optimizer's step waits for the mean; call `run.reduce()` before it where gradients are clipped. `accumulate` is
    the number of backward passes in a step, `global_batch` a number of samples that all peers together take in a step,
    however many they are: `run.batches(dataset)` deals them out, a pass at a time, and `run.batch_size` is the share of
    this peer. Tokens are counted before backward. Other settings are those of `DiLoCo`."""

    def __init__(
        self,
        place: str | Communicator,
        model: nn.Module,
        optimizer: optim.Optimizer | Sequence[optim.Optimizer],
        *,
        scheduler: Any = None,
        **options: Unpack[ParallelOptions],
    ) -> None:
        self._stepping = False
        """Between the mean and the end of the optimizer's step."""
        super().__init__(place, model, optimizer, Settings.of_steps(type(self).__name__, options), scheduler)
        self._counts: dict[torch.Tensor, int] = {}
        """How often each parameter got a gradient in this step."""
        self._complete: Counter[int] = Counter()
        """Parameters of each bucket that have all of theirs."""
        self._since = NOTHING
        """Before this step."""
        self._meter.tell_every = CHECK_EVERY
        self.data.whole = self.settings.global_batch or 0

    def _contents_of(self, model: nn.Module) -> Gradients:
        self._gradients = Gradients(model, self._optimizers, self.settings)
        return self._gradients

    def _attach(self) -> None:
        self._gradients.watch(self._gradient, self.reduce, self.step_done)

    # ── what a user calls ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def batch_size(self) -> int:
        """Samples that this peer should take in the next step, of a `global_batch`."""
        if self.settings.global_batch is None:
            raise UsageError("batch_size: pass global_batch to divide it among the peers")
        ring = self.communicator.ring
        return share_of(self.settings.global_batch, len(ring), sorted(ring).index(self.communicator.peer_id))

    def batches(
        self, dataset: Any, batch_size: int | None = None, *, epochs: int | None = None, **options: Any
    ) -> Iterable[Any]:
        """See `DiLoCo`. With a `global_batch` leave `batch_size` out: this peer's share is as many batches as there are
        backward passes in a step."""
        whole = self.settings.global_batch
        if (batch_size is None) == (whole is None):
            raise UsageError(f"batches: pass batch_size or global_batch, got {batch_size} and {whole}")
        return super().batches(dataset, batch_size or whole or 0, epochs=epochs, **options)

    def count_tokens(self, number: int) -> None:
        """Say how many tokens the next backward sees; then tokens weigh, not steps."""
        if self._flights or self._stepping:
            raise UsageError("count_tokens: call it before backward; gradients are on their way with their weight")
        super().count_tokens(number)

    def finish_round(self) -> None:
        """Take the step that the others take, with the backward passes that were made for it here, if any."""
        if not self._counts:
            self._forget_gradients()
        for optimizer in self._optimizers:
            optimizer.step()
        self._forget_gradients()  # The loop, which has not made this step, does not.
        if self._scheduler is not None:
            self._scheduler.step()

    def _forget_gradients(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    # ── a step ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _gradient(self, number: int, parameter: torch.Tensor) -> None:
        """A parameter has its gradient; that of the last of a bucket sends it off."""
        passes = self._counts[parameter] = self._counts.get(parameter, 0) + 1
        if passes > self.settings.accumulate:
            raise UsageError(
                f"DataParallel: there must be {self.settings.accumulate} backward passes in a step, got one more; "
                "pass accumulate, or let the optimizer make its step. A GradScaler, which may not, is not for it"
            )
        self._complete[number] += passes == self.settings.accumulate
        if self._complete[number] == len(self._gradients.buckets[number].parameters):
            self._open()
            with contextlib.suppress(MembershipLost):  # What is wrong is met where all peers are waited for.
                self._send(number)

    def _open(self) -> None:
        if not self._inner:
            self._since = self._launched_at[0]
            self._count_step()

    def _send(self, number: int) -> None:
        if self._inner:
            self._launched_at[number] = self._since  # As it was, if the step is made again.
        self._launch(number, number == len(self._gradients.buckets) - 1)

    def reduce(self) -> None:
        """Wait until the gradients are the mean of all peers'. The optimizer's step does so by itself."""
        if self._stepping:
            return
        if self._state is None:
            raise UsageError("reduce: this run is not joined; enter it with `with`")
        self._check_unchanged()
        self._meter.stop()
        self._stepping = True
        if any(each.grad is not None for bucket in self._gradients.buckets for each in bucket.parameters):
            self._open()
        self._guarded(self._reduce)
        for bucket in self._gradients.buckets:
            bucket.deliver()
        self._meter.start()

    def _check_unchanged(self) -> None:
        """What was done to gradients after they were sent would be lost, or be done to a mean of other gradients."""
        changed = [name for flight in self._flights for name in self._gradients.buckets[flight.fragment].changed()]
        if changed:
            raise UsageError(
                f"DataParallel: gradients must stay as backward left them until they are the mean of all peers', got a "
                f"change of {changed[0]!r}; call run.reduce() before you clip them. A GradScaler is not for it: scales "
                "differ from peer to peer; use bfloat16, or DiLoCo"
            )
        if any(hasattr(optimizer, "found_inf") for optimizer in self._optimizers):
            raise UsageError(
                "DataParallel: gradients must not be scaled, got an optimizer under a GradScaler: scales differ from "
                "peer to peer; use bfloat16, or DiLoCo"
            )

    def _reduce(self) -> None:
        under_way = {flight.fragment for flight in self._flights}
        for number in range(len(self._gradients.buckets)):
            if number not in under_way:
                self._send(number)
        self._flights.sort(key=lambda flight: flight.fragment)
        self._land_all()

    def step_done(self) -> None:
        """The optimizer has made its step. Called by its hook; call it yourself where hooks do not fire, and `reduce`
        before the step."""
        self.reduce()
        self._stepping = False
        self._counts.clear()
        self._complete.clear()
        self._meter.stop()
        self._in_step = True
        self._guarded(lambda: self._end_round(self._shall_meet()))
        self._in_step = False
        self._meter.start()
        if self._notice.given:
            self._heed_notice()

    # ── what is other than in rounds of many steps ───────────────────────────────────────────────────────────────────

    def _meet(self, admit: bool) -> None:
        super()._meet(admit)
        if self._stepping:
            self._reduce()

    def _make_round(self) -> None:
        """Those that hold gradients send them again; a newcomer computes its own first, and has no lease for them."""

    def _land(self, flight: Flight) -> Landed:
        landed, bucket = super()._land(flight), self._gradients.buckets[flight.fragment]
        weights = landed.table.weights(self.settings.weigh)
        counted = [extra for extra, weight in zip(landed.table.extras, weights, strict=True) if weight]
        bucket.used = [any(bool(extra[place]) for extra in counted) for place in range(len(bucket.parameters))]
        return landed

    def _beside(self, number: int, last: bool) -> torch.Tensor:
        return torch.cat([self._gradients.buckets[number].present(), super()._beside(number, last)])

    def _digest_of(self, fragment: int) -> tuple[int, int]:
        return (0, 0) if self._round % CHECK_EVERY else super()._digest_of(fragment)

    def _spoiled(self) -> None:
        """Gradients were left out before an optimizer has seen them."""
