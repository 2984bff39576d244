"""What is made from files that are renewed in place: made again when they have changed.

Owns when to look. Must not know what is made.
"""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from pccl.errors import UsageError

log = logging.getLogger("pccl")

Made = TypeVar("Made")


class Renewing(Generic[Made]):
    """One thing, as new as its files; an older one while these are of no use, as in the middle of their renewal."""

    def __init__(self, files: Iterable[Path], make: Callable[[], Made]) -> None:
        """Raises what `make` does."""
        self._files = tuple(files)
        self._make = make
        self._seen = self._look()
        self._made = make()

    def get(self) -> Made:
        """The present one."""
        seen = self._look()
        if seen != self._seen:
            try:
                self._made = self._make()
            except (UsageError, OSError) as error:  # What is wrong with files ends no connection of ours.
                if seen:
                    log.warning("certificates were renewed, and the old ones stay in use: %s", error)
            self._seen = seen
        return self._made

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        try:
            found = [os.stat(each) for each in self._files]
        except OSError:
            return ()  # Between two files of one name.
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)
