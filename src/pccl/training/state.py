"""What of a torch model and its optimizer peers must hold alike.

Owns the names of these tensors, which are the same on every peer that builds the same model. Must not know
communicators or elections.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn, optim


def named_tensors(module: nn.Module, optimizer: optim.Optimizer | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers under their names in the module, then the optimizer's state under those of parameters."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            yield f"module.{name}", tensor.detach()
    if optimizer is not None:
        yield from _optimizer_tensors(module, optimizer)


def _optimizer_tensors(module: nn.Module, optimizer: optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    make_state(optimizer)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter), f"{number}.{place}")
            for key, value in sorted(optimizer.state[parameter].items()):
                if isinstance(value, torch.Tensor):
                    yield f"optimizer.{name}.{key}", value


def make_state(optimizer: optim.Optimizer) -> None:
    """Make the state that an optimizer makes in its first step, and change nothing else.

    A step without gradients makes none, and one with gradients of zero would still decay weights and count itself. So
    learning rate and decay are 0 for one step, and what it counted is set back."""
    if any(optimizer.state.values()):
        return
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    gradients = [each.grad for each in parameters]
    settings: list[dict[str, Any]] = [
        {key: group[key] for key in ("lr", "weight_decay") if key in group} for group in optimizer.param_groups
    ]
    before = [each.detach().clone() for each in parameters]
    for each in parameters:
        each.grad = torch.zeros_like(each)
    for group, kept in zip(optimizer.param_groups, settings, strict=True):
        group.update({key: 0 * value for key, value in kept.items()})
    try:
        optimizer.step()
    finally:
        for group, kept in zip(optimizer.param_groups, settings, strict=True):
            group.update(kept)
        for each, gradient in zip(parameters, gradients, strict=True):
            each.grad = gradient
    _forget_the_step(optimizer, parameters, before)


def _forget_the_step(optimizer: optim.Optimizer, parameters: list[torch.Tensor], before: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for each, value in zip(parameters, before, strict=True):
            each.copy_(value)  # -0.0 + 0.0 is 0.0: a step of nothing may still change bits
        for state in optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"].zero_()
            elif "step" in state:
                state["step"] = 0
