"""Where all peers of a run meet: candidates are let in, all hold one state, and a peer that was put out comes back.

Owns these, and what must be done again after them. Peers agree because each decides from committed rows alone. Must not
know how deltas are added up, or after which step anything is due.
"""

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn, optim

from pccl import CallMismatch, Communicator, ErrorFeedback, MembershipLost, PeerId, SharedState, SyncFailed, UsageError
from pccl.training.contents import Contents, contents_of
from pccl.training.data import Data
from pccl.training.equals import packed
from pccl.training.group import NOTHING, Flight, Since
from pccl.training.guards import Guards
from pccl.training.meter import Meter
from pccl.training.rows import Row
from pccl.training.schedules import as_one
from pccl.training.settings import Settings

log = logging.getLogger("pccl.training")

NONE = torch.zeros(0, dtype=torch.float64)
"""Nothing behind a row."""


def _check(what: str, given: object, kind: Any, wanted: str) -> None:
    if not isinstance(given, kind):
        raise UsageError(f"training: {what} must be {wanted}, got {given!r}")


class Again(Exception):
    """What all peers have just reduced must be reduced again, among others; the sentence says why."""


class Meetings(ABC):
    """One peer's part in them."""

    def __init__(
        self,
        place: str | Communicator,
        model: nn.Module,
        optimizer: optim.Optimizer | Sequence[optim.Optimizer],
        settings: Settings,
        scheduler: Any = None,
    ) -> None:
        self.settings = settings
        self._optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
        _check("the first argument", place, str | Communicator, "the master's host:port or a Communicator")
        _check("model", model, nn.Module, "a torch.nn.Module")
        several: list[object] = [*self._optimizers]
        for each in several or [None]:
            _check("optimizer", each, optim.Optimizer, "one of torch.optim, or a list of them")
        self._contents = self._contents_of(model)
        codec = settings.quantize
        self._feedback = ErrorFeedback(codec) if codec is not None and settings.with_feedback else None
        self._group = self._contents.group(place, self._feedback or codec)
        self._guards = Guards(settings, self._optimizers, self._group.name_of)
        self._meter = Meter(self._group.name_of)
        self.data = Data(self._group.name_of, self._contents.sharded)
        self._scheduler = as_one(scheduler)
        self._state: SharedState | None = None
        self._before: list[torch.Tensor] = []
        """What this peer has brought, until its group has agreed on a state."""
        self._flights: list[Flight] = []
        self._next = 0
        """The fragment that is launched next."""
        self._round = self._inner = self._clock = 0
        """Rounds of the run; steps since the last one ended; steps made here."""
        self._apart = torch.zeros(1, dtype=torch.int64)
        """The step of the run, less `sync_every` for each of its rounds: those before a resume had another number."""
        self._books = [("leases", self.data.words), ("steps", self._apart)]
        """What all count alike, beside the model."""
        self._quota = settings.sync_every
        self._rate = 0.0
        """The inner learning rate of the round's first step: later in it peers may be at different steps."""
        self._in_step = False
        """Called by the hook of a step, after which the loop still steps its scheduler."""
        self._tokens: int | None = None
        self._synced = False
        """This peer holds what its group has agreed on; then all peers of the group do."""
        self._among: tuple[PeerId, ...] = ()
        """Peers of the last round or meeting: of the same parties on all peers."""
        self._alone = False
        """No other peer took part in the last reduction."""
        self._wanted_since: int | None = None
        """The round whose reductions said that all peers shall meet: a candidate waits, or outer states differ."""
        self._launched_at: list[Since] = [NOTHING] * len(self._contents.fragments)
        """When each fragment was last launched."""
        if warning := settings.unstable():
            log.warning("%s", warning)

    def _contents_of(self, model: nn.Module) -> Contents:
        return contents_of(model, self._optimizers, self.settings)

    @abstractmethod
    def _row(self, fragment: int, norm: float) -> Row:
        """What this peer tells all others now."""

    @abstractmethod
    def _begin_round(self) -> None:
        """All peers are at the beginning of one."""

    @abstractmethod
    def _make_round(self) -> None:
        """Some hold steps that a round should have taken: all make it now, without delay."""

    @abstractmethod
    def _drop_flights(self) -> None:
        """What is under way is not waited for."""

    @property
    @abstractmethod
    def _covering(self) -> int:
        """The fragment with which a lease counts."""

    @property
    def _made(self) -> int:
        """Steps made here, without those that a GradScaler has left out."""
        return self._clock - self._contents.left_out

    def _count_step(self) -> None:
        """Another one is made here."""
        self._rate = self._rate if self._inner else self._rate_now
        self._inner += 1
        self._clock += 1
        self.data.stepped()

    @property
    def _step_of_round(self) -> int:
        """That of the run when the last round ended."""
        return self._round * self.settings.sync_every + int(self._apart)

    @property
    def _rate_now(self) -> float:
        return float(self._optimizers[0].param_groups[0]["lr"])

    @property
    def _so_far(self) -> Since:
        return self._made, self._tokens or 0, self._meter.so_far_s

    # ── where all peers meet ─────────────────────────────────────────────────────────────────────────────────────────

    def _guarded(self, action: Callable[[], None]) -> None:
        """Do this, and whatever it takes to have a place in the run again."""
        while True:
            try:
                action()
                return
            except Again as why:
                log.info("round %d is made again: %s", self._round + 1, why)
                self._give_up_flights()
                action = partial(self._meet, admit=True)
            except SyncFailed as why:  # The same on all peers that are left: they agree on what these hold.
                self._group.begin_again(why)
                self._give_up_flights()
                action = partial(self._meet, admit=False)
            except MembershipLost as lost:
                self._come_back(lost)
                action = partial(self._meet, admit=False)

    def _give_up_flights(self) -> None:
        """Before what they carry is reduced again, with the steps since. But not where samples are leased and the next
        lease is in use: one contribution counts the samples of one round. So those of both are given out again."""
        late = any(each.fragment == self._covering and each.round <= self._round for each in self._flights)
        self._drop_flights()
        if late and self.data.batch_size:
            self._drop_steps("what was under way is given up, and its samples are given out again")
            self._launched_at = [self._so_far] * len(self._launched_at)
            self._contents.take_over()

    def _come_back(self, lost: MembershipLost) -> None:
        """Join again, with the steps that no round has taken, if they can still count."""
        assert self._state is not None, "it was joined"
        flying = bool(self._flights)
        self._drop_flights()
        # The model has gone on from a delta that was under way; or samples were leased to a peer that is gone, and are
        # given out again. In streaming the model has some of those of the last round, too.
        if (flying and self.settings.overlap == "round") or (
            self.data.batch_size and (flying or self._inner or self.settings.fragments > 1)
        ):
            self._drop_steps()
            self._contents.take_over()
        self._synced = False
        self._state.tensors = self._contents.entries(self._books)
        self._bring()
        self._group.come_back(lost, self._state)

    def _bring(self) -> None:
        """Keep a copy of what is shared: before this peer is admitted, a prefetch may replace some of it, and all peers
        that hold the rest may be lost."""
        shared = self._contents.shared(self._books)
        self._before = [tensor.detach().to("cpu", copy=True) for _, tensor in shared]

    def _as_before(self) -> None:
        """No peer here holds a state that the run has agreed on: one is elected from what each has brought."""
        assert self._state is not None, "it was joined"
        if self._group.agreed(self._state.torn):
            log.warning("all peers that held the state of the run are gone; going on with what was here before")
            with torch.no_grad():
                for (_, tensor), before in zip(self._contents.shared(self._books), self._before, strict=True):
                    tensor.copy_(before)
            self._state.revision = self._round

    def _meet(self, admit: bool) -> None:
        """Let candidates in, know which peers are here, hold one state. A newcomer begins with the second. If some hold
        steps that no round has taken, all make that round now, the newcomers with nothing."""
        assert self._state is not None, "it was joined"
        self._next = 0
        if admit:
            if self._synced:
                # Revisions that are agreed on grow by one from sync to sync, and rounds went by without one. Agreed on
                # now, among peers that hold it, the present one cannot lose to what a newcomer brings.
                self._sync()
            self._group.admit()
        least = self.settings.min_peers
        here = self._group.roll_call(self._row(0, 0.0).pack(packed(self._contents.agreed())), least)
        self._among = here.table.peers
        count = len(self._among)
        # The first state is agreed on when enough are there: of all that these bring, the latest round's is taken.
        held = any(row.synced for row in here.table.rows)
        if not held:
            self._as_before()
            if count >= least:
                self._group.choose(self._state, here.table)
        if count >= least or held:
            self._sync()
        self._alone, self._wanted_since = here.alone, 0 if here.pending else None
        self._meter.peers = count
        if count < least:
            self._group.await_candidates(count, least)
            raise Again(f"{count} of {least} peers")
        self.data.called(here.table, self._round - (self.settings.fragments > 1))
        if any(row.holds for row in here.table.rows):
            self._make_round()
        else:
            self._begin_round()

    def _sync(self) -> None:
        """Hold what the group holds."""
        assert self._state is not None, "it was joined"
        self.data.settle(self._round)
        self.data.pack()
        self._state.tensors = self._contents.entries(self._books)
        with self._naming_settings():
            info = self._group.sync(self._state)
        self._meter.sync_bytes += info.rx_bytes
        taken_over = info.rx_bytes > 0 or self._state.revision != self._round
        if taken_over:
            if self._inner:
                self._drop_steps()
            self._round = self._state.revision
            self._contents.synced()
            self.data.unpack()
            if self._feedback is not None:
                self._feedback.reset()
            self._catch_up()
        # In streaming what a fragment's next delta carries began in the last round, unless the model is another now.
        if not self._inner and (taken_over or not self._synced):
            self._launched_at = [self._so_far] * len(self._launched_at)
        self._synced, self._before = True, []

    def _drop_steps(self, why: str = "this peer was put out, and others went on") -> None:
        log.warning("%d steps made here are in no round: %s", self._inner, why)
        self._meter.dropped += 1
        self._inner = 0

    @contextmanager
    def _naming_settings(self) -> Iterator[None]:
        """Entries that differ are named by the call itself, as the others have them; here with the own ones."""
        try:
            yield
        except CallMismatch as error:
            raise UsageError(
                f"{error}. The settings of all peers must be equal, and here they are: {self._contents.settings_here()}"
            ) from error

    def _catch_up(self) -> None:
        """Bring what follows from the step to that of the run."""
        if self._round:  # Before the first one the optimizers of all peers are fresh, and none rises alone.
            self._guards.warm_up()
        self._bring_scheduler(self._step_of_round - int(self._in_step))

    def _bring_scheduler(self, step: int) -> None:
        self._step_scheduler(step - getattr(self._scheduler, "last_epoch", step))

    def _step_scheduler(self, steps: int) -> None:
        """For steps of the run that are not made here."""
        if self._scheduler is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Torch has not seen them.
            for _ in range(steps):
                self._scheduler.step()
