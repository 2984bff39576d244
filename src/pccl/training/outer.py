"""Outer parameters and momentum of one fragment of a model, and the outer step.

Owns these tensors: float32 on the CPU, whatever the model is made of. All that changes them is a plain multiplication,
addition or division of float32, one after the other: `torch.optim.SGD`, `alpha=` and `lerp` fuse two of them on some
CPUs and not on others, and peers would drift apart. Must not know peers, rounds or schedules.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import xxhash

try:
    from pccl.dataplane.native import outer_step
except ImportError:  # A machine without a compiler: the same in torch.
    outer_step = None  # type: ignore[assignment]

CHUNK = 1 << 16
"""Elements that are worked on at a time: three stretches of them stay in a second-level cache of 1 MiB."""

CROSSING = 1 << 24
"""Elements that cross between a device and the host in one copy: a copy of 64 MiB is as fast as a longer one, and so
much of the device's memory is taken meanwhile. One copy for each parameter would wait for the device as often."""


class Stepped(NamedTuple):
    """What an outer step did."""

    norm: float
    """Of the mean delta."""
    cosine: float
    """Of the mean delta and the momentum before it: near 1 while rounds agree, below 0 when they undo each other."""


class Stretch(ABC):
    """Some parameters of a model that are reduced together, side by side in one tensor."""

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]], buffers: int) -> None:
        """`buffers`: deltas of how many rounds are held at a time."""
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        ends = [0]
        for parameter in self.parameters:
            ends.append(ends[-1] + parameter.numel())
        self.places = [slice(begin, end) for begin, end in pairwise(ends)]
        self.count = ends[-1]
        """Elements in it."""
        self.deltas = [torch.zeros(self.count) for _ in range(buffers)]

    def crossings(self) -> Iterator[tuple[slice, list[torch.Tensor]]]:
        """Parameters that are copied together, and their place: each by itself on the host, several on a device."""
        begin, together = 0, list[torch.Tensor]()
        for place, parameter in zip(self.places, self.parameters, strict=True):
            apart = parameter.device.type == "cpu" or place.stop - begin > CROSSING
            if together and (apart or parameter.device != together[0].device):
                yield slice(begin, place.start), together
                begin, together = place.start, []
            together.append(parameter)
        yield slice(begin, self.count), together

    @abstractmethod
    def digest(self) -> bytes:
        """16 bytes that stand for every bit of what all peers hold alike."""

    @abstractmethod
    def measure(self, delta: torch.Tensor) -> float:
        """What this peer contributes, into `delta`; returns its norm, which is not finite if some element is not."""

    @abstractmethod
    def step(self, delta: torch.Tensor, total: float, rate: float, momentum: float) -> Stepped:
        """What all do with the weighted sum of all contributions, whose weights are `total` together."""

    @abstractmethod
    def write(self, mix: float = 0.0) -> None:
        """What follows for the model."""


def fetch(goal: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy tensors of one device into `goal` on the host, side by side."""
    if len(tensors) == 1:
        goal.copy_(tensors[0].detach().reshape(-1))
        return
    flat = torch.empty(len(goal), device=tensors[0].device)
    for each, part in zip(tensors, _parts(flat, tensors), strict=True):
        part.copy_(each.detach().reshape(-1))
    goal.copy_(flat)


def spread(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy values on the host, side by side, into tensors of one device."""
    if len(tensors) > 1:
        values = values.to(tensors[0].device)
    for each, part in zip(tensors, _parts(values, tensors), strict=True):
        each.copy_(part.view(each.shape))


def _parts(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The values of each tensor."""
    return torch.split(values, [each.numel() for each in tensors])


def norm_of(values: torch.Tensor) -> float:
    """Not a number if an element is not finite."""
    total = 0.0
    for chunk in torch.split(values, CHUNK):
        norm = float(torch.linalg.vector_norm(chunk))
        total += norm * norm
    return math.sqrt(total) if math.isfinite(total) else math.nan


class Fragment(Stretch):
    """Some parameters with outer ones of their own."""

    def __init__(self, named: Sequence[tuple[str, torch.Tensor]], buffers: int, eager: bool) -> None:
        super().__init__(named, buffers)
        self.theta = torch.zeros(self.count)
        self.momentum = torch.zeros(self.count)
        self.start = torch.zeros(self.count) if eager else None
        """What the model was set to, where that is not `theta`."""
        self.own = torch.zeros(self.count) if eager else None
        """The own deltas, gathered like momentum."""
        self._scratch = torch.empty(CHUNK)
        self._digest: bytes | None = None
        self.take_model()

    def take_model(self) -> None:
        """Begin with what the model holds."""
        for place, parameters in self.crossings():
            fetch(self.theta[place], parameters)
        self.changed()

    def changed(self) -> None:
        """The outer state was written from outside."""
        self._digest = None
        if self.start is not None and self.own is not None:
            self.start.copy_(self.theta)
            self.own.zero_()

    def digest(self) -> bytes:
        """16 bytes that stand for every bit of the outer state."""
        if self._digest is None:
            found = xxhash.xxh3_128()
            found.update(self.theta.numpy().data)
            found.update(self.momentum.numpy().data)
            self._digest = found.digest()
        return self._digest

    # ── deltas ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def measure(self, delta: torch.Tensor) -> float:
        """What the model has moved by since it was set, into `delta`; returns the norm, which is not finite if some
        element is not. Measured from what the model was set to: in bfloat16 that is not `theta` but its rounding."""
        start = self.theta if self.start is None else self.start
        for place, parameters in self.crossings():
            fetch(delta[place], parameters)
        for place, parameter in zip(self.places, self.parameters, strict=True):
            view = delta[place]
            torch.sub(_as_held(start[place], parameter), view, out=view)
        return norm_of(delta)

    # ── the outer step ───────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, delta: torch.Tensor, total: float, rate: float, momentum: float) -> Stepped:
        """Nesterov's step with the mean of all deltas, which is their weighted sum over `total`:
        v = μ·v + Δ; θ = θ − η·(Δ + μ·v), each operation rounded for itself."""
        if outer_step is None:
            squares, speeds, dots = self._step_in_torch(delta, total, rate, momentum)
        else:
            theta, speed = self.theta.data_ptr(), self.momentum.data_ptr()
            squares, speeds, dots = outer_step(theta, speed, delta.data_ptr(), self.count, total, rate, momentum)
        self._digest = None
        size = math.sqrt(squares * speeds)
        return Stepped(math.sqrt(squares), dots / size if size else 0.0)

    def _step_in_torch(
        self, delta: torch.Tensor, total: float, rate: float, momentum: float
    ) -> tuple[float, float, float]:
        """The same bits in twice the time, where the native part is missing."""
        squares = dots = speeds = 0.0
        chunks = (torch.split(each, CHUNK) for each in (delta, self.momentum, self.theta))
        for mean, speed, theta in zip(*chunks, strict=True):
            mean.div_(total)
            # Of the figures alone: sums like these differ from CPU to CPU, and nothing that is shared depends on them.
            squares += float(torch.dot(mean, mean))
            speeds += float(torch.dot(speed, speed))
            dots += float(torch.dot(mean, speed))
            speed.mul_(momentum)
            speed.add_(mean)
            change = self._scratch[: len(mean)]
            torch.mul(speed, momentum, out=change)
            change.add_(mean)
            change.mul_(rate)
            theta.sub_(change)
        return squares, speeds, dots

    def step_ahead(self, delta: torch.Tensor, share: float, rate: float, momentum: float) -> None:
        """The own part of an eager step: the outer step is linear, so what a peer's own delta would do is added to
        what all share, `theta`, which stays equal on all peers. s = μ·s + Δ; start = θ − η·share·(Δ + μ·s)."""
        assert self.start is not None, "it is eager"
        assert self.own is not None, "it is eager"
        self.own.mul_(momentum).add_(delta)
        torch.mul(self.own, momentum, out=self.start)
        self.start.add_(delta).mul_(-rate * share).add_(self.theta)

    # ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def write(self, mix: float = 0.0) -> None:
        """Set the model to the outer parameters, or let it keep `mix` of itself."""
        start = self.theta if self.start is None else self.start
        for place, parameters in self.crossings():
            goal = start[place]
            if mix:
                held = torch.empty_like(goal)
                fetch(held, parameters)
                parts = zip(_parts(goal, parameters), _parts(held, parameters), parameters, strict=True)
                for part, now, each in parts:
                    # In this form what is equal stays equal, to the last bit.
                    now.add_((1.0 - mix) * (_as_held(part, each) - now))
                goal = held
            spread(goal, parameters)


def _as_held(values: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The values as the parameter's type can hold them."""
    if parameter.dtype in (torch.float32, torch.float64):
        return values
    return values.to(parameter.dtype).to(torch.float32)
