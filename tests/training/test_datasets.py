"""A run leases samples of one dataset at a time: a second one is refused until the first has come to its end."""

import threading

import pytest

from pccl import UsageError
from pccl.training import DataParallel, ElasticSampler, Shards
from tests.patience import HANG_S
from tests.training.test_leases import Counted, learn, trainer
from tests.training.test_parallel import make

FIRST, SECOND = 40, 23


def test_a_second_dataset_is_refused_while_the_first_one_is_leased(crew):
    run, model, optimizer = trainer(crew, None)
    batches = run.batches(Counted(FIRST), 4, epochs=1)
    seen = []
    for again in (
        lambda: run.batches(Counted(SECOND), 4, epochs=1),
        lambda: run.batches(Shards(3, lambda *_: ()), 4),
        lambda: ElasticSampler(run, SECOND, 4),
    ):
        with pytest.raises(UsageError, match=r"one dataset at a time.*loader of your own"):
            again()
    with run:
        for (numbers,) in batches:
            seen += numbers.tolist()
            learn(model, optimizer, numbers)
    assert sorted(seen) == list(range(FIRST))


@pytest.mark.parametrize("options", [{}, {"overlap": 2}, {"overlap": "round"}, {"fragments": 2}], ids=str)
def test_one_that_has_come_to_its_end_may_be_followed_by_another(crew, options):
    """Each sample of each counts once; a peer that joins during the second passes over the first."""
    made = [trainer(crew, None, min_peers=2, **options) for _ in range(3)]
    begun, joined, epochs = threading.Event(), threading.Event(), 3 if options else 60

    def act(number):
        run, model, optimizer = made[number]
        if number == 2:
            assert begun.wait(HANG_S)
        seen, batches = [], run.batches(Counted(FIRST), 3, epochs=2)
        with run:
            if number == 2:
                joined.set()
            for part in range(2):
                seen.append([])
                for (numbers,) in batches if not part else run.batches(Counted(SECOND), 2, epochs=epochs, seed=part):
                    seen[part] += numbers.tolist()
                    learn(model, optimizer, numbers)
                    if part and not options:  # A newcomer takes a while: until it is here they go slowly.
                        begun.set()
                        joined.wait(0.1)
        return seen

    told = crew.together(3 if not options else 2, act)
    assert sorted(each for first, _ in told[:2] for each in first) == sorted([*range(FIRST)] * 2)
    assert sorted(each for _, second in told for each in second) == sorted([*range(SECOND)] * epochs)
    assert all(second and not first for first, second in told[2:])


def test_so_it_may_with_data_parallel(crew):
    made = [make(crew, min_peers=2, global_batch=7) for _ in range(2)]

    def act(number):
        run, model, optimizer = made[number]
        assert isinstance(run, DataParallel)
        seen = []
        with run:
            for length in (FIRST, SECOND):
                for (numbers,) in run.batches(Counted(length), epochs=1):
                    seen += numbers.tolist()
                    optimizer.zero_grad()
                    model(numbers.float().unsqueeze(1).expand(-1, 6) / 100).square().mean().backward()
                    optimizer.step()
        return seen

    told = crew.together(2, act)
    assert sorted(each for seen in told for each in seen) == sorted([*range(FIRST), *range(SECOND)])


def test_what_is_read_in_order_follows_nothing(crew):
    run, model, optimizer = trainer(crew, None)
    batches = run.batches(Counted(FIRST), 10, epochs=1)
    with run:
        for (numbers,) in batches:
            learn(model, optimizer, numbers)
        with pytest.raises(UsageError, match="make another run"):
            run.batches(Shards(3, lambda *_: ()), 4)
