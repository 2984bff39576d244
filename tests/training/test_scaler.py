"""Training under torch's GradScaler: a step that it leaves out is none, whichever way the optimizer learns of it."""

import pytest
import torch

from pccl import UsageError
from pccl.training import DataParallel, DiLoCo
from tests.training import oracle
from tests.training.test_oracle import close, outer_of

EVERY, ROUNDS = 4, 3
X = None
"""A batch whose gradients are not finite."""

PLAIN = list(range(ROUNDS * EVERY))
LEFT_OUT = [0, 1, X, 2, 3, 4, 5, 6, 7, 8, X, 9, 10, 11]
"""The optimizer is not called for it, so the round is one batch longer."""
CALLED = [0, 1, X, 2, 4, 5, 6, 7, 8, X, 9, 10]
"""One that is fused is called, and its device leaves the step out: the round is one step shorter."""


def scaled_step(scaler, model, optimizer, peer, step):
    """As the oracle's: a scale that is a power of two changes no bit of a gradient."""
    x, y = oracle.data(peer, step or 0)
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad()
    scaler.scale(loss * float("inf") if step is X else loss).backward()
    scaler.step(optimizer)
    scaler.update()


def make(fused, lr=0.05):
    model = oracle.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=fused)
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=1024.0)


@pytest.mark.parametrize(("fused", "second", "steps"), [(False, LEFT_OUT, 4), (True, CALLED, 3)])
def test_a_step_that_is_left_out_has_no_weight(crew, fused, second, steps):
    outer, _ = oracle.train(2, ROUNDS, EVERY, 0.7, 0.9, quotas=[[4, steps], [4, 4], [4, steps]])

    made = [make(fused) for _ in range(2)]

    def act(number):
        torch.set_num_threads(1)
        model, optimizer, scaler = made[number]
        with DiLoCo(crew.address, model, optimizer, sync_every=EVERY, min_peers=2) as run:
            for step in second if number else PLAIN:
                scaled_step(scaler, model, optimizer, number, step)
            assert run.round == ROUNDS
            return outer_of(run), run.outer_digest(), scaler.get_scale()

    told = crew.together(2, act)
    assert [scale for _, _, scale in told] == [1024.0, 256.0]  # each its own
    assert len({digest for _, digest, _ in told}) == 1
    for found, _, _ in told:
        close(found, outer.theta)


@pytest.mark.parametrize("fused", [False, True])
def test_a_round_of_steps_that_are_all_left_out_moves_nothing(crew, fused):
    model, optimizer, scaler = make(fused)
    with DiLoCo(crew.address, model, optimizer, sync_every=EVERY) as run:
        before = run.outer_digest()
        for _ in range(EVERY):
            scaled_step(scaler, model, optimizer, 0, X)
        assert (run.round, run.step) == ((1, EVERY) if fused else (0, 0))
        assert run.outer_digest() == before


@pytest.mark.parametrize("fused", [False, True])
def test_with_a_learning_rate_of_zero_nothing_moves(crew, fused):
    made = [make(fused, lr=0.0) for _ in range(2)]

    def act(number):
        model, optimizer, scaler = made[number]
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)  # too large for float16 until it has been halved often
        with DiLoCo(crew.address, model, optimizer, sync_every=3, min_peers=2, quantize="int8") as run:
            digests = {run.outer_digest()}
            for step in range(60):
                x, y = oracle.data(number, step)
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                digests.add(run.outer_digest())
            while run.round < 20:  # Peers have left out as many, but that is not what is tested.
                run.finish_round()
        return digests

    first, second = crew.together(2, act)
    assert len(first) == 1
    assert first == second


@pytest.mark.parametrize("fused", [False, True])
def test_data_parallelism_refuses_a_scaler(crew, fused):
    model, optimizer, scaler = make(fused)
    with pytest.raises(UsageError, match="GradScaler"), DataParallel(crew.address, model, optimizer):
        scaled_step(scaler, model, optimizer, 0, 0)


def test_gradients_that_are_clipped_too_early_are_refused(crew):
    model, optimizer, _ = make(False)
    with DataParallel(crew.address, model, optimizer) as run:
        for early in (False, True):
            x, y = oracle.data(0, 0)
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            if not early:
                run.reduce()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            if early:
                with pytest.raises(UsageError, match=r"run\.reduce\(\)"):
                    optimizer.step()
            else:
                optimizer.step()
