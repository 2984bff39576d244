"""What of a torch model and its optimizer peers must hold alike.

Owns the names of these tensors, which are the same on every peer that builds the same model. Must not know
communicators or elections.
"""

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import nn, optim

from pccl.errors import UsageError

COMPILED = "_orig_mod"
"""The name that `torch.compile` gives to what it wraps: a part of a path, and no name of the user's."""


class Following:
    """A model and its optimizer, looked at again and again."""

    def __init__(self, module: nn.Module, optimizer: optim.Optimizer | None) -> None:
        self._module = module
        self._optimizer = optimizer
        self._names: set[str] | None = None
        """As first found."""

    def look(self) -> list[tuple[str, torch.Tensor]]:
        """What they hold now. An optimizer without the state that it has after a step gets that first: one that is new,
        or was loaded from before its first step."""
        found = named_tensors(self._module, self._optimizer)
        if self._optimizer is not None and (self._names is None or self._names - {name for name, _ in found}):
            make_state(self._optimizer)
            found = named_tensors(self._module, self._optimizer)
        self._names = self._names or {name for name, _ in found}
        return found


def named_tensors(module: nn.Module, optimizer: optim.Optimizer | None) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers under their names in the module, then the optimizer's state under those of parameters: as
    they are at this moment. Each tensor is there once, under its first name, and whether the model is compiled or
    wrapped for data parallelism makes no difference."""
    names: dict[int, str] = {}
    found: list[tuple[str, torch.Tensor]] = []
    for name, tensor in _module_tensors(unwrapped(module)):
        if id(tensor) not in names:
            names[id(tensor)] = name
            found.append((f"module.{name}", tensor))
    if optimizer is not None:
        found.extend(_optimizer_tensors(optimizer, names))
    return [in_memory_order(name, tensor) for name, tensor in found]


def in_memory_order(name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """What lies on the CPU in another order, such as images with their colours last, as a view in the order of its
    memory. The name says which: a peer whose elements lie otherwise is refused, and takes none for another."""
    if tensor.device.type != "cpu" or tensor.is_contiguous():
        return name, tensor
    sizes, strides = tuple(tensor.shape), tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda axis: (sizes[axis] == 1, -strides[axis]))
    view = tensor.permute(order)
    if not view.is_contiguous():  # A part of another tensor: where it is needed in one stretch, that is an error.
        return name, tensor
    return f"{name} with axes {','.join(str(axis) for axis in order if sizes[axis] != 1)}", view


def shapes_of(tensors: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors by name; none if this is no dict of tensors."""
    return {name: tuple(each.shape) for name, each in tensors.items()} if isinstance(tensors, dict) else {}


def fits(kind: str, mine: dict[str, tuple[int, ...]], theirs: dict[str, tuple[int, ...]]) -> None:
    """Raises `UsageError` that names what of a saved state is not as here."""
    other = next((name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)), None)
    if other is not None:
        must = f"hold {other!r} of shape {mine[other]}" if other in mine else f"not hold {other!r}"
        raise UsageError(f"load_state_dict: {kind} must {must}, as the model here does; load another checkpoint")


def unwrapped(module: nn.Module) -> nn.Module:
    """Without what it was compiled or wrapped for data parallelism in. By type: a child may have any name."""
    while True:
        if hasattr(module, COMPILED):
            module = getattr(module, COMPILED)
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def _module_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """In the order of `state_dict`, and only what is in that."""
    for path, part in module.named_modules():
        place = [each for each in path.split(".") if each and each != COMPILED]
        for leaf, tensor in chain(part._parameters.items(), part._buffers.items()):
            if tensor is not None and leaf not in part._non_persistent_buffers_set:
                yield ".".join([*place, leaf]), tensor


def _optimizer_tensors(optimizer: optim.Optimizer, names: dict[int, str]) -> Iterator[tuple[str, torch.Tensor]]:
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            name = names.get(id(parameter), f"{number}.{place}")
            for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                if isinstance(value, torch.Tensor):
                    yield f"optimizer.{name}.{key}", value


def make_state(optimizer: optim.Optimizer) -> None:
    """Make the state that an optimizer makes in its first step, and change nothing else.

    One parameter after the other: memory for a copy and a gradient of all of them may not be there. Hooks of the user
    are for steps that are taken."""
    if any(optimizer.state.values()):
        return

    def make(parameter: torch.Tensor) -> None:
        if parameter.requires_grad:
            _make_state_of(optimizer, parameter)

    _one_by_one(optimizer, make)


def renew_state(optimizer: optim.Optimizer) -> None:
    """Set the state to what it is before the first step, in the memory in which it lies: a graph of the device may have
    captured that. A state that only a step of the loop makes is none after it."""

    def renew(parameter: torch.Tensor) -> None:
        before = optimizer.state.pop(parameter, None)
        if not before:
            return
        with contextlib.suppress(UsageError):
            _make_state_of(optimizer, parameter)
        state = optimizer.state[parameter]
        for key, value in state.items():
            kept = before.get(key)
            if isinstance(value, torch.Tensor) and isinstance(kept, torch.Tensor) and kept.shape == value.shape:
                state[key] = kept.copy_(value)

    _one_by_one(optimizer, renew)


def _one_by_one(optimizer: optim.Optimizer, act: Callable[[torch.Tensor], None]) -> None:
    """For each of its parameters, while it has that one alone, and no hooks."""
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    groups = optimizer.param_groups
    try:
        for group in groups:
            for parameter in group["params"]:
                optimizer.param_groups = [{**group, "params": [parameter]}]
                act(parameter)
    finally:
        optimizer.param_groups = groups
        optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks = hooks


def _make_state_of(optimizer: optim.Optimizer, parameter: torch.Tensor) -> None:
    gradient = parameter.grad
    parameter.grad = torch.zeros_like(parameter.detach())  # without one there is no step
    try:
        _begin_step(optimizer)
        if not optimizer.state.get(parameter):
            _idle_step(optimizer, parameter)
    except (TypeError, RuntimeError) as error:
        raise UsageError(
            f"{type(optimizer).__name__}: its state must be there before peers can share it, and without a step of the "
            f'loop it cannot be made ({error}); make a step before, or pass join="fresh" to DiLoCo'
        ) from error
    finally:
        parameter.grad = gradient


class _Begun(Exception):
    """The state was made, and the step has not begun to use it."""


def _begin_step(optimizer: optim.Optimizer) -> None:
    """Torch's optimizers make their state in a method of its own, before they change anything: no further than that."""
    make: Any = getattr(optimizer, "_init_group", None)
    if make is None:
        return

    def make_and_stop(*arguments: Any, **options: Any) -> None:
        make(*arguments, **options)
        raise _Begun

    vars(optimizer)["_init_group"] = make_and_stop
    try:
        _plain_step(optimizer)
    except _Begun:
        pass
    finally:
        del vars(optimizer)["_init_group"]


def _idle_step(optimizer: optim.Optimizer, parameter: torch.Tensor) -> None:
    """A step of an optimizer that makes its state on the way. One with gradients of zero would still decay weights and
    count itself: so learning rate and decay are 0 for it, and what it counted is set back."""
    (group,), before = optimizer.param_groups, parameter.detach().clone()
    group.update({key: 0 * group[key] for key in ("lr", "weight_decay") if key in group})
    try:
        _plain_step(optimizer)
    finally:
        with torch.no_grad():
            parameter.copy_(before)  # -0.0 + 0.0 is 0.0: a step of nothing may still change bits
    state = optimizer.state[parameter]
    if isinstance(state.get("step"), torch.Tensor):
        state["step"].zero_()
    elif "step" in state:
        state["step"] = 0


def _plain_step(optimizer: optim.Optimizer) -> None:
    """Its step without what torch and schedulers have wrapped around it: those count steps and call hooks."""
    step: Any = type(optimizer).step
    if getattr(step, "hooked", False):
        step = step.__wrapped__
    step(optimizer)
