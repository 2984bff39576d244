"""Loops that make a step of several backward passes, over batches that the run leases: every sample's gradient counts,
and a step is the optimizer's."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from pccl.training import DataParallel, DiLoCo, Shards
from tests.training.test_leases import Counted

SAMPLES, BATCH, EVERY = 60, 4, 3


class Marked(nn.Module):
    """With a parameter for each sample: its gradient is 1, once."""

    def __init__(self):
        super().__init__()
        self.marks = nn.Parameter(torch.zeros(SAMPLES))

    def take(self, numbers):
        self.marks[numbers].sum().backward()


def parallel(crew, **options):
    model = Marked()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    # Equal weights, so that the mean of a mark that one of the peers has is its share.
    return DataParallel(crew.address, model, optimizer, weigh="equal", **options), model, optimizer


def loop(batches, model, optimizer, passes):
    """As users write it: they count batches, not what the run makes of them."""
    steps = 0
    for number, (numbers,) in enumerate(batches, 1):
        model.take(numbers)
        if number % passes == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return steps


@pytest.mark.parametrize("whole", [None, 16])
@pytest.mark.parametrize("passes", [1, 2, 3])
def test_with_data_parallel_the_gradient_of_every_sample_reaches_the_model(crew, passes, whole):
    """Also in the last step of an epoch, which has fewer passes."""
    run, model, optimizer = parallel(crew, accumulate=passes, global_batch=whole)
    batches = run.batches(Counted(SAMPLES), *([] if whole else [BATCH]), epochs=1)
    with run:
        loop(batches, model, optimizer, passes)
        samples = whole or BATCH * passes
        assert run.step == -(-SAMPLES // samples)
    assert model.marks.tolist() == [-1.0] * SAMPLES


@pytest.mark.parametrize("passes", [2, 3])
def test_so_it_does_among_peers_whose_last_steps_are_uneven(crew, passes):
    made = [parallel(crew, accumulate=passes, min_peers=2) for _ in range(2)]

    def act(number):
        run, model, optimizer = made[number]
        batches = run.batches(Counted(SAMPLES), BATCH + number, epochs=2)
        with run:
            loop(batches, model, optimizer, passes)
            return model.marks.tolist(), run.step

    first, second = crew.together(2, act)
    assert first == second
    # A peer without samples of its own in a step weighs nothing: a mark is then the other's whole.
    assert all(mark <= -1.0 for mark in first[0])


def test_a_shard_that_ends_within_a_step_leaves_no_pass_out(crew):
    run, model, optimizer = parallel(crew, accumulate=2)
    each = SAMPLES // 4
    items = [[(shard * each + number,) for number in range(each)] for shard in range(4)]
    batches = run.batches(Shards(4, lambda shard, offset: iter(items[shard][offset:])), BATCH, epochs=1)
    with run:
        loop(batches, model, optimizer, 2)
    assert model.marks.tolist() == [-1.0] * SAMPLES


def rounds(crew, passes, told, **options):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    run = DiLoCo(
        crew.address, model, optimizer, sync_every=EVERY, scheduler=scheduler, accumulate=told, overlap=options.get("o")
    )
    dataset = Counted(6 * EVERY * passes * BATCH)
    batches, steps, seen, ends = run.batches(dataset, BATCH, epochs=1), 0, [], []
    with run:
        for number, (numbers,) in enumerate(batches, 1):
            seen += numbers.tolist()
            model(numbers.float().unsqueeze(1) / 100).square().mean().backward()
            if number % passes == 0:
                at = run.round
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                steps += 1
                ends += [steps] * (run.round > at)
    assert sorted(seen) == list(range(len(dataset)))
    return ends, run.step, scheduler.last_epoch


@pytest.mark.parametrize("overlap", [None, 1, "round"])
def test_a_round_has_as_many_steps_of_the_optimizer_however_many_passes_each_takes(crew, overlap):
    ends, step, epoch = rounds(crew, 4, 4, o=overlap)
    assert ends == [EVERY * number for number in range(1, 7)]
    laps = 6 + (overlap is not None)  # One more, with nothing in it, shows that all samples are counted.
    assert (step, epoch) == (laps * EVERY, laps * EVERY)


def test_what_was_not_told_is_learned_from_the_first_round(crew):
    ends, _, _ = rounds(crew, 4, 1)
    # The first lease ends within the first step, and the second is of the passes that were seen in it, and more.
    lengths = [after - before for before, after in pairwise(ends)]
    assert lengths
    assert set(lengths) == {EVERY}
