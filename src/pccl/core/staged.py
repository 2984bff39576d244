"""Things that go through stages, each by a table that says what a stage means and which may follow it.

One rule for all of them: a thing enters only a successor of the stage that it is in, and its stage cannot be assigned.
`docs/protocol.md` is checked against the tables.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

Stage = TypeVar("Stage", bound=Enum)

Table = Mapping[Stage, tuple[str, tuple[Stage, ...]]]
"""Meaning and successors of each stage."""


class Staged(Generic[Stage]):
    """A thing in one stage of its table."""

    def __init__(self, table: Table[Stage], stage: Stage) -> None:
        self._table = table
        self._stage = stage

    @property
    def stage(self) -> Stage:
        """Where it is."""
        return self._stage

    def may_enter(self, stage: Stage) -> bool:
        """Whether this stage may follow the present one."""
        return stage in self._table[self._stage][1]

    def enter(self, stage: Stage) -> None:
        """Go on to one of the successors of the present stage."""
        assert self.may_enter(stage), f"{self}: {self._stage} cannot become {stage}"
        self._stage = stage
