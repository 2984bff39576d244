"""The setting of how many threads move the bytes of one collective.

Owns how it is found and checked, and its default. Must not know what the threads do: `core/rules/schedule.py` says how
many of them a collective gets, `native/attempts.*` runs them.
"""

import os

from pccl.arguments import integer
from pccl.core.limits import THREADS_MAX
from pccl.environment import look_up

CORES_PER_THREAD = 4
"""Three quarters of the cores stay the trainer's: its loaders and its optimizer run while a collective does."""

THREADS_DEFAULT_MAX = 8
"""As many fill 100 Gbit/s with plain lanes: a GB that is sent while another is received takes 0.6 CPU seconds
(docs/tuning.md), so 12.5 GB/s take 7.5 cores. More would only be of use under TLS, and takes cores of those who never
asked."""


def find_threads(passed: int, party_size: int) -> int:
    """What was passed, else what the environment says, else by the cores of this machine; 0 means: not passed."""
    given = passed or look_up("PCCL_LANE_THREADS", "0")
    number = integer("lane_threads (PCCL_LANE_THREADS)", given, 0, THREADS_MAX)
    return number or default_threads(usable_cores(), party_size)


def default_threads(cores: int, party_size: int) -> int:
    """By cores; peers of one party share those of their machine."""
    return max(1, min(cores // (CORES_PER_THREAD * party_size), THREADS_DEFAULT_MAX))


def usable_cores() -> int:
    """Those that this process may run on: in a container, or bound to a part of the machine, it has fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
