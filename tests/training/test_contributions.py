"""What a peer contributes, and what that counts: weights, steps by speed, and where patience ends."""

import threading

import pytest
import torch

from pccl.training import DiLoCo
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_oracle import EVERY, ROUNDS, close, outer_of
from tests.training.test_rounds import EVERY as SHORT
from tests.training.test_rounds import make

STEPS = [4, 2, 3]
"""That each of three peers makes in a round."""


@pytest.mark.parametrize(("weigh", "weights"), [("tokens", [5, 1, 2]), ("steps", STEPS), ("equal", [1, 1, 1])])
def test_contributions_count_as_the_setting_says_whatever_else_is_known(crew, weigh, weights):
    outer, _ = oracle.train(3, ROUNDS, EVERY, 0.7, 0.9, weights, [STEPS] * ROUNDS)
    models = [oracle.make_model() for _ in STEPS]

    def act(number):
        model, optimizer = models[number], oracle.make_optimizer(models[number])
        with DiLoCo(crew.address, model, optimizer, sync_every=EVERY, min_peers=3, weigh=weigh) as run:
            for place in range(ROUNDS):
                run.count_tokens([5, 1, 2][number] * 100)
                for _ in range(STEPS[number]):
                    oracle.inner_step(model, optimizer, number, run.step)
                if run.round == place:
                    run.finish_round()
            return outer_of(run), run.round

    for found, rounds in crew.together(3, act):
        assert rounds == ROUNDS
        close(found, outer.theta)


def test_the_learning_rate_follows_the_step_of_the_run_however_few_are_made_here(crew, caplog):
    """As that of a newcomer does; and peers that are at different steps of a round are not told to differ."""
    made = [make(crew, number, min_peers=2) for number in range(2)]

    def act(number):
        run, model, optimizer = made[number]
        scheduler = run._scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        steps = []
        with run:
            for place in range(4):
                while run.round == place:
                    steps.append((run.step, scheduler.last_epoch))
                    oracle.inner_step(model, optimizer, number, run.step)
                    scheduler.step()
                    if number and run.round == place:
                        run.finish_round()
            steps.append((run.step, scheduler.last_epoch))
        return steps

    whole, short = crew.together(2, act)
    assert [len(whole), len(short)] == [4 * SHORT + 1, 5]
    assert all(step == at for step, at in (*whole, *short))
    assert "inner learning rates differ" not in caplog.text


class Paced(DiLoCo):
    """One whose clock is made up: it says with each round how long a step takes here."""

    step_s = 1.0

    def _row(self, fragment, norm):
        row = super()._row(fragment, norm)
        return row._replace(computed_s=row.steps * self.step_s)


def test_with_the_pace_of_speed_each_makes_as_many_steps_as_the_fastest_leaves_time_for(crew):
    every, seconds = 12, [1.0, 2.0, 5.0]
    steps = [[12, 12, 12], *[[12, 6, 2]] * 3]
    outer, _ = oracle.train(3, len(steps), every, 0.7, 0.9, quotas=steps)
    models = [oracle.make_model() for _ in seconds]

    def act(number):
        model, optimizer = models[number], oracle.make_optimizer(models[number])
        run, made = Paced(crew.address, model, optimizer, sync_every=every, min_peers=3, pace="speed"), []
        run.step_s = seconds[number]
        with run:
            while run.round < len(steps):
                at = run.step
                oracle.inner_step(model, optimizer, number, at)
                made.append(at // every)
            return [made.count(place) for place in range(len(steps))], outer_of(run)

    told = crew.together(3, act)
    assert [list(each) for each in zip(*(made for made, _ in told), strict=True)] == steps
    for _, found in told:
        close(found, outer.theta)


def test_a_round_ends_early_when_others_have_waited_longer_than_patience_lasts_and_not_before(crew):
    run, model, optimizer = make(crew, 0, patience_s=10.0)
    with run:
        for waited_s, rounds in ((0.0, 0), (9.9, 0), (10.1, 1), (9.9, 1)):
            run._group.awaited_s = lambda waited_s=waited_s: waited_s
            oracle.inner_step(model, optimizer, 0, run.step)
            assert run.round == rounds


def test_a_round_that_is_made_again_carries_what_the_first_one_would_have(crew):
    """It was committed among too few: what coding has lost then is in no outer step."""
    made = [make(crew, min(number, 2), min_peers=3, quantize="int4") for number in range(4)]
    lacking, kept = threading.Event(), [{}, {}]

    def residuals(run):
        return {tag: each.tolist() for tag, each in run._feedback.state_dict()["residuals"].items()}

    def act(number):
        run, model, optimizer = made[number]
        if number == 3:
            assert lacking.wait(HANG_S)
        with run:
            while run.round < (1 if number == 2 else 3):
                oracle.inner_step(model, optimizer, number, run.step)
                if number < 2 and run.step == SHORT:
                    kept[number]["before"] = residuals(run)
                    wait = run._group.await_candidates

                    def note(here, wanted, run=run, wait=wait):
                        if here == 2:
                            kept[number].setdefault("again", residuals(run))
                            lacking.set()
                        wait(here, wanted)

                    run._group.await_candidates = note
        return run.outer_digest()

    first, second, _, last = crew.together(4, act)
    assert first == second == last
    assert all(each["before"] and each["again"] == each["before"] for each in kept)
