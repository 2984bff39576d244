"""The environment: every variable that means something to this library, and those that look as if they should.

Owns the names of the variables and the lookup. Must not know what the settings do.
"""

import difflib
import os
from collections.abc import Iterable

from pccl.core.limits import MasterLimits, PeerLimits

_LIMITS = (*MasterLimits.__struct_fields__, *PeerLimits.__struct_fields__, "connection_dead_s", "serve_bytes_s")

VARIABLES = (
    "PCCL_MASTER",
    "PCCL_NAME",
    "PCCL_PARTY",
    "PCCL_PARTY_SIZE",
    "PCCL_TOKEN",
    "PCCL_TOKEN_FILE",
    "PCCL_SECRET_FILE",
    "PCCL_CA",
    "PCCL_CERT",
    "PCCL_KEY",
    "PCCL_LANE_TLS",
    "PCCL_LIBSSL",
    "PCCL_LANES",
    "PCCL_LANE_THREADS",
    "PCCL_CONGESTION_CONTROL",
    "PCCL_MAX_UPLOAD_MBPS",
    "PCCL_LISTEN",
    "PCCL_ANNOUNCE",
    "PCCL_DATA_PLANE",
    "PCCL_PYTHON",
    "PCCL_SIGTERM",
    "PCCL_SIGUSR1",
    "PCCL_LOG_LEVEL",
    "PCCL_LOG_FORMAT",
    "PCCL_EVENTS",
    *dict.fromkeys(f"PCCL_{name.upper()}" for name in _LIMITS),
)
"""Those that are read here."""

PCCLS_OWN = (
    "PCCL_MAX_CONCURRENT_COLLECTIVE_OPS",
    "PCCL_MULTIPLEX_CHUNK_SIZE",
    "PCCL_NUM_BENCHMARK_CONNECTIONS",
    "PCCL_BUILD_CUDA_SUPPORT",
)
"""Those that only PCCL reads: a script written for it sets them, and is right to."""

_OTHERS = ("PCCL_TEST_", "PCCL_CI_")
"""Of our own tests."""

_ALIKE = 0.75
"""How much two names must have in common for one to be a slip of the other."""


def look_up(name: str, default: str = "") -> str:
    """What a variable says; an empty one says nothing."""
    return os.environ.get(name, "") or default


def misspelt(names: Iterable[str] | None = None) -> list[tuple[str, str]]:
    """Variables of ours that no part of the library reads, each with the one that was most likely meant, if any."""
    found = sorted(name for name in (os.environ if names is None else names) if name.startswith("PCCL_"))
    known = (*VARIABLES, *PCCLS_OWN)
    unknown = [name for name in found if name not in known and not name.startswith(_OTHERS)]
    return [(name, _nearest(name)) for name in unknown]


def _nearest(name: str) -> str:
    # Without the unit at the end, the one that begins alike is meant.
    longer = [each for each in VARIABLES if each.startswith(f"{name}_")]
    alike = longer or difflib.get_close_matches(name, VARIABLES, 1, _ALIKE)
    return alike[0] if alike else ""
