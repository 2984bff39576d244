"""After a delta that was not finite an optimizer begins anew: its next steps are as far as its first ones were."""

import copy

import pytest
import torch

from pccl.training.guards import Guards
from pccl.training.settings import Settings

KINDS = {
    "AdamW": lambda each: torch.optim.AdamW(each, lr=1e-3, weight_decay=0.0),
    "AdamW, fused": lambda each: torch.optim.AdamW(each, lr=1e-3, weight_decay=0.0, fused=True),
    "AdamW, foreach, amsgrad": lambda each: torch.optim.AdamW(each, lr=1e-3, foreach=True, amsgrad=True),
    "NAdam": lambda each: torch.optim.NAdam(each, lr=1e-3),
    "RAdam": lambda each: torch.optim.RAdam(each, lr=1e-3),
    "Adagrad": lambda each: torch.optim.Adagrad(each, lr=1e-3, initial_accumulator_value=0.5),
    "Rprop": lambda each: torch.optim.Rprop(each, lr=1e-3),
    "SGD": lambda each: torch.optim.SGD(each, lr=1e-3, momentum=0.9),
    "RMSprop": lambda each: torch.optim.RMSprop(each, lr=1e-3, momentum=0.9, centered=True),
}


def parameters():
    torch.manual_seed(3)
    return [torch.nn.Parameter(torch.randn(50)), torch.nn.Parameter(torch.randn(4, 5).to(torch.bfloat16))]


def step(held, optimizer, number, bad=None):
    chance = torch.Generator().manual_seed(number)
    for place, each in enumerate(held):
        each.grad = torch.randn(each.shape, generator=chance).add_(0.3).to(each.dtype)
        if place == bad:
            each.grad.view(-1)[0] = float("nan")
    optimizer.step()


def tensors(optimizer):
    return [
        (key, value)
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    ]


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_finite_is_reset_to_its_beginning(kind, bad):
    """Also that of other parameters: what has spoiled one may have left the others with moments that are huge."""
    held = parameters()
    optimizer = KINDS[kind](held)
    before = copy.deepcopy(held)
    for number in range(200):
        step(held, optimizer, number)
    step(held, optimizer, 200, bad)
    places = [(key, value.data_ptr(), value.dtype, value.device) for key, value in tensors(optimizer)]
    assert not all(bool(value.isfinite().all()) for _, value in tensors(optimizer))
    Guards(Settings(), [optimizer], str).reset_optimizers()
    with torch.no_grad():
        for each, old in zip(held, before, strict=True):
            each.copy_(old)
    # What a graph of the device has captured is the memory: it stays where it was.
    assert [(key, value.data_ptr(), value.dtype, value.device) for key, value in tensors(optimizer)] == places
    fresh = copy.deepcopy(before)
    other = KINDS[kind](fresh)
    for number in range(5):
        step(held, optimizer, number)
        step(fresh, other, number)
    for each, wanted in zip(held, fresh, strict=True):
        assert torch.equal(each, wanted)


def test_one_that_is_finite_stays_as_it_is():
    spoiled, sound = parameters(), parameters()
    optimizers = [KINDS["AdamW"](spoiled), KINDS["AdamW"](sound)]
    for held, optimizer in zip((spoiled, sound), optimizers, strict=True):
        step(held, optimizer, 0)
        step(held, optimizer, 1, 0 if held is spoiled else None)
    expected = copy.deepcopy([value for _, value in tensors(optimizers[1])])
    Guards(Settings(), optimizers, str).reset_optimizers()
    assert all(
        torch.equal(*each) for each in zip(expected, [value for _, value in tensors(optimizers[1])], strict=True)
    )
    assert all(not bool(value.any()) for _, value in tensors(optimizers[0]))


def test_one_whose_state_only_a_step_makes_begins_without_any():
    held = [torch.nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.LBFGS(held, lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = held[0].square().sum() * scale
        loss.backward()
        return loss

    scale = 1.0
    optimizer.step(closure)
    optimizer.state[held[0]]["d"].fill_(float("inf"))
    Guards(Settings(join="fresh"), [optimizer], str).reset_optimizers()
    with torch.no_grad():
        held[0].fill_(1.0)
    optimizer.step(closure)
    assert bool(held[0].isfinite().all())
    assert float(held[0].detach().norm()) < 1.0
