"""N peers end with what a single process computes from the papers' formulas, and with equal bits after every round."""

import pytest
import torch

from pccl.training import DiLoCo, LocalSGD
from tests.training import oracle

PEERS, EVERY, ROUNDS = 3, 4, 5
PARTS = 2


def play(crew, make, rounds=ROUNDS, every=EVERY, peers=PEERS):
    """Let all train; of each peer its outer parameters, those of its model, and the digests after each round."""
    models = [oracle.make_model() for _ in range(peers)]

    def act(number):
        torch.set_num_threads(1)
        model = models[number]
        optimizer = oracle.make_optimizer(model)
        digests = []
        with make(crew.address, model, optimizer, sync_every=every, min_peers=peers) as run:
            for step in range(rounds * every):
                oracle.inner_step(model, optimizer, number, step)
                if (step + 1) % every == 0:
                    digests.append(run.outer_digest())
            assert (run.round, run.step) == (rounds, rounds * every)
        digests.append(run.outer_digest())
        return outer_of(run), dict(model.named_parameters()), digests

    return crew.together(peers, act)


def outer_of(run):
    return {f"{name}": each for name, each in run.outer_parameters().items()}


def close(found, expected, relative=1e-6):
    """Against the largest element of all: inner steps make small tensors, such as biases, from the rounded values of
    large ones."""
    largest = max(float(value.abs().max()) for value in expected.values())
    for name, value in expected.items():
        error = (found[name].detach().double() - value).abs().max()
        assert error <= relative * largest, (name, float(error), largest)


def compare(played, expected, theta):
    outer, replicas = expected
    for (found, model, digests), replica in zip(played, replicas, strict=True):
        assert digests == played[0][2]
        close(found, theta(outer))
        close(model, replica.flat(), 1e-5)


def test_plain(crew):
    expected = oracle.train(PEERS, ROUNDS, EVERY, 0.7, 0.9)
    compare(play(crew, DiLoCo), expected, lambda outer: outer.theta)


def test_local_sgd(crew):
    expected = oracle.train(PEERS, ROUNDS, EVERY, 1.0, 0.0)
    compare(play(crew, LocalSGD), expected, lambda outer: outer.theta)


@pytest.mark.parametrize(("delay", "mix"), [(1, 0.0), (2, 0.0), (3, 0.5)])
def test_overlapped(crew, delay, mix):
    expected = oracle.train_overlapped(PEERS, ROUNDS, EVERY, 0.7, 0.9, [delay] * ROUNDS, mix)
    played = play(crew, lambda *place, **rest: DiLoCo(*place, overlap=delay, mix=mix, **rest))
    compare(played, expected, lambda outer: outer.theta)


class Timed(DiLoCo):
    """One whose clock is made up: it says with each round that a step takes a second, and its reductions so long."""

    reduced_s = 0.0

    def _row(self, fragment, norm):
        row = super()._row(fragment, norm)
        return row._replace(computed_s=float(row.steps), reduced_s=self.reduced_s)


def test_as_few_steps_of_overlap_as_hide_the_reduction(crew):
    """How many follows from what all peers have said: the last peer to come does not wait, so the shortest of the times
    is that of the reduction, here a step and a half. Before there is one, none is hidden."""
    expected = oracle.train_overlapped(PEERS, ROUNDS, EVERY, 0.7, 0.9, [0] + [2] * (ROUNDS - 1), 0.0)
    made = iter([40.0, 1.5, 30.0])

    def timed(*place, **rest):
        run = Timed(*place, overlap="auto", **rest)
        run.reduced_s = next(made)
        return run

    compare(play(crew, timed), expected, lambda outer: outer.theta)


@pytest.mark.parametrize(("every", "delay"), [(4, 1), (5, 3), (7, 2)])
def test_streaming(crew, every, delay):
    names = [name for name, _ in oracle.make_model().named_parameters()]
    parts = [[name for name in names if int(name[0]) // 2 % 3 == place] for place in range(3)]
    expected = oracle.train_streaming(PEERS, ROUNDS, every, 0.4, 0.9, delay, 0.5, parts)
    played = play(crew, lambda *place, **rest: DiLoCo(*place, fragments=3, overlap=delay, **rest), every=every)
    compare(played, expected, lambda outer: outer.theta)


def test_delayed(crew):
    expected = oracle.train_delayed(PEERS, ROUNDS, EVERY, 0.7, 0.0)
    played = play(crew, lambda *place, **rest: DiLoCo(*place, overlap="round", **rest))
    compare(played, expected, lambda outer: outer.theta)


@pytest.mark.parametrize("weights", [None, [5, 1, 2]], ids=str)
def test_eager(crew, weights):
    outers, _ = oracle.train_eager(PEERS, ROUNDS, EVERY, 0.4, 0.9, weights)
    models = [oracle.make_model() for _ in range(PEERS)]

    def act(number):
        model = models[number]
        optimizer = oracle.make_optimizer(model)
        with DiLoCo(
            crew.address, model, optimizer, sync_every=EVERY, min_peers=PEERS, overlap="round", eager=True
        ) as run:
            for step in range(ROUNDS * EVERY):
                if weights:
                    run.count_tokens(weights[number] * 100)
                oracle.inner_step(model, optimizer, number, step)
            # Before the last round is merged: what each peer starts its next round from is its own.
            start = {name: each.detach().clone() for name, each in model.named_parameters()}
        return start, run.outer_digest()

    told = crew.together(PEERS, act)
    assert len({digest for _, digest in told}) == 1
    for (start, _), outer in zip(told, outers, strict=True):
        close(start, outer.theta)


def test_weights_are_tokens(crew):
    weights, models = [5, 1, 2], [oracle.make_model() for _ in range(PEERS)]
    outer, _ = oracle.train(PEERS, ROUNDS, EVERY, 0.7, 0.9, weights)

    def act(number):
        optimizer = oracle.make_optimizer(models[number])
        with DiLoCo(crew.address, models[number], optimizer, sync_every=EVERY, min_peers=PEERS) as run:
            for step in range(ROUNDS * EVERY):
                run.count_tokens(weights[number] * 100)
                oracle.inner_step(models[number], optimizer, number, step)
            return outer_of(run)

    for found in crew.together(PEERS, act):
        close(found, outer.theta)


STILL = {"plain": {}, "overlapped": {"overlap": 1}, "streaming": {"fragments": 3, "overlap": 1}}
STILL |= {"delayed": {"overlap": "round"}, "eager": {"overlap": "round", "eager": True}}


@pytest.mark.parametrize(
    ("dtype", "quantize", "mode"),
    [
        *((dtype, quantize, "plain") for dtype in ("float32", "bfloat16", "float16") for quantize in (None, "int8")),
        ("bfloat16", "int4", "overlapped"),
        ("float16", None, "streaming"),
        ("bfloat16", "int4", "streaming"),
        ("float16", "int8", "delayed"),
        ("bfloat16", None, "eager"),
        ("float32", "int8", "eager"),
    ],
)
def test_with_a_learning_rate_of_zero_nothing_moves(crew, dtype, quantize, mode):
    models = [oracle.make_model(getattr(torch, dtype)) for _ in range(2)]
    before = {name: each.detach().clone() for name, each in models[0].named_parameters()}

    def act(number):
        optimizer = oracle.make_optimizer(models[number], lr=0.0)
        with DiLoCo(
            crew.address, models[number], optimizer, sync_every=3, min_peers=2, quantize=quantize, **STILL[mode]
        ) as run:
            digests = {run.outer_digest()}
            for step in range(30):
                oracle.inner_step(models[number], optimizer, number, step)
                digests.add(run.outer_digest())
        return digests

    first, second = crew.together(2, act)
    assert len(first) == 1
    assert first == second
    for model in models:
        for name, each in model.named_parameters():
            assert torch.equal(each, before[name])
