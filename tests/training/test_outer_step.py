"""The outer step: the native kernel and torch give the same bits, also to what is not finite, not normal, or odd."""

import math

import pytest
import torch

from pccl.training import outer
from pccl.training.outer import Fragment


def fragment(count, seed=0):
    torch.manual_seed(seed)
    made = Fragment([("weight", torch.nn.Parameter(torch.randn(count)))], 1, False)
    made.momentum.normal_()
    made.deltas[0].normal_()
    made.deltas[0].mul_(torch.rand(count).mul_(60).sub_(50).exp2())  # from subnormal products to large ones
    return made


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 4095, 4096, 70_001])
@pytest.mark.parametrize(("total", "rate", "momentum"), [(1.0, 0.7, 0.9), (12_287.0, 0.4, 0.9), (3.0, 1.0, 0.0)])
def test_both_ways_give_the_same_bits(monkeypatch, count, total, rate, momentum):
    assert outer.outer_step is not None, "the native part is there"
    native, plain = fragment(count), fragment(count)
    for special in (float("inf"), float("nan"), 1e-45, -0.0):
        for each in (native, plain):
            each.deltas[0][count // 2 : count // 2 + 1] = special
        told = native.step(native.deltas[0].clone(), total, rate, momentum)
        with monkeypatch.context() as without:
            without.setattr(outer, "outer_step", None)
            expected = plain.step(plain.deltas[0].clone(), total, rate, momentum)
        for name in ("theta", "momentum"):
            mine, theirs = (getattr(each, name).view(torch.int32) for each in (native, plain))
            finite = getattr(plain, name).isfinite()  # The bits of a NaN are of the CPU that made it.
            assert torch.equal(mine[finite], theirs[finite])
            assert torch.equal(getattr(native, name).isnan(), getattr(plain, name).isnan())
        if math.isfinite(expected.cosine):
            assert tuple(told) == pytest.approx(tuple(expected), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("native", [True, False])
def test_the_cosine_is_that_of_the_mean_delta_and_the_momentum_before_it(monkeypatch, native):
    """Near 1 while rounds agree, below 0 when they undo each other."""
    if not native:
        monkeypatch.setattr(outer, "outer_step", None)
    made = fragment(3)
    for delta, norm, cosine in (
        ([3.0, 4.0, 0.0], 2.5, 1.0),
        ([0.0, 0.0, 9.0], 4.5, 0.0),
        ([-4.0, -3.0, 0.0], 2.5, -0.96),
    ):
        made.momentum.copy_(torch.tensor([6.0, 8.0, 0.0]))
        told = made.step(torch.tensor(delta), 2.0, 0.7, 0.9)
        assert tuple(told) == pytest.approx((norm, cosine), abs=1e-6)


def test_a_digest_follows_the_step():
    made = fragment(100)
    before = made.digest()
    made.step(made.deltas[0], 1.0, 0.7, 0.9)
    assert made.digest() != before
