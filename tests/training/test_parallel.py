"""Data parallelism: N peers end with what one process computes with the mean of their gradients; buckets leave during
backward; steps go on through deaths, joins and a lack of peers."""

import threading

import pytest
import torch
from torch import nn

from pccl import UsageError
from pccl.training import DataParallel, DiLoCo, parallel
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_leases import Counted
from tests.training.test_oracle import close

PEERS, STEPS = 3, 12
SMALL = 4 * 16
"""Bytes of a bucket, so that the oracle's network has several."""


def make(crew, **options):
    model = oracle.make_model()
    optimizer = oracle.make_optimizer(model)
    return DataParallel(crew.address, model, optimizer, bucket_bytes=SMALL, **options), model, optimizer


def play(crew, steps=STEPS, weights=None, passes=1, **options):
    made = [make(crew, min_peers=PEERS, accumulate=passes, **options) for _ in range(PEERS)]

    def act(number):
        run, model, optimizer = made[number]
        digests = []
        with run:
            for step in range(steps):
                optimizer.zero_grad()
                for part in range(passes):
                    if weights:
                        run.count_tokens(weights[number] * 10)
                    x, y = oracle.data(number, step * passes + part)
                    ((model(x) - y) ** 2).mean().backward()
                optimizer.step()
                digests.append(run.outer_digest())
            assert (run.round, run.step) == (steps, steps)
        return digests, dict(model.named_parameters()), dict(run.outer_parameters())

    return crew.together(PEERS, act)


@pytest.mark.parametrize("weights", [None, [5, 1, 2]])
@pytest.mark.parametrize("passes", [1, 2])
def test_all_end_with_what_one_process_computes(crew, weights, passes):
    expected = oracle.train_parallel(PEERS, STEPS, weights, passes)
    played = play(crew, weights=weights, passes=passes)
    for digests, model, outer in played:
        assert digests == played[0][0]
        close(model, expected)
        close(outer, expected)


@pytest.mark.parametrize("broken", ["weights", "mean"])
def test_the_oracle_notices(crew, monkeypatch, broken):
    if broken == "weights":
        whole = parallel.DataParallel.count_tokens
        monkeypatch.setattr(parallel.DataParallel, "count_tokens", lambda run, number: whole(run, number + 1))
    else:
        step = parallel.Gradients._divide.__globals__["Bucket"].step
        monkeypatch.setattr(
            "pccl.training.gradients.Bucket.step",
            lambda bucket, delta, total, *rest: step(bucket, delta, total + 1, *rest),
        )
    with pytest.raises(AssertionError):
        test_all_end_with_what_one_process_computes(crew, [5, 1, 2], 1)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_codes_keep_peers_equal(crew, codec):
    played = play(crew, quantize=codec)
    assert len({tuple(digests) for digests, _, _ in played}) == 1


def test_buckets_leave_while_backward_goes_on(crew):
    run, model, _ = make(crew)
    sent = []
    with run:
        assert len(run._gradients.buckets) > 2
        model[2].weight.register_post_accumulate_grad_hook(lambda _: sent.append(len(run._flights)))
        x, y = oracle.data(0, 0)
        ((model(x) - y) ** 2).mean().backward()
        assert sent[0] >= 1
        assert sent[0] < len(run._gradients.buckets)
        run.reduce()
        assert not run._flights


class Gated(nn.Module):
    """Of two layers a peer may use one only, and of the third none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

    def forward(self, x, which):
        return self.layers[which](x)


def test_what_one_peer_has_not_used_gets_the_others_gradients_and_what_none_has_is_left_alone(crew):
    models = [Gated() for _ in range(2)]
    before = [each.detach().clone() for each in models[0].parameters()]

    def act(number):
        optimizer = torch.optim.SGD(models[number].parameters(), lr=0.1, weight_decay=0.5)
        with DataParallel(crew.address, models[number], optimizer, min_peers=2, bucket_bytes=8) as run:
            models[number](torch.ones(2, 4), number).sum().backward()
            optimizer.step()
            return run.outer_digest(), [each.grad is None for each in models[number].parameters()]

    (first, missing), (second, _) = crew.together(2, act)
    assert first == second
    assert missing == [False] * 4 + [True] * 2
    after = list(models[0].parameters())
    assert all(torch.equal(old, new) for old, new in zip(before[4:], after[4:], strict=True))
    # Each of these was used by one of two: half of its gradient of 2, and decay.
    expected = before[0] - 0.1 * (1.0 + 0.5 * before[0])
    assert torch.allclose(after[0], expected)


def test_a_gradient_that_is_not_finite_is_left_out(crew):
    made = [make(crew, min_peers=2) for _ in range(2)]
    expected = oracle.train_parallel(1, 1)

    def act(number):
        run, model, optimizer = made[number]
        with run:
            x, y = oracle.data(number, 0)
            ((model(x) - y) ** 2).mean().mul(float("nan") if number else 1.0).backward()
            optimizer.step()
        return dict(model.named_parameters())

    for found in crew.together(2, act):
        close(found, expected)


def test_a_newcomer_gets_model_optimizer_and_step_and_stays_in_step(crew):
    made = [make(crew) for _ in range(2)]
    trained, joined = threading.Event(), threading.Event()

    def act(number):
        run, model, optimizer = made[number]
        if number:
            trained.wait(HANG_S)
        digests = {}
        with run:
            if number:
                assert run.round >= 5
                assert optimizer.state[next(model.parameters())]["momentum_buffer"].abs().sum() > 0
                joined.set()
                last = run.round + 8
            while run.round < (last if number else run.round + 1) and not (digests and not number and left.is_set()):
                oracle.inner_step(model, optimizer, number, run.step)
                digests[run.round] = run.outer_digest()
                if run.round == 5:
                    trained.set()
        left.set()
        return digests

    left = threading.Event()
    first, second = crew.together(2, act)
    assert len(second) == 8
    assert all(first[step] == digest for step, digest in second.items())


def test_parameters_that_drifted_are_replaced(crew, monkeypatch, caplog):
    monkeypatch.setattr(parallel, "CHECK_EVERY", 3)
    made = [make(crew, min_peers=3) for _ in range(3)]

    def act(number):
        run, model, optimizer = made[number]
        with run:
            for step in range(7):
                oracle.inner_step(model, optimizer, number, step)
                if (number, step) == (1, 3):
                    with torch.no_grad():
                        next(model.parameters()).add_(1e-3)
            return run.outer_digest()

    assert len(set(crew.together(3, act))) == 1
    assert "is not that of the others" in caplog.text


def test_a_scheduler_of_one_that_drifted_stays_at_the_step(crew, monkeypatch):
    """It is brought there within a step, after which the loop still steps it."""
    monkeypatch.setattr(parallel, "CHECK_EVERY", 3)
    made = [make(crew, min_peers=3) for _ in range(3)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each[2], 0.99) for each in made]

    def act(number):
        run, model, optimizer = made[number]
        run._scheduler = schedulers[number]
        with run:
            for step in range(7):
                oracle.inner_step(model, optimizer, number, step)
                schedulers[number].step()
                if (number, step) == (1, 3):
                    with torch.no_grad():
                        next(model.parameters()).add_(1e-3)
            return run.step, schedulers[number].last_epoch, run.outer_digest()

    ((step, at, _),) = set(crew.together(3, act))
    assert (step, at) == (7, 7)


@pytest.mark.parametrize("peers", [1, 3])
def test_a_global_batch_stays_the_same_and_each_sample_counts_once(crew, peers):
    dataset, steps = Counted(200), []
    made = [make(crew, min_peers=peers, global_batch=16) for _ in range(peers)]

    def act(number):
        run, model, optimizer = made[number]
        seen = []
        batches = run.batches(dataset, epochs=1)
        with run:
            assert run.batch_size in (16 // peers, 16 // peers + 1)
            for (numbers,) in batches:
                steps.append((run.round, len(numbers)))
                seen += numbers.tolist()
                optimizer.zero_grad()
                model(numbers.float().unsqueeze(1).expand(-1, 6) / 100).square().mean().backward()
                optimizer.step()
            return seen, run.outer_digest()

    told = crew.together(peers, act)
    assert sorted(each for seen, _ in told for each in seen) == list(range(200))
    assert len({digest for _, digest in told}) == 1
    sizes = {}
    for step, size in steps:
        sizes[step] = sizes.get(step, 0) + size
    assert [sizes[step] for step in sorted(sizes)] == [16] * 12 + [8]


def test_what_does_not_go_is_said(crew):
    run, model, optimizer = make(crew)
    with pytest.raises(UsageError, match="sync_every must be one of its settings"):
        make(crew, sync_every=3)
    with pytest.raises(UsageError, match="global_batch"):
        assert run.batch_size
    with pytest.raises(UsageError, match="batch_size or global_batch"):
        run.batches(Counted(3))
    with run:
        x, y = oracle.data(0, 0)
        ((model(x) - y) ** 2).mean().backward()
        with pytest.raises(UsageError, match="before backward"):
            run.count_tokens(3)
        with pytest.raises(UsageError, match="pass accumulate"):
            ((model(x) - y) ** 2).mean().backward()
        with pytest.raises(UsageError, match="as backward left them"):  # The second pass is in some of them.
            optimizer.step()


def test_a_peer_that_makes_rounds_is_refused(crew):
    first, model, optimizer = make(crew)
    other = oracle.make_model()
    joined, done = threading.Event(), threading.Event()

    def act(number):
        if number:
            joined.wait(HANG_S)
            with (
                pytest.raises(UsageError, match="bucket_bytes=0"),
                DiLoCo(crew.address, other, oracle.make_optimizer(other)),
            ):
                pass
            return done.set()
        with first:
            joined.set()
            while not done.is_set():
                oracle.inner_step(model, optimizer, 0, 0)
        return None

    crew.together(2, act)


def test_too_few_peers_hold_their_gradients_until_another_comes(crew, caplog):
    """The step that was under way is made with the newcomer, as if it had been there from the beginning."""
    made = [make(crew, min_peers=2) for _ in range(3)]
    left, pause = threading.Event(), threading.Event()
    expected = oracle.train_parallel(2, 8)

    def act(number):
        run, model, optimizer = made[number]
        if number == 2:
            left.wait(HANG_S)
            while "min_peers is 2, and 1 peer is here" not in caplog.text:  # If it came at once there would be no wait.
                pause.wait(0.05)
        with run:
            while run.step < (3 if number == 1 else 8):
                oracle.inner_step(model, optimizer, min(number, 1), run.step)
        if number == 1:
            left.set()
        return dict(model.named_parameters())

    first, _, third = crew.together(3, act)
    close(first, expected)
    close(third, expected)
    assert "min_peers is 2, and 1 peer is here" in caplog.text
