"""Exit codes, the same for every command. A program that runs one decides by them."""

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    BROKE = 1
    USAGE = 2
    WAITING = 3
    """The run waits for a peer."""
    UNREACHABLE = 4
    """No master answers at the address."""
    INTERRUPTED = 130
