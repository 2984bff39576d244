"""Batches that follow the membership: each peer iterates over what it has leased for the round.

Owns the way from leases to batches. Must not know how leases are agreed on.
"""

from collections.abc import Callable, Iterator
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

    def __init__(self, name_of: Callable[[PeerId], str]) -> None:
        self._name_of = name_of
        self.ledger: Ledger | ShardLedger = Ledger()
        self.words = torch.zeros(WORDS_MAX, dtype=torch.int64)
        """The ledger as newcomers get it."""
        self.batch_size = 0
        """0: no batches are wanted here."""
        self.ends = 0
        """Samples after which all stop; 0 for no end."""
        self.taken = 0
        """Samples of the present lease that were used."""
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
        self._leased = 0

    def landed(self, round: int, table: Table) -> None:
        """A round is committed; what follows from it waits until all peers are at the same place."""
        self._tables[round] = table

    def settle(self, round: int) -> None:
        """Count what rounds up to this one have used."""
        for number in sorted(each for each in self._tables if each <= round):
            _settle(self.ledger, number, self._tables[number])

    def begin(self, round: int, lag: int, me: PeerId) -> None:
        """Lease for a round, with the wants of the last one that all peers have merged by now."""
        self.settle(round - 1 - lag)
        known = [each for each in self._tables if each <= round - 1 - lag or self._called == each == round - 1]
        table = self._tables[max(known)]
        wants = {str(peer): row.wants for peer, row in zip(table.peers, table.rows, strict=True) if row.wants}
        if self.whole:
            wants = {peer: share_of(self.whole, len(wants), place) for place, peer in enumerate(sorted(wants))}
        if wants:
            self._choose_ledger(table)
            self.ledger.limit = max(row.ends for row in table.rows) or None
        self.ledger.lease(round, wants)
        if isinstance(self.ledger, ShardLedger):
            self.place = self.ledger.out.get(round, {}).get(me)
        else:
            self.spans = list(self.ledger.out.get(round, {}).get(me, ()))
        self.taken, self.drained, self._leased = 0, False, round
        self._tables = {each: kept for each, kept in self._tables.items() if each >= max(known)}

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

    _called = -1

    def called(self, round: int, table: Table) -> None:
        """All are here, and have settled all rounds: the wants of those that are here count."""
        self._tables = {round: table}
        self._called = round

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
        """From others."""
        self.ledger = _unpacked(self.words.tolist())


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
    """Lists of indices, one for each batch of this peer's lease for the present round: a `batch_sampler` for a
    DataLoader of your own, to be iterated over again in each round. `run.batches` does all of that."""

    def __init__(self, run: "Run", length: int, batch_size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        for name, value in (("length", length), ("batch_size", batch_size)):
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"ElasticSampler: {name} must be an integer from 1 on, got {value!r}")
        self._data, self._batch_size = run.data, batch_size
        self._data.batch_size = batch_size
        order = Shuffle(length, seed)
        self._index = order if shuffle else lambda position: position % length

    def __iter__(self) -> Iterator[list[int]]:
        positions = [each for begin, end in self._data.spans for each in range(begin, end)]
        for begin in range(self._data.taken, len(positions), self._batch_size):
            yield [self._index(each) for each in positions[begin : begin + self._batch_size]]


class Batches:
    """See `Run.batches`."""

    def __init__(self, run: "Run", dataset: Any, batch_size: int, epochs: int | None, **options: Any) -> None:
        if not hasattr(dataset, "__len__"):
            raise UsageError(
                "batches: dataset must have a length, got one that is iterable only; pass Shards(count, open), which "
                "says how its parts are read"
            )
        self._run, self._size = run, batch_size
        ways = {key: options.pop(key) for key in ("seed", "shuffle") if key in options}
        self._sampler = ElasticSampler(run, len(dataset), batch_size, **ways)
        run.data.ends = 0 if epochs is None else epochs * len(dataset)
        if options.get("num_workers"):
            options.setdefault("persistent_workers", True)
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._sampler, **options)

    def __iter__(self) -> Iterator[Any]:
        run = self._run
        while not run.data.ledger.done:
            yield from self._round(run.round)

    def _round(self, round: int) -> Iterator[Any]:
        """Until the lease is used, or the round is over."""
        data = self._run.data
        size = sum(end - begin for begin, end in data.spans)
        for batch in self._loader:
            used = min(self._size, size - data.taken)
            data.taken += used
            self._run.count_tokens(used)
            yield batch
            if self._run.round != round:
                return
        if self._run.round == round:
            self._run.finish_round()


class ShardBatches:
    """The same of a dataset that is read in order: see `Shards`."""

    def __init__(self, run: "Run", shards: Shards, batch_size: int, epochs: int | None, **options: Any) -> None:
        self._run, self._size = run, batch_size
        self._reader = Reader(shards, options.pop("seed", 0), options.pop("shuffle", True))
        self._collate = options.pop("collate_fn", default_collate)
        if options:
            given = ", ".join(options)
            raise UsageError(f"batches: {given} must be left out with Shards; the function passed to it may read ahead")
        run.data.batch_size, run.data.shards = batch_size, shards.count
        run.data.ends = 0 if epochs is None else epochs * shards.count

    def __iter__(self) -> Iterator[Any]:
        while not self._run.data.ledger.done:
            yield from self._round(self._run.round)

    def _round(self, round: int) -> Iterator[Any]:
        """Until the shard has come to its end, or the round is over."""
        run, data = self._run, self._run.data
        self._reader.go_to(data.place)
        while run.round == round and data.place is not None and not self._reader.drained:
            items = self._reader.take(self._size)
            data.taken += len(items)
            data.drained = self._reader.drained
            run.count_tokens(len(items))
            yield self._collate(items)
        if run.round == round:
            data.drained = data.place is not None
            run.finish_round()
