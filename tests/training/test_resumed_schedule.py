"""A scheduler, and the count of steps, after a resume: where the run is, and as they were made."""

import pytest
import torch

from pccl.training import DataParallel, DiLoCo
from tests.training import oracle

EVERY, ROUNDS = 4, 2


def make(crew, kind, gamma):
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    options = {} if kind is DataParallel else {"sync_every": EVERY}
    return kind(crew.address, model, optimizer, scheduler=scheduler, **options), model, optimizer, scheduler


@pytest.mark.parametrize("kind", [DiLoCo, DataParallel])
def test_each_resume_goes_on_at_the_step_with_the_rate_of_it(crew, tmp_path, kind):
    """A checkpoint is made within a step, before the loop steps its scheduler. What a scheduler is beside its step,
    here the 0.9, comes from the checkpoint."""
    made = 0
    for start in range(3):
        run, model, optimizer, scheduler = make(crew, kind, 0.5 if start else 0.9)
        run.checkpoint(tmp_path)
        assert run.resume(tmp_path) is (start > 0)
        assert (run.step, scheduler.last_epoch) == (made, made)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(oracle.LR * 0.9**made)
        with run:
            for _ in range(ROUNDS * EVERY):
                oracle.inner_step(model, optimizer, 0, made)
                scheduler.step()
                run._saver.finish()
                made += 1


def trained(crew, every, steps, state=None, **options):
    """A run that has made so many steps: with its scheduler, and what it saves."""
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    run = DiLoCo(crew.address, model, optimizer, scheduler=scheduler, sync_every=every, **options)
    if state is not None:
        run.load_state_dict(state)
    with run:
        for _ in range(steps):
            oracle.inner_step(model, optimizer, 0, run.step)
            scheduler.step()
        return run.step, scheduler.last_epoch, run.state_dict()


@pytest.mark.parametrize("every", [2, 10, 15])
def test_a_run_that_is_resumed_with_another_number_of_steps_goes_on_at_its_step(crew, every):
    """From round 3 of 10 steps each, with one in no round."""
    step, epoch, state = trained(crew, 10, 31)
    assert (step, epoch, state["step"], state["round"]) == (31, 31, 30, 3)
    state["scheduler"]["last_epoch"] = 30  # It is one further, of a step that is in no round.
    step, epoch, again = trained(crew, every, 2 * every, state)
    assert (step, epoch, again["step"], again["round"]) == (30 + 2 * every, 30 + 2 * every, 30 + 2 * every, 5)
    assert trained(crew, 4, 4, again)[:2] == (34 + 2 * every, 34 + 2 * every)


def test_a_state_of_before_steps_were_saved_has_those_of_its_rounds(crew):
    _, _, state = trained(crew, 10, 20)
    del state["step"]
    assert trained(crew, 4, 4, state)[:2] == (24, 24)


def test_those_that_join_a_run_that_was_resumed_so_are_at_its_step(crew):
    _, _, state = trained(crew, 10, 20)

    def act(number):
        steps = 2 * EVERY
        return trained(crew, EVERY, steps, None if number else state, min_peers=3)[:2]

    assert crew.together(3, act) == [(20 + 2 * EVERY, 20 + 2 * EVERY)] * 3
