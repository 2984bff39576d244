"""What a process of any rival can do."""

from typing import Any, Protocol

import numpy as np

Facts = dict[str, Any]
"""What goes over the control socket: whatever JSON holds."""


class Rival(Protocol):
    """One process of one library."""

    rank: int

    def offer(self) -> Facts:
        """What the others must know in order to connect."""

    def connect(self, offers: list[Facts]) -> Facts:
        """Join the others, whose offers come by rank; what the report shall say about it."""

    def all_reduce(self, values: np.ndarray) -> None:
        """SUM over all processes, in place."""

    def close(self) -> None: ...
