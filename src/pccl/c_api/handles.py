"""Handles: what a program in C holds instead of an object of ours.

Owns their numbers. They look like pointers and are none: a handle that was destroyed, or never was one, is an error
with a sentence instead of a crash. Must not know what they stand for.
"""

import itertools
from typing import Generic, TypeVar

from pccl.errors import UsageError
from pccl.types import Result

Thing = TypeVar("Thing")

_STEP = 64
"""Between two: where a pointer would be aligned, so is a handle, for tools that look."""

_numbers = itertools.count(_STEP, _STEP)
"""For all kinds: one kind's handle is never another's, and none is used again."""


class Handles(Generic[Thing]):
    """Those of one kind."""

    def __init__(self, argument: str, maker: str) -> None:
        self._argument = argument
        self._maker = maker
        self._things: dict[int, Thing] = {}

    def add(self, thing: Thing) -> int:
        """Its handle."""
        handle = next(_numbers)
        self._things[handle] = thing
        return handle

    def look_up(self, handle: int) -> Thing | None:
        """What it stands for, if anything."""
        return self._things.get(handle)

    def find(self, handle: int) -> Thing:
        """What it stands for. Raises `UsageError`."""
        return self._checked(self._things.get(handle))

    def remove(self, handle: int) -> Thing:
        """What it stood for. Raises `UsageError`."""
        return self._checked(self._things.pop(handle, None))

    def _checked(self, thing: Thing | None) -> Thing:
        if thing is None:
            raise UsageError(
                f"{self._argument} must come from {self._maker} and not be destroyed yet", Result.INVALID_ARGUMENT
            )
        return thing
