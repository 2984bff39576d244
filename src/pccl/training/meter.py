"""The figures of a run: where the time went, how much moved, what the deltas look like.

Owns the clock of a run's peer, and the line of each round. Decides nothing, but for how many steps hide a reduction.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from pccl import PeerId
from pccl.training.group import Landed
from pccl.training.outer import Stepped
from pccl.training.rows import Row
from pccl.types import count_peers

log = logging.getLogger("pccl.training")


OF_A_ROUND = (
    "merged_round",
    "seconds",
    "waited_s",
    "waited_for",
    "loss",
    "steps",
    "delta_norm",
    "mean_norm",
    "cosine",
    "reduced_s",
    "bytes",
)
"""Figures that the last round gives: None before there was one."""


class Meter:
    """Of one peer."""

    def __init__(self, name_of: Callable[[PeerId], str]) -> None:
        self._name_of = name_of
        self.loss = 0.0
        self.tell_every = 1
        """A line for each so many rounds."""
        self.peers = 1
        """Of the last round."""
        self.dropped = 0
        """Rounds whose steps made here were lost."""
        self.sync_bytes = 0
        """That syncs have brought: what was not prefetched."""
        self.computed_s = self.waited_s = self.reduced_s = 0.0
        """Of the present round: in steps, in the run; and how long the last reduction took."""
        self._mark = self._began_at = time.monotonic()
        self._ended_at: float | None = None
        self._total_computed_s = self._computed_before_s = 0.0
        self._computing = False
        self._sent_bytes = self._received_bytes = 0
        self._round_bytes = 0
        self._tokens = 0
        self._speeds: dict[PeerId, float] = {}
        self._own_speed = 0.0
        self._last: dict[str, Any] = dict.fromkeys(OF_A_ROUND)

    # ── the clock ────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """The run is entered: what was before is no time of it."""
        self._mark = self._began_at = time.monotonic()
        self._ended_at = None

    def end(self) -> None:
        """The run is left: what follows is no time of it."""
        self.stop()
        if self._ended_at is None:
            self._ended_at = time.monotonic()

    def reset(self) -> None:
        """Count time and bytes from now on, without what came before."""
        self._began_at = time.monotonic()
        self._computed_before_s = self.so_far_s
        self._sent_bytes = self._received_bytes = self._tokens = 0

    def start(self) -> None:
        """Steps are made from now on."""
        now = time.monotonic()
        self.waited_s += now - self._mark
        self._mark, self._computing = now, True

    def stop(self) -> None:
        """The run is at work from now on."""
        if not self._computing:
            return
        now = time.monotonic()
        self.computed_s += now - self._mark
        self._total_computed_s += now - self._mark
        self._mark, self._computing = now, False

    @property
    def so_far_s(self) -> float:
        """How long steps were made here, up to now."""
        return self._total_computed_s + (time.monotonic() - self._mark if self._computing else 0.0)

    # ── what happened ────────────────────────────────────────────────────────────────────────────────────────────────

    def moved(self, landed: Landed) -> None:
        """A reduction is over."""
        self._sent_bytes += landed.info.tx_bytes
        self._received_bytes += landed.info.rx_bytes
        self._round_bytes += landed.info.tx_bytes
        if not landed.alone:
            self.reduced_s = landed.info.seconds

    def stepped(self, stepped: Stepped) -> None:
        """An outer step was taken."""
        self._last["mean_norm"], self._last["cosine"] = stepped

    def landed(self, number: int, landed: Landed, me: PeerId) -> None:
        """A round is over: one line, and the figures start again."""
        rows = dict(zip(landed.table.peers, landed.table.rows, strict=True))
        own, now = rows[me], time.monotonic()
        waited_s = self.waited_s + now - self._mark
        seconds = self.computed_s + waited_s
        self.peers = len(rows)
        self._learn_speeds(rows, me)
        self._tokens += own.tokens
        # All began together: the one that computed longest came last.
        slowest = max(rows, key=lambda peer: rows[peer].computed_s)
        losses = [row.loss for row in rows.values() if row.steps and row.loss]  # 0: it tells none
        self._last |= {
            "merged_round": number,
            "peers": len(rows),
            "seconds": seconds,
            "waited_s": waited_s,
            "waited_for": "" if slowest == me else self._name_of(slowest),
            "loss": sum(losses) / len(losses) if losses else 0.0,
            "steps": own.steps,
            "delta_norm": own.norm,
            "reduced_s": self.reduced_s,
            "bytes": self._round_bytes,
        }
        if number % self.tell_every == 0:
            self._tell(number, seconds, waited_s, landed)
        self.computed_s = self.waited_s = 0.0
        self._round_bytes, self._mark = 0, now

    def _tell(self, number: int, seconds: float, waited_s: float, landed: Landed) -> None:
        whom = f" for {self._last['waited_for']}" if self._last["waited_for"] else ""
        sent, took_s = landed.info.tx_bytes, landed.info.seconds  # Of the last reduction: a round may have several.
        rate = sent * 8 / 1e6 / took_s if took_s else 0.0
        loss = f", loss {self._last['loss']:.4g}" if self._last["loss"] else ""
        log.info(
            "round %d: %s, %.1f s, waited %.1f s%s, %.3g Mbit/s%s",
            number,
            "alone" if self.peers == 1 else count_peers(self.peers),
            seconds,
            waited_s,
            whom,
            rate,
            loss,
        )

    def _learn_speeds(self, rows: dict[PeerId, Row], me: PeerId) -> None:
        self._speeds = {peer: row.steps / row.computed_s for peer, row in rows.items() if row.computed_s and row.steps}
        self._own_speed = self._speeds.get(me, 0.0)
        shortest = [row.reduced_s for row in rows.values() if row.reduced_s]
        # The peer that came last has not waited for others: its time is that of the reduction.
        self._hidden_s = min(shortest, default=0.0)

    _hidden_s = 0.0

    # ── what follows ─────────────────────────────────────────────────────────────────────────────────────────────────

    def steps_to_hide(self) -> int:
        """How many steps the last reduction took."""
        return math.ceil(self._hidden_s * self._own_speed)

    def seconds_for(self, steps: int) -> float:
        """How long so many steps and a reduction will take."""
        return (steps / self._own_speed if self._own_speed else 0.0) + self.reduced_s

    def relative_speed(self) -> float:
        """Steps per second here, as a share of those of the fastest."""
        return min(1.0, self._own_speed / max(self._speeds.values(), default=1.0)) if self._own_speed else 1.0

    def metrics(self) -> dict[str, Any]:
        """As plain values."""
        wall_s = (time.monotonic() if self._ended_at is None else self._ended_at) - self._began_at
        computed_s = self.so_far_s - self._computed_before_s
        return {
            "peers": self.peers,
            "utilisation": computed_s / wall_s if wall_s else 0.0,
            "tokens_per_s": self._tokens / wall_s if wall_s else 0.0,
            "tx_bytes": self._sent_bytes,
            "rx_bytes": self._received_bytes,
            "dropped_rounds": self.dropped,
            "sync_bytes": self.sync_bytes,
            **self._last,
        }
