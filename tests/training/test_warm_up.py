"""A fresh optimizer's learning rates rise to their value, and are what they were after it, whatever comes meanwhile."""

import threading

import pytest
import torch

from pccl.training import DiLoCo
from tests.patience import HANG_S
from tests.training import oracle

EVERY, STEPS = 3, 5


class Rates:
    """What a loop's steps are made with, and what it sees between them."""

    def __init__(self, optimizer):
        self.used, self.between = [], []
        self._optimizer = optimizer
        self._hook = optimizer.register_step_pre_hook(lambda *_: self.used.append(self._rate))

    @property
    def _rate(self):
        return float(self._optimizer.param_groups[0]["lr"])

    def look(self):
        self.between.append(self._rate)


def drift(run):
    """Its outer state is not that of the others: it takes theirs at the end of a round, in the hook of a step."""
    run._contents.fragments[0].theta[0] += 1.0
    run._contents.fragments[0].changed()


def made(crew, number, **options):
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model, oracle.STEADY)
    run = DiLoCo(crew.address, model, optimizer, sync_every=EVERY, join="fresh", warmup_steps=STEPS, **options)
    return run, model, optimizer


def newcomer_of(crew, meanwhile):
    """Rates of a peer that comes to one that has trained; `meanwhile` happens before each of its steps."""
    trained, done = threading.Event(), threading.Event()

    def act(number):
        run, model, optimizer = made(crew, number)
        if number:
            assert trained.wait(HANG_S)
        with run:
            if not number:
                while not done.is_set():
                    oracle.inner_step(model, optimizer, 0, run.step)
                    if run.round == 2:
                        trained.set()
                return None
            rates = Rates(optimizer)
            for step in range(8 * EVERY):
                meanwhile(run, step)
                oracle.inner_step(model, optimizer, 1, run.step)
                rates.look()
            done.set()
        return rates

    return crew.together(2, act)[1]


def test_a_warm_up_ends_and_the_loop_goes_on(crew):
    rates = newcomer_of(crew, lambda run, step: None)
    rise = [oracle.STEADY * made / (STEPS + 1) for made in range(1, STEPS + 1)]
    assert rates.used == pytest.approx([*rise, *[oracle.STEADY] * (8 * EVERY - STEPS)])
    assert rates.between == [oracle.STEADY] * 8 * EVERY


def test_a_sync_in_a_warm_up_begins_it_again_from_the_true_rate(crew):
    rates = newcomer_of(crew, lambda run, step: drift(run) if step == EVERY else None)
    assert rates.between == [oracle.STEADY] * 8 * EVERY
    lowest = pytest.approx(oracle.STEADY / (STEPS + 1))
    assert [place for place, used in enumerate(rates.used) if used == lowest] == [0, 2 * EVERY]
    assert rates.used[2 * EVERY + STEPS :] == [oracle.STEADY] * (6 * EVERY - STEPS)


def test_at_the_beginning_of_a_run_all_optimizers_are_fresh_and_none_warms_up(crew):
    """Of the peers that begin together one has the state that the others take."""

    def act(number):
        run, model, optimizer = made(crew, number, min_peers=3)
        rates = Rates(optimizer)
        with run:
            oracle.inner_step(model, optimizer, number, 0)
        return rates.used

    assert crew.together(3, act) == [[oracle.STEADY]] * 3


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_a_step_that_fails_in_a_warm_up_leaves_the_rate_as_it_was(crew, kind):
    """The loop may go on after it."""
    run, model, optimizer = made(crew, 0)
    rate = optimizer.param_groups[0]["lr"] = kind(oracle.STEADY)
    with run:
        run._guards.warm_up()
        rates = Rates(optimizer)

        def fail(*_):
            raise RuntimeError("out of memory")

        failing = optimizer.register_step_pre_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            oracle.inner_step(model, optimizer, 0, 0)
        failing.remove()
        oracle.inner_step(model, optimizer, 0, 0)
        assert optimizer.param_groups[0]["lr"] is rate
        run.leave()
        oracle.inner_step(model, optimizer, 0, 0)
    assert rates.used == pytest.approx([oracle.STEADY / (STEPS + 1), 2 * oracle.STEADY / (STEPS + 1), oracle.STEADY])
