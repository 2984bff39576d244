"""The demo's model learns what it says, and its story does not end well unless it did."""

import random
from contextlib import ExitStack

import pytest

from pccl.cli.demo.model import BATCH, Model, curve
from pccl.cli.demo.stage import Stage, StoryFailed
from pccl.cli.demo.story import bar, judge


def half_squared_error(model, seed):
    """Over the very points of a batch: drawn as the model draws them."""
    luck, total = random.Random(seed), 0.0
    for _ in range(BATCH):
        x = luck.uniform(-2.0, 2.0)
        total += (model._output(model._hidden(x)) - curve(x) - luck.gauss(0.0, 0.1)) ** 2 / 2
    return total / BATCH


def test_the_gradient_is_that_of_the_error():
    model, little = Model(random.Random(1)), 1e-6
    gradient = model.gradient(random.Random(2))
    for place, slope in enumerate(gradient):
        before = half_squared_error(model, 2)
        model.weights[place] += little
        measured = (half_squared_error(model, 2) - before) / little
        model.weights[place] -= little
        assert slope == pytest.approx(measured, abs=1e-4)


def test_the_same_gradients_give_the_same_bits_and_the_loss_falls():
    twins = [Model(random.Random(3)) for _ in range(2)]
    began = twins[0].loss()
    for step in range(200):
        gradient = twins[0].gradient(random.Random(step))
        for model in twins:
            model.step(gradient)
    assert twins[0].digest() == twins[1].digest()
    assert twins[0].state.revision == 200
    assert twins[0].loss() < began / 10


class Ended:
    """A peer that has told its end."""

    def __init__(self, digest, loss):
        self.said = {"digest": digest, "loss": loss}

    def fact(self, event, name):
        return self.said[name]


def test_only_equal_digests_and_a_fallen_loss_are_a_good_end():
    assert judge([Ended("a", 0.1), Ended("a", 0.1)], 1.0) == ""
    assert "2 different models" in judge([Ended("a", 0.1), Ended("b", 0.1)], 1.0)
    assert "from 1.0000 to 0.9000 only" in judge([Ended("a", 0.9)], 1.0)
    assert "only" in judge([Ended("a", float("nan"))], 1.0)


def test_a_bar_is_shorter_for_a_smaller_loss_and_never_negative():
    assert len(bar({"loss": 1.0})) == len(bar({"loss": 0.1})) + 10
    assert bar({"loss": 0.0}) == ""


def test_an_actor_that_ends_before_its_time_ends_the_story():
    with ExitStack() as stack:
        stage = Stage(stack, lambda actor, said: None)
        stage.enter("Ada", "pccl.cli", "no-such-command")
        with pytest.raises(StoryFailed, match="Ada ended"):
            stage.until(lambda: False, "never")
