"""Where a loop ends between two rounds: its last steps are in a round if it says so, and in none if not."""

import pytest
import torch

from tests.training import oracle
from tests.training.test_oracle import close
from tests.training.test_rounds import EVERY, make


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("options", [{}, {"overlap": 1}, {"overlap": "round"}], ids=str)
def test_steps_after_the_last_round_are_in_one_more_if_the_loop_says_so(crew, options, finished):
    made = [make(crew, number, min_peers=2, **options) for number in range(2)]

    def act(number):
        run, model, optimizer = made[number]
        with run:
            for step in range(2 * EVERY + 1):
                oracle.inner_step(model, optimizer, number, step)
            assert run.round_step == 1
            if finished:
                run.finish_round()
            assert run.round_step == (0 if finished else 1)
        return {name: each.detach() for name, each in model.named_parameters()}, run.outer_parameters(), run.round

    (first, outer, rounds), (second, other, _) = crew.together(2, act)
    assert rounds == 2 + finished
    assert all(torch.equal(outer[name], other[name]) for name in outer)
    if finished or not options:  # With overlap the last result comes over steps that no round has.
        assert all(torch.equal(first[name], outer[name]) for name in outer) is finished
        assert all(torch.equal(first[name], second[name]) for name in outer) is finished


def test_the_last_round_is_the_step_with_what_there_is(crew):
    run, model, optimizer = make(crew, 0)
    with run:
        for step in range(EVERY):
            oracle.inner_step(model, optimizer, 0, step)
        before = run.outer_parameters()
        oracle.inner_step(model, optimizer, 0, EVERY)
        delta = {name: before[name] - each.detach() for name, each in model.named_parameters()}
        momentum = {name: each.clone() for name, each in run._contents._momentum().items()}
        run.finish_round()
    expected = {}
    for name, each in delta.items():
        speed = 0.9 * momentum[name].view_as(each) + each
        expected[name] = before[name] - 0.7 * (each + 0.9 * speed)
    close(run.outer_parameters(), expected)
