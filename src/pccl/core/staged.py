"""Things that go through stages, each of a kind that says what a stage means and which may follow it.

One rule for all of them: a thing enters only a successor of the stage that it is in, and its stage cannot be assigned.
`docs/protocol.md` is checked against the kinds.
"""

from enum import Enum
from typing import Generic, TypeVar


class Stage(Enum):
    """One kind of stages: each has a meaning, and the names of those that may follow it."""

    def __init__(self, meaning: str, successors: tuple[str, ...]) -> None:
        self.meaning = meaning
        self.successors = successors

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


Kind = TypeVar("Kind", bound=Stage)


class Staged(Generic[Kind]):
    """A thing in one stage of its kind."""

    def __init__(self, stage: Kind) -> None:
        self._stage = stage

    @property
    def stage(self) -> Kind:
        """Where it is."""
        return self._stage

    def may_enter(self, stage: Kind) -> bool:
        """Whether this stage may follow the present one."""
        return stage.name in self._stage.successors

    def enter(self, stage: Kind) -> None:
        """Go on to one of the successors of the present stage."""
        if not self.may_enter(stage):  # No assert: `python -O` must not let what is impossible pass.
            raise AssertionError(f"{self}: {self._stage} cannot become {stage}")
        self._stage = stage
