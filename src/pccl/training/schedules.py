"""Several schedulers as one, which a run brings to its step.

Owns how often each of them is stepped. Must not know why.
"""

from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from pccl import UsageError


class Schedules:
    """Schedulers as one that is stepped after each step of the run, though each may be stepped more rarely."""

    def __init__(self, schedulers: Sequence[tuple[Any, int]]) -> None:
        self._schedulers = schedulers
        """Each with the steps of the run that go by between two of its own."""
        self._since = [0] * len(schedulers)

    @property
    def last_epoch(self) -> int:
        """The step of the run up to which they have come; torch's name for it."""
        places = zip(self._schedulers, self._since, strict=True)
        return min(int(scheduler.last_epoch) * every + since for (scheduler, every), since in places)

    def step(self) -> None:
        """The run has made another one."""
        for number, (scheduler, every) in enumerate(self._schedulers):
            self._since[number] += 1
            if self._since[number] == every:
                self._since[number] = 0
                scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Of all, by number."""
        return {str(number): scheduler.state_dict() for number, (scheduler, _) in enumerate(self._schedulers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The way back."""
        for number, (scheduler, _) in enumerate(self._schedulers):
            scheduler.load_state_dict(state[str(number)])


def as_one(scheduler: Any) -> Any:
    """A list of schedulers, each stepped after every step, as one; None and a single one as they are."""
    several = scheduler if isinstance(scheduler, list | tuple) else [scheduler]
    if any(isinstance(each, ReduceLROnPlateau) for each in several):
        raise UsageError(
            "scheduler: it must follow from the step alone, got ReduceLROnPlateau, which follows from what a peer has "
            "measured; pass another, or step it in your loop, alike on all peers, and leave it out here"
        )
    if isinstance(scheduler, list | tuple):
        return Schedules([(each, 1) for each in scheduler]) if scheduler else None
    return scheduler
