"""Batches that follow the membership: each peer iterates over what it has leased for the round.

Owns the way from leases to batches. Must not know how leases are agreed on.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, default_collate

from pccl import PeerId, UsageError
from pccl.training.leases import WORDS_MAX, Ledger, Shuffle, Span
from pccl.training.rows import Table
from pccl.training.shards import Place, Reader, ShardLedger, Shards

if TYPE_CHECKING:
    from pccl.training.run import Run


class Data:
    """The leases of one run, as this peer knows them: equal on all peers at the beginning of each round."""

    def __init__(self, name_of: Callable[[PeerId], str], sharded: bool) -> None:
        self._name_of, self._sharded = name_of, sharded
        self.ledger: Ledger | ShardLedger = Ledger()
        self.words = torch.zeros(WORDS_MAX, dtype=torch.int64)
        """The ledger as newcomers get it."""
        self.batch_size = 0
        """0: no batches are wanted here."""
        self.ends = 0
        """Samples after which all stop; 0 for no end."""
        self.taken = 0
        """Samples of the present lease that were used."""
        self.passes = 1
        """Batches that a step has taken here: a loop may accumulate the gradients of several."""
        self._passed = 0
        """Batches since the last step."""
        self.shards = 0
        """Of a dataset that is read in order; 0 for one whose samples are leased one by one."""
        self.drained = False
        """The shard that is leased has come to its end."""
        self.spans: list[Span] = []
        """The present lease of samples."""
        self.place: Place | None = None
        """The present lease of a shard."""
        self.whole = 0
        """Samples of a round that all peers take together; 0: each peer takes what it wants."""
        self._tables: dict[int, Table] = {}
        self._roll: Table | None = None
        """Of the last time that all peers met."""
        self._used_before = 0, False
        self.dealt = 0
        """How often something was leased here: batches of an earlier lease are over."""

    def check_whole(self, what: str) -> None:
        """A lease is of one peer, and peers that hold a model together must make equally many steps."""
        if self._sharded:
            raise UsageError(
                f"{what}: the model must lie whole in each process, got a sharded one; give each peer its samples with "
                "a loader of your own, and tell their number with count_tokens"
            )

    def claim(self, what: str, batch_size: int, length: int, epochs: int | None, shards: int = 0) -> int:
        """Lease samples of this dataset from now on. The position of its first one, behind those of the last dataset,
        which has come to its end."""
        if self.batch_size and not self.done:
            raise UsageError(
                f"{what}: a run leases samples of one dataset at a time, got another one before the first has come to "
                "its end; take a loader of your own for that, such as a plain DataLoader for validation"
            )
        if self.batch_size and (shards or self.shards):
            raise UsageError(
                f"{what}: Shards must be the only dataset of a run, got another one; make another run for it"
            )
        begin = self.ends
        self.batch_size, self.shards = batch_size, shards
        self.ends = 0 if epochs is None else begin + epochs * length
        return begin

    @property
    def done(self) -> bool:
        """All of the dataset that is leased here was used. Others may have gone on to the next one."""
        if isinstance(self.ledger, Ledger):
            return self.ends > 0 and self.ledger.used_to(self.ends)
        return self.ledger.done

    def take(self, samples: int) -> None:
        """A batch of the present lease is used."""
        self.taken += samples
        self._passed += 1

    def stepped(self) -> None:
        """The batches since the last step were for this one."""
        self.passes, self._passed = max(1, self._passed), 0

    def outran(self) -> None:
        """The lease has come to its end within a step, which takes more batches than it had for it."""
        self.passes = max(self.passes, 2 * self._passed)

    def used(self, before: bool) -> tuple[int, bool]:
        """Samples of the present lease that were used, and whether its shard has come to its end; or of the lease
        before it."""
        return self._used_before if before else (self.taken, self.drained)

    def landed(self, round: int, table: Table) -> None:
        """The lease of a round is committed; what follows from it waits until all peers are at the same place."""
        self._tables[round] = table

    def settle(self, round: int) -> None:
        """Count what rounds up to this one have used."""
        for number in sorted(each for each in self._tables if each <= round):
            _settle(self.ledger, number, self._tables[number])

    def begin(self, round: int, lag: int, me: PeerId) -> None:
        """Lease for a round, with the wants of the last one that all peers have merged by now."""
        self.settle(round - 1 - lag)
        known = max((each for each in self._tables if each <= round - 1 - lag), default=None)
        table = self._roll if known is None else self._tables[known]
        assert table is not None, "all have met before their first round"
        wants = {str(peer): row.wants for peer, row in zip(table.peers, table.rows, strict=True) if row.wants}
        if self.whole:
            wants = {peer: share_of(self.whole, len(wants), place) for place, peer in enumerate(sorted(wants))}
        if wants:
            self._choose_ledger(table)
            self.ledger.limit = max(row.ends for row in table.rows) or None
        # All peers were put out of this round, and have begun it again: what they had leased for it comes back.
        self.ledger.settle(round, {})
        self.ledger.lease(round, wants)
        self.dealt += 1
        if isinstance(self.ledger, ShardLedger):
            self.place = self.ledger.out.get(round, {}).get(me)
        else:
            self.spans = list(self.ledger.out.get(round, {}).get(me, ()))
        self._used_before = self.taken, self.drained
        self.taken, self.drained = 0, False
        self._tables = {each: kept for each, kept in self._tables.items() if known is None or each >= known}

    def _choose_ledger(self, table: Table) -> None:
        """Samples or shards: what all that lease anything have passed."""
        kinds = {row.shards: peer for peer, row in zip(table.peers, table.rows, strict=True) if row.wants}
        if len(kinds) > 1:
            told = ", ".join(
                f"{count or 'no'} shards at {self._name_of(peer)}" for count, peer in sorted(kinds.items())
            )
            raise UsageError(f"batches: all peers must pass the same dataset, got {told}; pass one everywhere")
        (count,) = kinds
        if count and not isinstance(self.ledger, ShardLedger):
            self.ledger = ShardLedger(count)

    def called(self, table: Table, round: int) -> None:
        """All are here, with nothing under way, and have settled all that is committed: the wants of those that are
        here count, and what was leased for rounds up to this one and is in none of them comes back."""
        for number in sorted(each for each in self.ledger.out if each <= round):
            self.ledger.settle(number, {})
        self._tables = {}
        self._roll = table

    def pack(self) -> None:
        """For newcomers."""
        self.words.copy_(torch.tensor(self.ledger.pack(), dtype=torch.int64))

    def saved(self) -> torch.Tensor:
        """For a checkpoint: all rounds that the outer state has count, and leases of peers that will be gone do not."""
        copy = _unpacked(self.ledger.pack())
        for number, table in sorted(self._tables.items()):
            _settle(copy, number, table)
        copy.forget_peers()
        return torch.tensor(copy.pack(), dtype=torch.int64)

    def unpack(self) -> None:
        """From others. What was used of the last lease here went with the model that theirs has replaced."""
        self.ledger = _unpacked(self.words.tolist())
        self._used_before = 0, False


def _unpacked(words: list[int]) -> Ledger | ShardLedger:
    ledger = ShardLedger(-words[0]) if words[0] < 0 else Ledger()
    ledger.unpack(words)
    return ledger


def _settle(ledger: Ledger | ShardLedger, round: int, table: Table) -> None:
    rows = dict(zip(table.peers, table.rows, strict=True))
    taken = {str(peer): row.taken for peer, row in rows.items()}
    ledger.settle(round, taken, {str(peer) for peer, row in rows.items() if row.drained})


def share_of(whole: int, parts: int, place: int) -> int:
    """One of so many parts, which differ by one at most."""
    return whole // parts + (place < whole % parts)


class ElasticSampler:
    """Lists of indices, one for each batch of this peer's lease for the present round: a `batch_sampler` for a loader
    of your own. What is trained on must be counted, so the loader is iterated over by `over`, which does that:

        sampler = ElasticSampler(run, len(dataset), 32, epochs=3)  # before the run is entered
        loader = DataLoader(dataset, batch_sampler=sampler)
        with run:
            for x, y in sampler.over(loader):

    Options are those of `run.batches`, which makes both."""

    def __init__(
        self,
        run: "Run",
        length: int,
        batch_size: int,
        *,
        epochs: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        for name, value in (("length", length), ("batch_size", batch_size)):
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"ElasticSampler: {name} must be an integer from 1 on, got {value!r}")
        run.data.check_whole("ElasticSampler")
        self._run, self._data, self._batch_size = run, run.data, batch_size
        self._begin = self._data.claim("ElasticSampler", batch_size, length, epochs)
        order = Shuffle(length, seed)
        self._index = order if shuffle else lambda position: position % length
        self._counted = False
        """`over` counts what comes of these lists."""

    def __iter__(self) -> Iterator[list[int]]:
        if not self._counted:
            raise UsageError(
                "ElasticSampler: its loader must be iterated over by `over`, which counts what was trained on, got a "
                "loop without it; write `for batch in sampler.over(loader)`"
            )
        positions = [each for begin, end in self._data.spans for each in range(begin, end)]
        size = self._size_of(len(positions))
        for begin in range(self._data.taken, len(positions), size):
            yield [self._index(each - self._begin) for each in positions[begin : begin + size]]

    def _size_of(self, lease: int) -> int:
        """Samples of a batch: of a `global_batch` one pass of this peer's share."""
        return max(1, -(-lease // self._run.settings.accumulate)) if self._data.whole else self._batch_size

    def over(self, loader: Iterable[Any]) -> Iterator[Any]:
        """What a loader makes of these lists, from lease to lease, until all that there is was used. It gives them in
        order, one batch for each list, and may read ahead."""
        self._counted = True
        while not self._data.done:
            yield from self._round(loader, self._data.dealt)

    def _round(self, loader: Iterable[Any], lease: int) -> Iterator[Any]:
        """Until the lease is used, or the round is over."""
        data = self._data
        size = sum(end - begin for begin, end in data.spans)
        for batch in loader:
            used = min(self._size_of(size), size - data.taken)
            data.take(used)
            self._run.count_tokens(used)
            yield batch
            if data.dealt != lease:
                return
        self._run.finish_round()


class Batches:
    """See `Run.batches`."""

    def __init__(self, run: "Run", dataset: Any, batch_size: int, epochs: int | None, **options: Any) -> None:
        if not hasattr(dataset, "__len__"):
            raise UsageError(
                "batches: dataset must have a length, got one that is iterable only; pass Shards(count, open), which "
                "says how its parts are read"
            )
        ways = {key: options.pop(key) for key in ("seed", "shuffle") if key in options}
        self._sampler = ElasticSampler(run, len(dataset), batch_size, epochs=epochs, **ways)
        if options.get("num_workers"):
            options.setdefault("persistent_workers", True)
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._sampler, **options)

    def __iter__(self) -> Iterator[Any]:
        return self._sampler.over(self._loader)


class ShardBatches:
    """The same of a dataset that is read in order: see `Shards`."""

    def __init__(self, run: "Run", shards: Shards, batch_size: int, epochs: int | None, **options: Any) -> None:
        self._run, self._size = run, batch_size
        self._reader = Reader(shards, options.pop("seed", 0), options.pop("shuffle", True))
        self._collate = options.pop("collate_fn", default_collate)
        if options:
            given = ", ".join(options)
            raise UsageError(f"batches: {given} must be left out with Shards; the function passed to it may read ahead")
        run.data.claim("batches", batch_size, shards.count, epochs, shards.count)

    def __iter__(self) -> Iterator[Any]:
        while not self._run.data.done:
            yield from self._round(self._run.data.dealt)

    def _round(self, lease: int) -> Iterator[Any]:
        """Until the shard has come to its end, or the round is over."""
        run, data = self._run, self._run.data
        self._reader.go_to(data.place)
        while data.dealt == lease and data.place is not None and not self._reader.drained:
            items = self._reader.take(self._size)
            data.take(len(items))
            data.drained = self._reader.drained
            run.count_tokens(len(items))
            yield self._collate(items)
        if data.dealt == lease:
            data.drained = data.place is not None
            run.finish_round()
