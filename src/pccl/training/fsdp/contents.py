"""What of a model that is sharded over the ranks of a node takes part in a run: the shards that lie on this rank.

Owns the way from DTensors to what lies here and back. Ranks at the same place of the mesh hold the same shards on all
nodes, so to them these are like a model of their own. Must not know rounds or how ranks agree.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import nn, optim
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from pccl import Communicator, ErrorFeedback, UsageError
from pccl.training.checkpoint import export
from pccl.training.contents import Contents, Named, is_sharded, split
from pccl.training.fsdp.checkpoint import TENSORS, ShardedSaver, newest
from pccl.training.fsdp.group import NodeGroup
from pccl.training.fsdp.node import node_of
from pccl.training.optimizers import check_kinds, kinds_of
from pccl.training.outer import Fragment
from pccl.training.settings import Settings
from pccl.training.state import fits, make_state, shapes_of, unwrapped


def local(tensor: Any) -> torch.Tensor:
    """What of a tensor lies on this rank: its memory, not a copy."""
    if hasattr(tensor, "to_local"):
        with torch.no_grad():
            here: torch.Tensor = tensor.detach().to_local()
            return here
    plain: torch.Tensor = tensor
    return plain


class ShardedFragment(Fragment):
    """Some parameters of a sharded model."""

    def __init__(self, named: Named, buffers: int, eager: bool) -> None:
        self.whole = [parameter for _, parameter in named]
        """As the model has them."""
        super().__init__([(name, local(parameter)) for name, parameter in named], buffers, eager)

    def crossings(self) -> Iterator[tuple[slice, list[torch.Tensor]]]:
        """Looked up again and again: a model that was moved or loaded has other memory."""
        self.parameters = [local(each) for each in self.whole]
        return super().crossings()


class ShardedContents(Contents):
    """Of a model that `fully_shard` was called on, and its optimizers."""

    sharded = True

    def __init__(self, model: nn.Module, optimizers: Sequence[optim.Optimizer], settings: Settings) -> None:
        _reshard(unwrapped(model))
        self.node = node_of(list(model.named_parameters()))
        super().__init__(model, optimizers, settings)
        self._equalise()

    def group(self, place: str | Communicator, codec: str | ErrorFeedback | None) -> NodeGroup:
        """The same rank of other nodes."""
        return NodeGroup(place, codec, self.node)

    def _check_kind(self, name: str, parameter: torch.Tensor) -> None:
        """`node_of` has looked at all of them."""

    def _here(self, tensor: torch.Tensor) -> torch.Tensor:
        return local(tensor)

    def _divide(self, trained: Named) -> list[Fragment]:
        """By the sizes of the whole parameters, so that all ranks divide alike."""
        held = 2 if self._settings.overlap == "round" else 1
        parts = split(trained, self._settings.fragments)
        return [ShardedFragment(part, held, self._settings.eager) for part in parts]

    def _check_parameters(self) -> None:
        _reshard(self._model)
        super()._check_parameters()

    def agreed(self) -> dict[str, str]:
        """The shape of the mesh, too."""
        return {"ranks of a node": self.node.shape, **super().agreed()}

    def buffer_values(self) -> torch.Tensor:
        """Of this node: the mean of its ranks', of integers the largest."""
        own = super().buffer_values()
        if not len(own):
            return own
        values = torch.stack(self.node.gather(own))
        real = torch.cat([torch.full((each.numel(),), each.is_floating_point()) for _, each in self._buffers])
        return torch.where(real, values.mean(0), values.amax(0))

    # ── saving ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def sharded_outer(self) -> dict[str, Any]:
        """Outer parameters by name, as parts of whole ones on the host; rounds change them."""
        return dict(self._distributed("theta"))

    def _distributed(self, kind: str) -> Iterator[tuple[str, DTensor]]:
        for fragment in self._outer:
            assert isinstance(fragment, ShardedFragment), "made here"
            for name, place, whole in zip(fragment.names, fragment.places, fragment.whole, strict=True):
                yield name, self._on_host(getattr(fragment, kind)[place].view(local(whole).shape), whole)

    def _on_host(self, here: torch.Tensor, whole: Any) -> DTensor:
        mesh, like = self.node.host_mesh, whole.detach()
        return DTensor.from_local(here.cpu(), mesh, like.placements, shape=like.shape, stride=like.stride())

    def state_dict(self) -> dict[str, Any]:
        """A copy on the host: tensors of which each rank has its part, by names that do not depend on how many there
        are. A device that a model just fits on has no room for another one of it."""
        groups = [[_plain(group) for group in each.param_groups] for each in self._optimizers]
        tensors = {name: self._copied(each) for name, each in self._saved()}
        kinds, values = kinds_of(self._optimizers), self._held.values()
        return {TENSORS: tensors, "groups": groups, "kinds": kinds, "values": values, "ranks": self.node.shape}

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        here = local(tensor).detach().to("cpu", copy=True)
        return self._on_host(here, tensor) if is_sharded(tensor) else here

    def _saved(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All that is saved, where it lies."""
        for kind, where in (("outer", "theta"), ("momentum", "momentum")):
            yield from ((f"{kind}.{name}", each) for name, each in self._distributed(where))
        wholes = [(f"frozen.{name}", path) for name, path, each in self._places if not each.requires_grad]
        yield from ((name, self._model.get_parameter(path).detach()) for name, path in wholes)
        yield from ((f"buffer.{name}", self._model.get_buffer(path)) for name, path in self._buffer_places)
        self._make_all_states()
        yield from self._held.tensors()

    def _make_all_states(self) -> None:
        for optimizer in self._optimizers:
            make_state(optimizer)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises `UsageError` if it is of another model, before anything is changed."""
        check_kinds(kinds_of(self._optimizers), state.get("kinds"))
        mine, theirs = dict(self._saved()), state.get(TENSORS, {})
        fits(TENSORS, shapes_of(mine), shapes_of(theirs))
        for name, tensor in mine.items():
            local(tensor).copy_(local(theirs[name]))
        for optimizer, groups in zip(self._optimizers, state["groups"], strict=True):
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                group.update(saved)
        self._held.put(state.get("values", {}))  # Versions before this one did not save them.
        self.take_over()

    def saver(self, folder: str, every: int, keep: int) -> ShardedSaver:
        """What writes states of the run, all ranks together."""
        self._make_all_states()
        self._held.values()  # An optimizer that cannot be saved is refused here, and not when a round has ended.
        return ShardedSaver(folder, every, keep, self.node)

    def newest(self, folder: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
        """The newest state that all ranks can read."""
        return newest(folder, self.node, make)

    def export(self, path: str) -> None:
        """Whole outer parameters, which all ranks give and the first one writes."""
        whole = {}
        for name, each in self.sharded_outer().items():
            tensor = self._whole(each)
            if tensor is not None:
                whole[name] = tensor
        error = ""
        if self.node.place == 0:
            try:
                export(whole, path)
            except (OSError, UsageError) as cause:
                error = str(cause)
        if error := self.node.exchange(error.encode())[0].decode():
            raise UsageError(error)

    def _whole(self, part: DTensor) -> torch.Tensor | None:
        """Of all ranks' parts, at the first of them."""
        shape, begin = compute_local_shape_and_global_offset(part.shape, self.node.host_mesh, part.placements)
        places = [msgspec.msgpack.decode(each) for each in self.node.exchange(msgspec.msgpack.encode((shape, begin)))]
        longest = max(math.prod(each[0]) for each in places)
        own = torch.zeros(longest)
        own[: part.to_local().numel()] = part.to_local().reshape(-1)
        parts = self.node.gather(own)
        if self.node.place:
            return None
        whole = torch.zeros(part.shape)
        for values, (size, at) in zip(parts, places, strict=True):
            where = tuple(slice(start, start + length) for start, length in zip(at, size, strict=True))
            whole[where] = values[: math.prod(size)].view(size)
        return whole

    # ── ranks that hold the same shards ──────────────────────────────────────────────────────────────────────────────

    def _equal(self, books: Named) -> Named:
        return super()._equal(books) if not self.node.copy else books

    def _free(self) -> Named:
        return super()._free() if not self.node.copy else []

    def _equalise(self) -> None:
        """The first of them fetches from other nodes; the others have it from that."""
        self.node.equalise(
            [each for _, each in self._alike() + self._frozen + self._buffers + self._optimizer_tensors()]
        )
        self._held.unpack()
        for fragment in self._outer:
            fragment.changed()
            fragment.write()

    def take_over(self) -> None:
        """The outer state came from others: the model follows, on all ranks."""
        self._equalise()
        super().take_over()


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint keeps of a group of an optimizer's parameters."""
    return {key: value for key, value in group.items() if key != "params"}


def _reshard(model: nn.Module) -> None:
    """A model that was only called forward may still have its parameters whole."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.reshard()
