"""Settings of what connections to other peers may do to the link that they share with others.

Owns how they are found and checked. Must not know sockets: what the kernel allows is asked in `net/sockets.py`.
"""

import math
import re
from dataclasses import dataclass

from pccl.environment import look_up
from pccl.errors import UsageError

UPLOAD_MIN_MBPS = 0.5
"""A limit below leaves a lane so little that it looks like one that stands still."""

CONGESTION_NAME = re.compile(r"[a-z0-9_-]{0,15}")
"""The kernel's names are no longer."""


@dataclass(frozen=True)
class Uplink:
    """What was chosen."""

    congestion_control: str = ""
    """By which lanes find their rate; empty: the kernel's default."""
    max_upload_mbps: float = 0.0
    """All that this peer sends to other peers together; 0 for no limit."""

    @classmethod
    def resolve(cls, congestion_control: str = "", max_upload_mbps: float | str = 0.0) -> "Uplink":
        """What was passed, else what the environment says."""
        name = congestion_control or look_up("PCCL_CONGESTION_CONTROL")
        if not isinstance(name, str) or not CONGESTION_NAME.fullmatch(name):
            words = "the name of one that the kernel knows, such as cubic or bbr"
            raise UsageError(f"congestion_control (PCCL_CONGESTION_CONTROL) must be {words}, got {name!r}")
        given = max_upload_mbps or look_up("PCCL_MAX_UPLOAD_MBPS", "0")
        try:
            rate = float(given)
        except (TypeError, ValueError):
            rate = math.nan
        if rate != 0 and not UPLOAD_MIN_MBPS <= rate < math.inf:
            words = f"must be 0 for no limit, or at least {UPLOAD_MIN_MBPS:g}, got {given!r}"
            raise UsageError(f"max_upload_mbps (PCCL_MAX_UPLOAD_MBPS) {words}")
        return cls(name, rate)


UNLIMITED = Uplink()
