"""What data parallelism shares: parameters and optimizers that are the same on all peers, and gradients in buckets.

Owns the buckets and the way of gradients into them and back. Must not know steps or peers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import xxhash
from torch import nn, optim

from pccl import UsageError
from pccl.training.contents import Contents, Named, uncompiled
from pccl.training.outer import Fragment, Stepped, Stretch, fetch, norm_of, spread
from pccl.training.settings import Settings

BUCKETS_MAX = 64
"""Each is two collectives in flight, and a master allows 4,096: a model that is larger has larger buckets."""


class Bucket(Stretch):
    """Gradients that travel together."""

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        super().__init__(named, 1)
        self.taken = False
        """A mean is here, for all parameters of `used`."""
        self.used: list[bool] = []
        self._versions: list[int | None] = []
        """Of the gradients, as they were sent."""
        self._sample: tuple[int, int, float] | None = None
        """A parameter's place in the bucket, and an element of its gradient as it was sent."""

    def present(self) -> torch.Tensor:
        """Which parameters have a gradient here: what none of the peers has used is left alone."""
        return torch.tensor([float(each.grad is not None) for each in self.parameters], dtype=torch.float64)

    def digest(self) -> bytes:
        """Of the parameters."""
        found = xxhash.xxh3_128()
        for each in self.parameters:
            found.update(each.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return found.digest()

    def measure(self, delta: torch.Tensor) -> float:
        """The gradients that are here; 0 where there is none."""
        self._check_dense()
        for place, parameters in self.crossings():
            fetch(delta[place], [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters])
        self.taken = False
        self._versions = self._present_versions()
        self._take_sample(delta)
        return norm_of(delta)

    def _check_dense(self) -> None:
        for name, each in zip(self.names, self.parameters, strict=True):
            if each.grad is not None and each.grad.layout is not torch.strided:
                raise UsageError(
                    f"DataParallel: the gradient of {name!r} must be dense, got a sparse one; build the embedding with "
                    "sparse=False, or train with DiLoCo"
                )

    def _take_sample(self, delta: torch.Tensor) -> None:
        """The largest element of the shortest gradient."""
        present = [place for place, each in enumerate(self.parameters) if each.grad is not None and each.numel()]
        self._sample = None
        if present:
            shortest = min(present, key=lambda place: self.parameters[place].numel())
            sent = delta[self.places[shortest]]
            element = int(sent.abs().argmax())
            self._sample = shortest, element, float(sent[element])

    def _present_versions(self) -> list[int | None]:
        return [None if each.grad is None else each.grad._version for each in self.parameters]

    def changed(self) -> list[str]:
        """Parameters whose gradients were written to after they were sent. Torch counts that, but not what a GradScaler
        does to them: it changes all alike, so one element of one of them is looked at."""
        versions = zip(self.names, self._versions, self._present_versions(), strict=True)
        found = [name for name, sent, present in versions if sent != present]
        if not found and self._sample is not None:
            place, element, sent = self._sample
            gradient = self.parameters[place].grad
            assert gradient is not None, "its version is as it was"
            present_value = float(gradient.detach().reshape(-1)[element].to(torch.float32))  # As it was sent.
            if math.isfinite(sent) and present_value != sent:
                found.append(self.names[place])
        return found

    def step(self, delta: torch.Tensor, total: float, rate: float, momentum: float) -> Stepped:
        """The mean, one division for each element."""
        delta.div_(total)
        self.taken = True
        return Stepped(norm_of(delta), 0.0)

    def write(self, mix: float = 0.0) -> None:
        """Nothing yet: until all buckets have landed gradients stay as they are, for a step that is made again."""

    @torch.no_grad()
    def deliver(self) -> None:
        """Gradients are the mean now. Without one, or where no peer has used a parameter, there is none."""
        for place, parameters in self.crossings():
            if self.taken:
                spread(self.deltas[0][place], [_gradient(each) for each in parameters])
        for parameter, used in zip(self.parameters, self.used, strict=True):
            if not (self.taken and used):
                parameter.grad = None


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Its gradient, or room for one."""
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
    return parameter.grad


class Gradients(Contents):
    """A model and optimizers of which each peer has the same copy."""

    def __init__(self, model: nn.Module, optimizers: Sequence[optim.Optimizer], settings: Settings) -> None:
        self._trained: Named = []
        super().__init__(model, optimizers, settings)
        self.buckets = [Bucket(part) for part in buckets(self._trained, settings.bucket_bytes)]
        self.fragments = self.buckets

    def _divide(self, trained: Named) -> list[Fragment]:
        """There are no outer parameters beside those of the model."""
        self._trained = trained
        return []

    def watch(
        self, gradient: Callable[[int, torch.Tensor], None], before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        """Call `gradient` with a bucket's number when one of its parameters has another gradient; `before` each step of
        an optimizer, and `after` that of the last one."""
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket.parameters:
                listen: Any = parameter.register_post_accumulate_grad_hook
                self._hooks.append(listen(lambda each, place=number: gradient(place, each)))
        reduce = uncompiled(lambda *_: before())
        self._hooks += [each.register_step_pre_hook(reduce) for each in self._optimizers]
        self.attach(after)

    def _alike(self) -> Named:
        """Equal gradients make equal steps, so the optimizers are equal, too."""
        parameters = [(f"parameter.{name}", each.detach()) for name, each in self._trained]
        return [*parameters, *self._optimizer_tensors()]

    def _apart(self) -> Named:
        return []

    def outer(self) -> dict[str, torch.Tensor]:
        """The parameters."""
        return {name: each.detach() for name, each in self._trained}


def buckets(trained: Named, bucket_bytes: int) -> list[Named]:
    """In the order in which backward reaches them: the last layers first. The same on all peers."""
    least = max(bucket_bytes, 4 * sum(each.numel() for _, each in trained) // BUCKETS_MAX)
    found: list[Named] = [[]]
    for name, parameter in reversed(trained):
        if found[-1] and 4 * sum(each.numel() for _, each in found[-1]) >= least:
            found.append([])
        found[-1].append((name, parameter))
    return found
