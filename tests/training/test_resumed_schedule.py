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
