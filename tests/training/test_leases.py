"""Each sample counts once in an epoch: the ledger alone under all that can happen, and runs whose peers come and go."""

import random
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from pccl import UsageError
from pccl.training import DiLoCo, ElasticSampler, Shards
from pccl.training.leases import Ledger, Shuffle
from pccl.training.shards import Reader, ShardLedger
from tests.patience import HANG_S

NAMES = [f"{number:032x}" for number in range(1, 7)]


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_an_epoch_is_a_permutation_and_the_next_another(length, seed):
    order = Shuffle(length, seed)
    first = [order(position) for position in range(length)]
    assert sorted(first) == list(range(length))
    assert sorted(order(length + position) for position in range(length)) == list(range(length))
    if length > 50:
        assert first != [order(length + position) for position in range(length)]
        assert first != list(range(length))


@given(st.integers(0, 2**32))
def test_every_position_is_used_once_whatever_is_lost(seed):
    dice = random.Random(seed)
    ledger, used, limit = Ledger(), [], dice.randrange(1, 400)
    ledger.limit = limit
    lag, tables, number = dice.randrange(3), {}, 0
    while not ledger.done:
        number += 1
        for settled in [each for each in tables if each <= number - 1 - lag]:
            ledger.settle(settled, tables.pop(settled))
        peers = dice.sample(NAMES, dice.randrange(1, 6))
        ledger.lease(number, {peer: dice.randrange(1, 40) for peer in peers})
        taken = {}
        for peer, spans in ledger.out.get(number, {}).items():
            if dice.random() < 0.2 and number < 300:
                continue  # It was lost, or put out.
            positions = [each for begin, end in spans for each in range(begin, end)]
            taken[peer] = len(positions) if dice.random() < 0.7 else dice.randrange(len(positions) + 1)
            used += positions[: taken[peer]]
        tables[number] = taken
        copy = Ledger(limit=limit)
        copy.unpack(ledger.pack())
        assert copy == ledger
        ledger = copy
        assert number < 5000
    assert sorted(used) == list(range(limit))


LENGTHS = [7, 0, 23, 1, 40, 12]
"""Of shards."""


def read(shard, offset):
    """Items of a shard, which are its number and their own."""
    return ((shard, number) for number in range(offset, LENGTHS[shard]))


ITEMS = sorted((shard, number) for shard, length in enumerate(LENGTHS) for number in range(length))


@given(st.integers(0, 2**32))
def test_every_item_of_every_shard_is_used_once_whatever_is_lost(seed):
    """Peers read on beside a round that is not settled yet; those that are lost in one come back as others."""
    dice = random.Random(seed)
    epochs, lag = dice.randrange(1, 3), dice.randrange(3)
    ledger, used, tables, number = ShardLedger(len(LENGTHS), epochs * len(LENGTHS)), [], {}, 0
    peers, names = {}, (f"{each:032x}" for each in range(1, 10**6))
    while not ledger.done:
        number += 1
        for settled in [each for each in tables if each <= number - 1 - lag]:
            ledger.settle(settled, *tables.pop(settled))
        while len(peers) < 1 + dice.randrange(4):
            peers[next(names)] = Reader(Shards(len(LENGTHS), read), 5, True)
        ledger.lease(number, dict.fromkeys(peers, 1))
        taken, drained = {}, set()
        for peer, reader in list(peers.items()):
            place = ledger.out.get(number, {}).get(peer)
            reader.go_to(place)
            items = reader.take(dice.randrange(15)) if place else []
            if dice.random() < 0.15 and number < 300:
                del peers[peer]  # It was lost, or put out.
                continue
            taken[peer] = len(items)
            used += [(place[0] // len(LENGTHS), item) for item in items]
            if place and reader.drained:
                drained.add(peer)
        tables[number] = taken, drained
        copy = ShardLedger(len(LENGTHS), ledger.limit)
        copy.unpack(ledger.pack())
        assert copy == ledger
        ledger = copy
        assert number < 5000
    assert sorted(used) == [(epoch, item) for epoch in range(epochs) for item in ITEMS]


class Counted(TensorDataset):
    """Samples that are their own number."""

    def __init__(self, length):
        super().__init__(torch.arange(length))


WAYS = [{}, {"overlap": 2}, {"overlap": "round"}, {"fragments": 2}, {"fragments": 2, "overlap": 1}]


def trainer(crew, dataset, **options):
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))  # two blocks, for as many fragments
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = DiLoCo(crew.address, model, optimizer, sync_every=4, **options)
    return run, model, optimizer


def learn(model, optimizer, numbers):
    optimizer.zero_grad()
    model(numbers.float().unsqueeze(1) / 100).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("inside", [False, True])
def test_all_peers_together_see_each_sample_once(crew, options, inside):
    dataset = Counted(500)
    made = [trainer(crew, dataset, min_peers=3, **options) for _ in range(3)]

    def act(number):
        run, model, optimizer = made[number]
        seen = []
        before = None if inside else run.batches(dataset, 7 + number, epochs=2)
        with run:
            for (numbers,) in run.batches(dataset, 7 + number, epochs=2) if before is None else before:
                seen += numbers.tolist()
                learn(model, optimizer, numbers)
            return seen, run.round

    told = crew.together(3, act)
    assert sorted(each for seen, _ in told for each in seen) == sorted([*range(500)] * 2)
    assert all(len(seen) > 50 for seen, _ in told)


def test_a_peer_that_leaves_in_a_round_gives_its_lease_back_and_a_newcomer_gets_one(crew):
    dataset, counted = Counted(600), []
    made = [trainer(crew, dataset, min_peers=3) for _ in range(4)]  # So that the rest wait for the newcomer.
    left = threading.Event()

    def act(number):
        run, model, optimizer = made[number]
        batches = run.batches(dataset, 5, epochs=1)
        if number == 3:
            left.wait(HANG_S)
        committed, current, round_seen = [], [], None
        with run:
            for place, (numbers,) in enumerate(batches):
                if round_seen != run.round:
                    committed, current, round_seen = committed + current, [], run.round
                current += numbers.tolist()
                if number == 2 and place == 9:
                    run.leave()  # In the middle of a round: its present lease is in no commit.
                    left.set()
                    return committed
                learn(model, optimizer, numbers)
            committed += current
        return committed

    told = crew.together(4, act)
    counted = sorted(each for seen in told for each in seen)
    assert counted == list(range(600))
    assert told[3]


class Book:
    """What peers took of their leases, and what of it was committed."""

    def __init__(self):
        self._took, self._taken = {}, {}

    def follow(self, run):
        landed = run.data.landed

        def count(round, table):
            rows = zip(table.peers, table.rows, strict=True)
            self._taken.setdefault(round, {peer: row.taken for peer, row in rows})
            landed(round, table)

        run.data.landed = count

    def note(self, run, numbers):
        leases = self._took.setdefault((run.round + 1, run.communicator.peer_id), {})
        leases.setdefault(run.data.dealt, []).extend(numbers.tolist())

    def used(self):
        """Of the lease that a peer was dealt last for a round."""
        return [
            number
            for round, counts in self._taken.items()
            for peer, count in counts.items()
            for number in [*self._took.get((round, peer), {0: []}).values()][-1][:count]
        ]


@pytest.mark.parametrize("options", [{}, {"overlap": 2}, {"fragments": 2}, {"fragments": 2, "overlap": 1}], ids=str)
def test_a_round_that_is_made_again_among_enough_peers_counts_each_sample_once(crew, options):
    """With overlap its result comes when samples of the next round are in use already."""
    dataset, book = Counted(300), Book()
    made = [trainer(crew, dataset, min_peers=3, **options) for _ in range(4)]
    left = threading.Event()

    def act(number):
        run, model, optimizer = made[number]
        batches = run.batches(dataset, 5, epochs=1)
        book.follow(run)
        if number == 3:
            left.wait(HANG_S)
        with run:
            for place, (numbers,) in enumerate(batches):
                book.note(run, numbers)
                if number == 2 and place == 8:  # After two rounds.
                    run.leave()
                    return left.set()
                learn(model, optimizer, numbers)
                assert run.round < 40, "what has come to its end goes on"
        return None

    crew.together(4, act)
    assert sorted(book.used()) == list(range(300))


@pytest.mark.parametrize("overlap", [None, 1])
def test_in_streaming_a_lease_counts_with_the_last_fragment_that_covers_it(crew, overlap):
    """That is the last but one of the next round: it carries the steps that were made after its launch in this one."""
    dataset = Counted(600)
    run, model, optimizer = trainer(crew, dataset, fragments=2, overlap=overlap)
    landed, land, counted, at = [], run._land, run.data.landed, []

    def note(flight):
        at.append((flight.round, flight.fragment))
        return land(flight)

    def count(number, table):
        landed.append((number, at[-1], [row.taken for row in table.rows]))
        counted(number, table)

    run._land, run.data.landed = note, count
    batches = iter(run.batches(dataset, 5, epochs=1))
    with run:
        while run.round < 4:
            learn(model, optimizer, *next(batches))
        assert [each for each in landed if each[0]][:2] == [(1, (2, 0), [20]), (2, (3, 0), [20])]
        kept = run.state_dict()["leases"].tolist()
        merged = run.data.ledger.limit
    ledger = Ledger(limit=merged)
    ledger.unpack(kept)
    # A checkpoint of round 4 has the first three leases; what fragments have of the fourth is not in the outer state.
    assert ledger.left() == 600 - 20 * len([each for each in landed if each[0]])
    assert not ledger.out


def test_workers_of_a_data_loader_may_read_ahead(crew):
    dataset = Counted(120)
    run, model, optimizer = trainer(crew, dataset)
    seen = []
    batches = run.batches(dataset, 6, epochs=1, num_workers=1)
    with run:
        for (numbers,) in batches:
            seen += numbers.tolist()
            learn(model, optimizer, numbers)
    assert sorted(seen) == list(range(120))
    assert run.round == 5


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_of_ones_own_counts_each_sample_once_also_when_it_reads_ahead(crew, workers):
    dataset = Counted(240)
    made = [trainer(crew, dataset, min_peers=2) for _ in range(2)]

    def act(number):
        run, model, optimizer = made[number]
        sampler, seen = ElasticSampler(run, len(dataset), 6, epochs=2), []
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
        with run:
            for (numbers,) in sampler.over(loader):
                seen += numbers.tolist()
                learn(model, optimizer, numbers)
        return seen

    told = crew.together(2, act)
    assert sorted(each for seen in told for each in seen) == sorted([*range(240)] * 2)
    assert all(told)


def test_a_loop_that_would_count_nothing_is_refused(crew):
    run, _, _ = trainer(crew, None)
    sampler = ElasticSampler(run, 40, 4)
    with pytest.raises(UsageError, match=r"for batch in sampler\.over\(loader\)"):
        next(iter(DataLoader(Counted(40), batch_sampler=sampler)))


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_shards_are_read_once_by_all_peers_together(crew, options):
    made = [trainer(crew, None, min_peers=3, **options) for _ in range(3)]

    def act(number):
        run, model, optimizer = made[number]
        seen = []
        batches = run.batches(Shards(len(LENGTHS), read), 3, epochs=2)
        with run:
            for shards, numbers in batches:
                seen += zip(shards.tolist(), numbers.tolist(), strict=True)
                learn(model, optimizer, numbers)
        return seen

    told = crew.together(3, act)
    assert sorted(each for seen in told for each in seen) == sorted([*ITEMS, *ITEMS])
    assert all(told)


def test_a_checkpoint_goes_on_where_a_shard_was_left(crew):
    first, model, optimizer = trainer(crew, None)
    seen = []
    batches = first.batches(Shards(len(LENGTHS), read), 3, epochs=1, shuffle=False)
    with first:
        for shards, numbers in batches:
            if first.round == 5:
                break
            seen += zip(shards.tolist(), numbers.tolist(), strict=True)
            learn(model, optimizer, numbers)
        kept = first.state_dict()
    again, model, optimizer = trainer(crew, None)
    again.load_state_dict(kept)
    batches = again.batches(Shards(len(LENGTHS), read), 3, epochs=1, shuffle=False)
    with again:
        for shards, numbers in batches:
            seen += zip(shards.tolist(), numbers.tolist(), strict=True)
            learn(model, optimizer, numbers)
    assert sorted(seen) == ITEMS


def test_samples_and_shards_do_not_go_together(crew):
    made = [trainer(crew, None, min_peers=2) for _ in range(2)]

    def act(number):
        run, model, optimizer = made[number]
        batches = run.batches(Shards(6, read) if number else Counted(50), 3)

        def train():
            with run:
                for batch in batches:
                    learn(model, optimizer, batch[0])

        with pytest.raises(UsageError, match=r"no shards at .*6 shards at"):
            train()

    crew.together(2, act)


def test_a_dataset_without_length_is_refused(crew):
    run, _, _ = trainer(crew, None)
    with pytest.raises(UsageError, match=r"must have a length.*Shards"):
        run.batches(iter([1, 2]), 3)
