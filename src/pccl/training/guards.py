"""What keeps one peer's accident from becoming that of all: deltas that are not finite or far too long, outer states
that differ, peers that count otherwise.

Owns these judgements, each made from rows that are the same on all peers. Must not know how rounds are scheduled.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import optim

from pccl import PeerId, UsageError
from pccl.training.contents import uncompiled
from pccl.training.rows import Table, median
from pccl.training.settings import Settings
from pccl.training.state import renew_state

log = logging.getLogger("pccl.training")

BAD_ROUNDS_MAX = 3
"""Rounds in a row with a delta that is not finite, before a peer gives up: its model and optimizer were reset each
time, so it is the data, the code or the learning rate."""


class Guards:
    """Of one peer."""

    def __init__(
        self, settings: Settings, optimizers: Sequence[optim.Optimizer], name_of: Callable[[PeerId], str]
    ) -> None:
        self._settings = settings
        self._name_of = name_of
        self._optimizers = optimizers
        self._medians: dict[int, float] = {}
        self._share: float | None = None
        self._bad, self._bad_round = 0, -2
        """Rounds in a row in which the own delta was not finite, of whatever fragment, up to this one."""
        self._told_rates = False
        self._warm_ups: list[_WarmUp] = []

    def share(self, peers: int) -> float:
        """What the own delta was of the last sum; before there was one, an equal part."""
        return 1.0 / max(1, peers) if self._share is None else self._share

    def clipped(self, delta: torch.Tensor, norm: float, fragment: int) -> float:
        """Shorten a delta that is far longer than most were in the last round; returns its norm."""
        if self._settings.clip is None or not self._medians.get(fragment) or not math.isfinite(norm):
            return norm
        limit = self._settings.clip * self._medians[fragment]
        if norm <= limit:
            return norm
        log.warning("the delta here has a norm of %.3g, and %.3g is allowed (clip): shortened to that", norm, limit)
        delta.mul_(limit / norm)
        return limit

    def landed(self, fragment: int, table: Table, me: PeerId, weights: list[int]) -> None:
        """Learn from a round."""
        rows = dict(zip(table.peers, table.rows, strict=True))
        used = [row.norm for row, weight in zip(table.rows, weights, strict=True) if weight]
        if used:
            self._medians[fragment] = median(used)
        own = weights[table.peers.index(me)]
        self._share = own / sum(weights) if own else None
        bad = [self._name_of(peer) for peer, row in rows.items() if not row.finite]
        if bad:
            log.error("the deltas of %s are not finite: left out of the round", ", ".join(bad))
        if not rows[me].finite:
            self._count_bad(rows[me].round)
        self._compare_rates(table)

    def _count_bad(self, number: int) -> None:
        if number != self._bad_round:
            self._bad = self._bad + 1 if number == self._bad_round + 1 else 1
            self._bad_round = number
        if self._bad >= BAD_ROUNDS_MAX:
            raise FloatingPointError(
                f"the delta of this peer was not finite in {self._bad} rounds in a row, though model and optimizer "
                "were reset after each; lower the learning rate, clip gradients, or look at the data here"
            )

    def _compare_rates(self, table: Table) -> None:
        rates = {row.rate: peer for peer, row in zip(table.peers, table.rows, strict=True) if row.steps}
        if len(rates) > 1 and not self._told_rates:
            self._told_rates = True
            text = ", ".join(f"{rate:g} at {self._name_of(peer)}" for rate, peer in rates.items())
            log.warning("inner learning rates differ: %s. Pass `scheduler=` for those that join", text)

    def reset_optimizers(self) -> None:
        """After a delta that was not finite: moments that are not finite would spoil the next round, too. All of that
        optimizer's state: moments of 0 with a count of many steps make steps that are several times too far, and what
        has spoiled one parameter may have left others with moments that take long to decay."""
        for optimizer in self._optimizers:
            values = [each for state in optimizer.state.values() for each in state.values()]
            if not all(bool(torch.isfinite(each).all()) for each in values if isinstance(each, torch.Tensor)):
                renew_state(optimizer)

    def tell_diverged(self, peers: list[PeerId], number: int) -> None:
        """Outer states differ, which only memory errors and foreign hands should bring about."""
        log.error(
            "round %d: the outer state of %s is not that of the others; all sync at the end of a round",
            number,
            ", ".join(map(self._name_of, peers)),
        )

    def refuse_uncounted(self, peers: list[PeerId], me: PeerId) -> None:
        """Some count tokens and some do not. Those that do not must go: steps and tokens cannot be added up."""
        if me in peers:
            raise UsageError(
                "weigh: contributions must be weighed by tokens on all peers, and this one counted none while others "
                'did; call run.count_tokens(n), use run.batches, or pass weigh="steps" everywhere'
            )
        log.error("%s count no tokens while others do: refused", ", ".join(map(self._name_of, peers)))

    # ── a fresh optimizer ────────────────────────────────────────────────────────────────────────────────────────────

    def attach(self) -> None:
        """Watch the steps of the optimizers. Not from within one: torch goes through their hooks there."""
        self.detach()
        if self._settings.warmup_steps:
            self._warm_ups = [_WarmUp(each, self._settings.warmup_steps) for each in self._optimizers]

    def detach(self) -> None:
        """Watch them no more."""
        while self._warm_ups:
            self._warm_ups.pop().end()

    def warm_up(self) -> None:
        """Let learning rates rise from near zero over the next steps, where an optimizer begins without state."""
        for each in self._warm_ups:
            each.begin()


class _WarmUp:
    """Scales the learning rates of one optimizer during some of its steps; between steps they are as they were."""

    def __init__(self, optimizer: optim.Optimizer, steps: int) -> None:
        self._optimizer = optimizer
        self._steps = self._made = steps
        self._rates: list[Any] = []
        """Those of the groups, while a step is made with others."""
        self._hooks = [
            optimizer.register_step_pre_hook(uncompiled(self._before)),
            optimizer.register_step_post_hook(uncompiled(self._after)),
        ]

    def begin(self) -> None:
        """From the next step on, also if the last warm-up is not over."""
        self._made = 0

    def end(self) -> None:
        """For good."""
        self._restore()
        for hook in self._hooks:
            hook.remove()

    def _before(self, *_: object) -> None:
        self._restore()  # The last step has failed, and the loop goes on.
        if self._made >= self._steps:
            return
        self._made += 1
        self._rates = [group["lr"] for group in self._optimizer.param_groups]
        for group in self._optimizer.param_groups:
            group["lr"] = group["lr"] * (self._made / (self._steps + 1))

    def _after(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        # A group that was added in between has its own.
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []
