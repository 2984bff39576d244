"""DiLoCo and its kin, as the classes that users name.

Owns their arguments and their documentation. Must not know how a round is made.
"""

from collections.abc import Sequence
from typing import Any, Unpack

from torch import nn, optim

from pccl import Communicator
from pccl.training.run import Run
from pccl.training.settings import Options, Settings


class DiLoCo(Run):
    """Train with few and small exchanges: each peer makes `sync_every` steps of its own, then all take one outer step
    with the mean of what the steps changed (arXiv 2311.08105).

        with DiLoCo("master.example.org:48148", model, optimizer, sync_every=100, quantize="int8") as run:
            for x, y in loader:
                loss(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()

    `place` is the master's address, or a Communicator. With an address the peer joins again by itself after it was put
    out. `optimizer` may be a list: a step ends with the last one. `scheduler`, or a list of them, is brought to the
    run's step when this peer joins; step it yourself in the loop, as before. All other settings:
    `pccl.training.settings.Settings`, and docs/training.md, which says what each mode is for."""

    def __init__(
        self,
        place: str | Communicator,
        model: nn.Module,
        optimizer: optim.Optimizer | Sequence[optim.Optimizer],
        *,
        scheduler: Any = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(place, model, optimizer, Settings.of(type(self).__name__, options), scheduler)


class LocalSGD(DiLoCo):
    """Every `sync_every` steps all peers take the mean of their models: DiLoCo with an outer learning rate of 1 and no
    momentum."""

    def __init__(
        self,
        place: str | Communicator,
        model: nn.Module,
        optimizer: optim.Optimizer | Sequence[optim.Optimizer],
        *,
        scheduler: Any = None,
        **options: Unpack[Options],
    ) -> None:
        options.setdefault("outer_lr", 1.0)
        options.setdefault("outer_momentum", 0.0)
        super().__init__(place, model, optimizer, scheduler=scheduler, **options)
