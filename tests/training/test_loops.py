"""What loops of other libraries need of a run: their schedulers at its step, and an end of their own on SIGTERM."""

import importlib
import os
import signal
import sys

import pytest
import torch

from pccl import UsageError
from pccl.integrations.loops import Loop, unwrapped
from pccl.training.schedules import Schedules, as_one
from tests.training import oracle
from tests.training.test_rounds import EVERY, make


def test_a_scheduler_that_is_brought_to_the_step_within_a_step_is_stepped_once_for_it(crew):
    """The loop steps it after the optimizer, whose hook had the peer take the others' state."""
    made = [make(crew, number, min_peers=3) for number in range(3)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each[2], 0.99) for each in made]

    def act(number):
        run, model, optimizer = made[number]
        run._scheduler = schedulers[number]
        with run:
            for step in range(3 * EVERY):
                if number == 0 and step == EVERY:
                    run._contents.fragments[0].theta[0] += 1.0
                    run._contents.fragments[0].changed()
                oracle.inner_step(model, optimizer, number, step)
                schedulers[number].step()
            return run.step, schedulers[number].last_epoch

    assert crew.together(3, act) == [(3 * EVERY, 3 * EVERY)] * 3


def test_schedulers_that_are_stepped_more_rarely_come_to_the_step_of_the_run():
    optimizers = [torch.optim.SGD([torch.zeros(1)], lr=1.0) for _ in range(2)]
    inner = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in optimizers]
    schedules = Schedules([(inner[0], 1), (inner[1], 5)])
    for optimizer in optimizers:
        optimizer.step()
    for _ in range(13):
        schedules.step()
    assert [each.last_epoch for each in inner] == [13, 2]
    assert schedules.last_epoch == 13
    again = as_one([torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in optimizers])
    again.load_state_dict(schedules.state_dict())
    assert again.last_epoch == 2
    assert as_one([]) is None
    assert as_one(inner[0]) is inner[0]


class Wrapped:
    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_the_optimizer_of_torch_is_found_under_what_is_around_it():
    plain = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    assert unwrapped(Wrapped(Wrapped(plain))) is plain
    assert unwrapped(plain) is plain


def loop_of(crew, **options):
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    loop = Loop(crew.address, {"sync_every": EVERY, **options})
    return loop, model, optimizer


def test_a_loop_that_is_told_to_go_ends_by_itself_after_the_round(crew):
    before = signal.getsignal(signal.SIGTERM)  # Not the default where an earlier test had a Communicator.
    loop, model, optimizer = loop_of(crew)
    run = loop.join(model, [Wrapped(optimizer)], None, None)
    oracle.inner_step(model, optimizer, 0, 0)
    oracle.inner_step(model, optimizer, 0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    while not run._notice.given:
        pass
    assert not loop.told_to_go
    oracle.inner_step(model, optimizer, 0, 2)
    assert loop.told_to_go
    loop.finish()
    assert (run.round, run.step, loop.joined) == (1, EVERY, False)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_last_steps_of_a_loop_are_in_a_round_and_what_it_saved_is_gone_on_from(crew):
    loop, model, optimizer = loop_of(crew)
    run = loop.join(model, [optimizer], None, None)
    for step in range(EVERY + 1):
        oracle.inner_step(model, optimizer, 0, step)
    loop.finish()
    loop.finish()
    assert run.round == 2
    again, model, optimizer = loop_of(crew)
    assert again.join(model, [optimizer], None, run.state_dict()).outer_digest() == run.outer_digest()
    assert again.run.round == 2
    again.leave()
    again.leave()


def test_without_a_run_and_without_an_address_the_sentence_says_what_to_do(monkeypatch):
    monkeypatch.delenv("PCCL_MASTER", raising=False)
    loop = Loop(None, {})
    with pytest.raises(UsageError, match="once training has begun"):
        assert loop.run
    model = oracle.make_model()
    with pytest.raises(UsageError, match="set PCCL_MASTER"):
        loop.join(model, [oracle.make_optimizer(model)], None, None)


@pytest.mark.parametrize(
    ("module", "library"), [("huggingface", "transformers"), ("lightning", "lightning"), ("ray", "ray")]
)
def test_a_library_that_is_not_there_is_named_with_its_extra(module, library, monkeypatch):
    for name in [each for each in sys.modules if each.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"pccl.integrations.{module}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {library}.*, which .* pip install 'pccl\[{module}\]'"):
        importlib.import_module(f"pccl.integrations.{module}")
