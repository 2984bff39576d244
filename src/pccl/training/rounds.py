"""The rounds of a run: which fragment is launched and merged after which step.

Owns that cycle. Peers agree because each makes the same sequence of reductions, and decides from their committed rows
alone. Must not know how deltas are added up, how peers are reached, or what users call.
"""

import torch

from pccl.training.group import Flight, Landed
from pccl.training.meetings import NONE, Again, Meetings
from pccl.training.outer import Fragment
from pccl.training.rows import Row, halves, own_weight


class Rounds(Meetings):
    """One peer's part in them."""

    def _round_ended(self) -> None:
        """Another round is merged, or launched; before candidates are let in."""

    # ── what is due ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _rush(self) -> None:
        while not self._launch_next():
            pass

    def _events(self) -> None:
        """Whatever is due after this step: results first, so that what is decided from them is known."""
        if self.settings.overlap != "round":
            self._land_due()
        while self._inner >= self._offset(self._next) or self._hurried():
            if self._launch_next():
                break
        if self.settings.overlap != "round":
            self._land_due()

    def _hurried(self) -> bool:
        """Others have waited for what this peer does next as long as they should."""
        patience_s = self.settings.patience_s
        return patience_s is not None and self._group.awaited_s() > patience_s

    def _offset(self, fragment: int) -> int:
        """The step of the round after which a fragment is launched: spread evenly, the last one at its end."""
        return max(1, (fragment + 1) * self._quota // len(self._contents.fragments))

    # ── launch and land ──────────────────────────────────────────────────────────────────────────────────────────────

    def _launch_next(self) -> bool:
        """Launch the next fragment; True if that ended the round."""
        last = self._next == len(self._contents.fragments) - 1
        overlap, meet = self.settings.overlap, False
        if last and overlap not in (None, "round"):
            self._land_earlier()
        if last and overlap is not None:
            meet = self._shall_meet()
        self._launch(self._next, last)
        self._next += 1
        if not last:
            return False
        if overlap is None or meet:
            self._land_all()
        self._pass_over()
        self._end_round(self._shall_meet() if overlap is None else meet)
        return True

    def _shall_meet(self) -> bool:
        """Whether all peers shall meet at the end of this round: from reductions that all of them have merged by now,
        whatever the step at which each did. A peer alone asks."""
        if self._alone and self._wanted_since is None and self._group.candidates_wait():
            self._wanted_since = 0
        overlap = self.settings.overlap
        lag = 0 if overlap is None else 2 if overlap == "round" else 1
        return self._wanted_since is not None and self._wanted_since <= self._round + 1 - lag

    def _launch(self, number: int, last: bool) -> None:
        if last:
            self._contents.check_frozen()
        fragment = self._contents.fragments[number]
        flying = [flight for flight in self._flights if flight.fragment == number]
        while flying and self.settings.overlap != "round":  # This peer is early, and its last result is under way.
            self._land(flying.pop())
        delta = next(each for each in fragment.deltas if all(each is not flight.delta for flight in flying))
        norm = self._guards.clipped(delta, self._group.norm_of(fragment.measure(delta)), number)
        for flight in flying:  # With a round's delay the last result comes in here, after the delta was measured.
            self._land(flight)
        row = self._row(number, norm)
        if not row.finite:
            delta.zero_()
            if self.settings.overlap == "round":  # The model is set at once, and goes on with these optimizers.
                self._guards.reset_optimizers()
        if isinstance(fragment, Fragment) and fragment.start is not None:
            rates = self.settings.rates(self._meter.peers)
            fragment.step_ahead(delta, self._guards.share(self._meter.peers), *rates)
        delta.mul_(float(own_weight(row, self.settings.weigh)))
        flight = self._group.launch(number, delta, row.pack(self._beside(number, last)))
        flight.due, flight.round, flight.last = self._due(), self._round + 1, last
        flight.since = self._launched_at[number]
        self._launched_at[number] = self._so_far
        self._flights.append(flight)
        if self.settings.overlap == "round":
            fragment.write()

    def _beside(self, number: int, last: bool) -> torch.Tensor:
        """What travels behind the row."""
        return self._contents.buffer_values() if last else NONE

    def _due(self) -> int:
        """After which step what is launched now is merged."""
        match self.settings.overlap:
            case None:
                return self._clock
            case "round":
                return self._clock + self._quota
            case "auto":
                return self._clock + min(self._meter.steps_to_hide(), self._quota - 1)
            case steps:
                return self._clock + min(int(steps), self._quota - 1)

    @property
    def _streams(self) -> bool:
        return self.settings.fragments > 1

    @property
    def _covering(self) -> int:
        """The fragment with which a lease counts, the last one that carries steps of it. In streaming that is the last
        but one of the next round: the last one is launched at a round's end, the others have left out what followed."""
        return len(self._contents.fragments) - 1 - self._streams

    def _row(self, fragment: int, norm: float) -> Row:
        taken, drained = self.data.used(before=self._streams)
        steps, tokens, computed_s = self._launched_at[fragment]
        high, low = self._digest_of(fragment)
        finite = norm == norm and norm != float("inf")
        own = Row(
            round=self._round,
            tokens=(self._tokens or 0) - tokens,
            steps=self._made - steps,
            counts=int(self._tokens is not None),
            finite=int(finite),
            holds=int(self._inner > 0),
            synced=int(self._synced),
            digest_high=high,
            digest_low=low,
            loss=self._meter.loss,
            rate=self._rate if self._inner else self._rate_now,
            norm=norm if finite else 0.0,
            computed_s=self._meter.so_far_s - computed_s,
            waited_s=self._meter.waited_s,
            reduced_s=self._meter.reduced_s,
            wants=self.data.batch_size * self._quota * max(self.settings.accumulate, self.data.passes),
            ends=self.data.ends,
            taken=taken,
            shards=self.data.shards,
            drained=int(drained),
        )
        return self._group.together(own)

    def _digest_of(self, fragment: int) -> tuple[int, int]:
        return halves(self._contents.fragments[fragment].digest())

    def _land_due(self) -> None:
        for flight in [each for each in self._flights if each.due <= self._clock]:
            self._land(flight)

    def _land_earlier(self) -> None:
        for flight in [each for each in self._flights if each.round <= self._round]:
            self._land(flight)

    def _land_all(self) -> None:
        for flight in list(self._flights):
            self._land(flight)
            if self.settings.overlap == "round":
                self._contents.fragments[flight.fragment].write()

    def _land(self, flight: Flight) -> Landed:
        """Wait for a reduction, and take the outer step that all take."""
        landed = self._group_landed(flight)
        table, weights = landed.table, landed.table.weights(self.settings.weigh)
        fragment, total = self._contents.fragments[flight.fragment], sum(weights)
        own = table.rows[table.peers.index(self._group.me)]
        if total:
            rates = self.settings.rates(len(table.peers))
            self._meter.stepped(fragment.step(flight.delta, float(total), *rates))
        self._flights.remove(flight)
        self._guards.landed(flight.fragment, table, self._group.me, weights)
        if flight.fragment == self._covering:
            self.data.landed(flight.round - self._streams, table)
        if flight.last:
            self._among = table.peers
            self._contents.mean_buffers(table, weights)
            self._meter.landed(flight.round, landed, self._group.me)
        if self.settings.overlap != "round":
            fragment.write(self.settings.mix if own.finite and own.steps else 0.0)
            if not own.finite:
                self._spoiled()
        return landed

    def _spoiled(self) -> None:
        """The own delta was not finite: what made it so may be in the optimizers, and has been in every step since, so
        it is in all fragments. Left there, it would spoil the one that was just set."""
        self._guards.reset_optimizers()
        for fragment in self._contents.fragments:
            fragment.write()
        self._launched_at = [self._so_far] * len(self._launched_at)

    def _group_landed(self, flight: Flight) -> Landed:
        """Its result, if it counts."""
        landed = flight.land(self._group.me)
        table = landed.table
        self._meter.moved(landed)
        self._alone = landed.alone
        if landed.pending:
            self._want_to_meet(flight.round)
        if uncounted := table.uncounted(self.settings.weigh):
            self._guards.refuse_uncounted(uncounted, self._group.me)
            raise Again("a peer that does not count tokens is refused")
        if len(table.peers) < self.settings.min_peers:
            if self.settings.overlap != "round":
                raise Again(f"{len(table.peers)} of {self.settings.min_peers} peers")
            # The model has gone on from that delta: it counts, and the next round waits for more peers.
            self._want_to_meet(flight.round)
        if diverged := table.diverged():
            self._guards.tell_diverged(diverged, flight.round)
            self._want_to_meet(flight.round)
        return landed

    def _want_to_meet(self, number: int) -> None:
        self._wanted_since = number if self._wanted_since is None else min(self._wanted_since, number)

    def _drop_flights(self) -> None:
        for flight in reversed(self._flights):
            flight.drop()
            self._launched_at[flight.fragment] = flight.since
        self._flights.clear()

    def _end_round(self, meet: bool) -> None:
        self._round += 1
        self._inner = self._next = 0
        self._group.returns = 0
        if self._state is not None:
            self._state.revision = self._round
        self._round_ended()
        if meet:
            self._meet(admit=True)
        else:
            self._begin_round()

    def _begin_round(self) -> None:
        lag = (self.settings.overlap is not None) + self._streams
        self.data.begin(self._round + 1, lag, self._group.me)
        if self.settings.pace == "speed":
            self._quota = max(1, int(self.settings.sync_every * self._meter.relative_speed()))

    def _make_round(self) -> None:
        """All fragments at once, without delay."""
        last = len(self._contents.fragments) - 1
        for number in range(last + 1):
            self._launch(number, number == last)
        self._land_all()
        self._pass_over()
        self._end_round(False)

    def _pass_over(self) -> None:
        """The run is at the end of the round, however few steps of it were made here: so is the learning rate."""
        self._step_scheduler(self.settings.sync_every - self._inner)
