"""What this peer is called, and which party it belongs to: as passed, else by the environment, else by its machine.

Owns how both are found and checked. Must not know what they are for.
"""

import os
import socket

from pccl.arguments import integer
from pccl.core.limits import PARTY_SIZE_MAX
from pccl.core.names import NAME_MAX, clean
from pccl.environment import look_up
from pccl.errors import UsageError


def find_name(name: str | None) -> str:
    """What people call this peer: what was passed, else the environment's, else its machine and process."""
    given = look_up("PCCL_NAME") if name is None else name
    if not isinstance(given, str):
        raise UsageError(f"name (PCCL_NAME) must be a text, got {given!r}")
    return clean(given) or clean(f"{machine()}-{os.getpid()}")


def find_party(name: str | None, size: int | None) -> tuple[str, int]:
    """The party of this peer, and how many peers it has."""
    party = look_up("PCCL_PARTY") if name is None else name
    if not isinstance(party, str) or clean(party) != party:
        raise UsageError(
            f"party (PCCL_PARTY) must be a text of up to {NAME_MAX} printable characters, got {party!r}; all peers of "
            "a machine pass the same, and each machine another one"
        )
    given = look_up("PCCL_PARTY_SIZE", "1") if size is None else size
    number = integer("party_size (PCCL_PARTY_SIZE)", given, 1, PARTY_SIZE_MAX)
    if number > 1 and not party:
        raise UsageError(f"party_size (PCCL_PARTY_SIZE) must be 1 without a party, got {number}; name it: party=…")
    return party, number


def machine() -> str:
    """What this machine calls itself."""
    return clean(socket.gethostname().partition(".")[0]) or "unnamed"
