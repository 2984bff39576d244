"""What of a model and its optimizers takes part in a run: fragments, buffers, and what a newcomer is given.

Owns the names, which must be the same on all peers, and the division into fragments. Must not know rounds or peers.
"""

import copy
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import torch
import xxhash
from torch import nn, optim

from pccl import Communicator, ErrorFeedback, SharedState, TensorInfo, UsageError
from pccl.training.checkpoint import Saver, export, newest
from pccl.training.group import Group
from pccl.training.optimizers import Optimizers, check_kinds, kinds_of
from pccl.training.outer import Fragment, Stretch
from pccl.training.rows import Table
from pccl.training.settings import Settings
from pccl.training.state import COMPILED, fits, in_memory_order, make_state, shapes_of, unwrapped

Named = list[tuple[str, torch.Tensor]]


class Contents:
    """A model and its optimizers."""

    sharded = False
    """This process holds a part of it."""

    def __init__(self, model: nn.Module, optimizers: Sequence[optim.Optimizer], settings: Settings) -> None:
        model = unwrapped(model)
        self._model, self._settings, self._optimizers = model, settings, optimizers
        self._places = [(plain_name(path), path, each) for path, each in model.named_parameters()]
        """Parameters by their names here and in the model."""
        named: Named = [(name, each) for name, _, each in self._places]
        for name, parameter in named:
            self._check_kind(name, parameter)
            if parameter.is_complex():
                raise UsageError(
                    f"training: {name!r} must be real, got {parameter.dtype}; hold torch.view_as_real of it"
                )
        trained: Named = [(name, each) for name, each in named if each.requires_grad]
        self._frozen_places = [place for place in self._places if not place[2].requires_grad]
        if not trained:
            raise UsageError("training: model must have a parameter that requires a gradient, got none")
        stepped = {id(each) for optimizer in optimizers for group in optimizer.param_groups for each in group["params"]}
        if not any(id(each) in stepped for _, each in trained):
            raise UsageError("training: optimizer must step parameters of model, got others; build it from this model")
        self._outer = self._divide(trained)
        self.fragments: Sequence[Stretch] = self._outer
        """What is reduced, each by itself."""
        self._held = Optimizers(optimizers, {id(each): name for name, each in named})
        self._buffer_places = [] if settings.buffers == "local" else _buffers(model)
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._left_out: int | torch.Tensor = 0
        self._make_states()

    def _check_kind(self, name: str, parameter: torch.Tensor) -> None:
        if is_sharded(parameter):
            raise UsageError(
                f"DataParallel: parameter {name!r} must be a plain tensor, got a DTensor; sharded models are for DiLoCo"
            )

    def group(self, place: str | Communicator, codec: str | ErrorFeedback | None) -> Group:
        """Those with which such contents are shared."""
        return Group(place, codec)

    def _here(self, tensor: torch.Tensor) -> torch.Tensor:
        """What of a tensor lies in this process."""
        return tensor

    def _divide(self, trained: Named) -> list[Fragment]:
        held = 2 if self._settings.overlap == "round" else 1
        parts = split(trained, self._settings.fragments)
        return [Fragment(part, held, self._settings.eager) for part in parts]

    # ── what the model holds now ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def _frozen(self) -> Named:
        """Looked up again and again: a model that was moved has others."""
        frozen = [(name, path) for name, path, _ in self._frozen_places]
        return [(name, self._here(self._model.get_parameter(path).detach())) for name, path in frozen]

    @property
    def _buffers(self) -> Named:
        return [(name, self._here(self._model.get_buffer(path))) for name, path in self._buffer_places]

    def _check_parameters(self) -> None:
        """The optimizer steps the parameters that it was made with, and so does the run."""
        for name, path, parameter in self._places:
            if parameter.requires_grad and self._model.get_parameter(path) is not parameter:
                raise UsageError(
                    f"training: parameter {name!r} must stay the one that the run was made with, got another; build "
                    "the optimizer and the run after the model was loaded with assign=True"
                )

    def check_frozen(self) -> None:
        """What was frozen when the run was made has no delta: it must stay so. What is frozen later has one of 0."""
        for name, _, parameter in self._frozen_places:
            if parameter.requires_grad:
                raise UsageError(
                    f"training: parameter {name!r} was frozen when the run was made, and must stay so, but is trained "
                    "now; build another run on all peers, while all that will be trained requires a gradient"
                )

    def _make_states(self) -> None:
        if self._settings.join == "holder":
            for optimizer in self._optimizers:
                make_state(optimizer)

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, step_done: Callable[[], None]) -> None:
        """Call this after each step of the last optimizer."""

        def stepped(optimizer: optim.Optimizer, *_: object) -> None:
            # Set by a GradScaler where the optimizer is fused. Not looked at here: the device has not come to it yet.
            found_inf = getattr(optimizer, "found_inf", None)
            if found_inf is not None:
                self._left_out = self._left_out + (found_inf != 0)
            step_done()

        self._hooks.append(self._optimizers[-1].register_step_post_hook(uncompiled(stepped)))

    @property
    def left_out(self) -> int:
        """Steps for which the optimizer was called, and its device made none: gradients were not finite."""
        return int(self._left_out)

    def detach(self) -> None:
        """Call it no more."""
        while self._hooks:
            self._hooks.pop().remove()

    # ── what is shared ───────────────────────────────────────────────────────────────────────────────────────────────

    def shared_state(self, revision: int, books: Named) -> SharedState:
        """All that a newcomer must get."""
        state = SharedState(self.entries(books))
        state.revision = revision
        return state

    def entries(self, books: Named) -> list[TensorInfo]:
        """What of it is where now. Settings are names of entries: a peer with others has other entries."""
        self._check_parameters()
        self._make_states()  # of one that was loaded from before its first step
        settings = [f"setting {name}={value}" for name, value in self.agreed().items()]
        infos = [TensorInfo.from_torch(torch.zeros(1), name) for name in settings]
        infos += [TensorInfo.from_torch(each, name) for name, each in self._equal(books)]
        return infos + [TensorInfo.from_torch(each, name, allow_content_inequality=True) for name, each in self._free()]

    def shared(self, books: Named) -> Named:
        """What a newcomer may get from others, settings apart."""
        return [*self._equal(books), *self._free()]

    def _equal(self, books: Named) -> Named:
        found = [*self._alike(), *((f"frozen.{name}", each) for name, each in self._frozen), *books]
        return [in_memory_order(name, each) for name, each in found]

    def _free(self) -> Named:
        found = [*((f"buffer.{name}", each) for name, each in self._buffers), *self._apart()]
        return [in_memory_order(name, each) for name, each in found]

    def _alike(self) -> Named:
        """What is trained, and equal on all peers."""
        found: Named = []
        for fragment in self._outer:
            for name, place in zip(fragment.names, fragment.places, strict=True):
                found += [(f"outer.{name}", fragment.theta[place]), (f"momentum.{name}", fragment.momentum[place])]
        return found

    def _apart(self) -> Named:
        """What a newcomer gets from any peer, and then has for itself."""
        return self._optimizer_tensors() if self._settings.join == "holder" else []

    def agreed(self) -> dict[str, str]:
        """What all peers must have alike, in words."""
        return self._settings.shared

    def settings_here(self) -> str:
        """In a sentence."""
        return ", ".join(f"{name}={value}" for name, value in self.agreed().items())

    def _optimizer_tensors(self) -> Named:
        """Of the optimizers, what lies here; plain values are packed into one, if newcomers get them."""
        tensors = [(name, self._here(value)) for name, value in self._held.tensors()]
        return tensors + self._held.packed() if self._settings.join == "holder" else tensors

    def synced(self) -> None:
        """What was given out by `entries` has come from others."""
        self._held.unpack()
        self.take_over()

    def take_over(self) -> None:
        """The outer state came from others: the model follows."""
        for fragment in self._outer:
            fragment.changed()
            fragment.write()

    def outer(self) -> dict[str, torch.Tensor]:
        """Outer parameters by name, in the shapes of the model's."""
        return {
            name: fragment.theta[place].view(parameter.shape)
            for fragment in self._outer
            for name, place, parameter in zip(fragment.names, fragment.places, fragment.parameters, strict=True)
        }

    def sharded_outer(self) -> dict[str, Any]:
        """Outer parameters of which this process has a part."""
        return {}

    def digest(self) -> str:
        """Of the outer state of all fragments."""
        found = xxhash.xxh3_128()
        for fragment in self.fragments:
            found.update(fragment.digest())
        return found.hexdigest()

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """A copy on the host, as plain tensors: a device that a model just fits on has no room for another one of
        it."""
        held = {
            "outer": self.outer(),
            "momentum": self._momentum(),
            "frozen": dict(self._frozen),
            "buffers": dict(self._buffers),
            "optimizers": [each.state_dict() for each in self._optimizers],
            "kinds": kinds_of(self._optimizers),
        }
        return {kind: on_host(each) for kind, each in held.items()}

    def _momentum(self) -> dict[str, torch.Tensor]:
        return {
            name: fragment.momentum[place]
            for fragment in self._outer
            for name, place in zip(fragment.names, fragment.places, strict=True)
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `UsageError` if it is of another model, before anything is changed."""
        goals = {
            "outer": self.outer(),
            "momentum": self._momentum(),
            "frozen": dict(self._frozen),
            "buffers": dict(self._buffers),
        }
        for kind, mine in goals.items():
            fits(kind, shapes_of(mine), shapes_of(state.get(kind)))
        check_kinds(kinds_of(self._optimizers), state.get("kinds"))
        for kind, mine in goals.items():
            for name, tensor in mine.items():
                tensor.copy_(state[kind][name])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.take_over()

    def saver(self, folder: str, every: int, keep: int) -> Saver:
        """What writes states of the run."""
        return Saver(folder, every, keep)

    def newest(self, folder: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The newest state in a folder; `make` makes one like it."""
        return newest(folder)

    def export(self, path: str) -> None:
        """Outer parameters into a file of safetensors."""
        export(self.outer(), path)

    # ── buffers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def buffer_values(self) -> torch.Tensor:
        """All of them, as they travel: few and exact, so they go with the row and not with the deltas."""
        values = [each.detach().reshape(-1).to("cpu", torch.float64) for _, each in self._buffers]
        return torch.cat(values) if values else torch.zeros(0, dtype=torch.float64)

    @torch.no_grad()
    def mean_buffers(self, table: Table, weights: Sequence[int]) -> None:
        """Set them to the weighted mean of those that are finite, integers to the largest; in the order of peers, so
        that bits are equal. Where none is finite a buffer stays what it was."""
        buffers, ends = [each for _, each in self._buffers], [0]
        for each in buffers:
            ends.append(ends[-1] + each.numel())
        places = [slice(*each) for each in pairwise(ends)]
        used = [(extra[-ends[-1] :], weight) for extra, weight in zip(table.extras, weights, strict=True) if weight]
        if not used or not buffers:
            return
        mean, total, most = torch.zeros_like(used[0][0]), torch.zeros_like(used[0][0]), used[0][0]
        for values, weight in used:
            counts = _finite(values, places) * float(weight)
            mean = mean + torch.where(counts > 0, values, 0.0) * counts
            total = total + counts
            most = torch.maximum(most, values)
        mean = mean / total
        for buffer, place in zip(buffers, places, strict=True):
            if not buffer.is_floating_point():
                buffer.copy_(most[place].view(buffer.shape))
            elif bool((total[place] > 0).all()):
                buffer.copy_(mean[place].view(buffer.shape))


def _finite(values: torch.Tensor, places: Sequence[slice]) -> torch.Tensor:
    """1 for each element of a place where all are finite, 0 for those of the others."""
    counts = torch.ones_like(values)
    if not bool(torch.isfinite(values).all()):
        for place in places:
            counts[place] = float(torch.isfinite(values[place]).all())
    return counts


def contents_of(model: nn.Module, optimizers: Sequence[optim.Optimizer], settings: Settings) -> Contents:
    """Of a model that lies here whole, or of which this process holds a part."""
    if any(map(is_sharded, model.parameters())):
        from pccl.training.fsdp.contents import ShardedContents  # They take time to import.

        return ShardedContents(model, optimizers, settings)
    return Contents(model, optimizers, settings)


def on_host(value: Any) -> Any:
    """A copy of tensors, and of what holds them."""
    match value:
        case torch.Tensor():
            return value.detach().to("cpu", copy=True)
        case dict():
            return {key: on_host(each) for key, each in value.items()}
        case list():
            return [on_host(each) for each in value]
        case tuple():
            return tuple(on_host(each) for each in value)
    return copy.deepcopy(value)


def is_sharded(tensor: torch.Tensor) -> bool:
    """A DTensor, known without importing what they are made of."""
    return hasattr(tensor, "to_local")


def uncompiled(call: Callable[..., None]) -> Callable[..., None]:
    """For a hook of steps that may be compiled: these call it as it is."""
    disable: Any = torch.compiler.disable
    return cast("Callable[..., None]", disable(call))


def plain_name(name: str) -> str:
    """Without what `torch.compile` puts into it: peers that compile parts of the model share a run with others."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def _buffers(model: nn.Module) -> list[tuple[str, str]]:
    """Those that a checkpoint would have, by their names here and in the model."""
    kept = {plain_name(name) for name in model.state_dict(keep_vars=True)}
    named = [(plain_name(path), path) for path, _ in model.named_buffers()]
    return [(name, path) for name, path in named if name in kept]


_BLOCK = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


def split(named: Named, fragments: int) -> list[Named]:
    """Blocks of layers by turns, so that each fragment has early and late ones; what is in no block, such as
    embeddings, goes where least is. The same for all peers with the same names and sizes."""
    parts: list[Named] = [[] for _ in range(fragments)]
    blocks = {name: int(block.group(1)) for name, _ in named if (block := _BLOCK.search(name))}
    numbers = sorted(set(blocks.values()))  # Between them may be what has no parameters.
    for name, parameter in named:
        if name in blocks:
            parts[numbers.index(blocks[name]) % fragments].append((name, parameter))
    loose = [(name, parameter) for name, parameter in named if name not in blocks]
    for entry in sorted(loose, key=lambda each: (-each[1].numel(), each[0])):
        min(parts, key=lambda part: sum(each.numel() for _, each in part)).append(entry)
    if not all(parts):
        filled = sum(map(bool, parts))
        raise UsageError(f"fragments must be at most {filled} for this model's blocks of layers, got {fragments}")
    return parts
