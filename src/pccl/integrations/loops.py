"""A run inside a training loop that belongs to another library.

Owns when the run is joined and left, and what is made of the optimizers and schedulers that such a library wraps. Must
not know which library it is: its callback tells what happened there.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from pccl import UsageError
from pccl.training.diloco import DiLoCo
from pccl.training.settings import Options


class Loop:
    """One peer's way through it."""

    def __init__(self, address: str | None, options: Options) -> None:
        self._address = os.environ.get("PCCL_MASTER", "") if address is None else address
        self._options = options
        self._stack = ExitStack()
        self._run: DiLoCo | None = None
        self.joined = False
        self.told_to_go = False
        """SIGTERM has come, and the round is over or there is no time for its end: the loop should end here."""

    @property
    def begun(self) -> bool:
        """There is a run, or was."""
        return self._run is not None

    @property
    def run(self) -> DiLoCo:
        """That of the present training, or of the last one."""
        if self._run is None:
            raise UsageError("DiLoCoCallback: the run is there once training has begun; look at it then")
        return self._run

    def join(self, model: Any, optimizers: Sequence[Any], scheduler: Any, saved: dict[str, Any] | None) -> DiLoCo:
        """Before the first step. `saved` is what `DiLoCo.state_dict` gave in an earlier process."""
        self.told_to_go = False
        plain = [unwrapped(each) for each in optimizers]
        self._run = DiLoCo(self._address, model, plain, scheduler=scheduler, **self._options)
        self._run.when_told_to_go(self._note_notice)
        if saved is not None:
            self._run.load_state_dict(saved)
        self._stack.enter_context(self._run)
        self.joined = True
        return self._run

    def _note_notice(self) -> None:
        self.told_to_go = True

    def finish(self) -> None:
        """The loop has made its last step: those that no round has taken yet are in one more, unless time is short."""
        if self.joined:
            if self.run.round_step and not self.told_to_go:
                self.run.finish_round()
            self.joined = False
            self._stack.close()

    def leave(self) -> None:
        """Go as it is: the loop ended in the middle of a step."""
        if self.joined:
            self.joined = False
            self.run.leave()
            self._stack.pop_all()

    def own_seed(self, seed: int) -> int:
        """Another number for each peer: those that are started alike would else read the same samples."""
        return (int(self.run.communicator.peer_id[:8], 16) ^ seed) % (1 << 31)


def unwrapped(optimizer: Any) -> Any:
    """The optimizer of torch, on which hooks fire: accelerate and Lightning put one of their own around it."""
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
