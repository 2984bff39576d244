"""How long tests wait, on machines that may be slow and busy.

A wait for an event has a deadline against hangs only, and those are generous: a test that passes never sees them. Where
a test says how soon something must happen, it is to tell that from waiting for some limit that is far longer: the bound
grows with the slowness of the machine at that moment, and has room for a moment in which it stood still.
"""

import os
import time

HANG_S = 300.0
"""For what takes a few seconds at most where nothing else runs."""

_TURNS = 500_000
_TURNS_S = 0.012
"""How long so many turns of an empty loop take on the machine whose bounds these are, with nothing else on it."""


HICCUP_S = 5.0
"""How long a process may get no processor on a machine that is full. Seen on one of two cores: 2 s."""


def slowness():
    """How many times slower than a quiet one of the kind this was written on the machine is right now, 1 at least; with
    PCCL_TEST_SLOWNESS, which is for sanitizers."""
    began = time.perf_counter()
    for _ in range(_TURNS):
        pass
    measured = (time.perf_counter() - began) / _TURNS_S
    crowd = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    return max(1.0, measured, crowd) * float(os.environ.get("PCCL_TEST_SLOWNESS", "1"))


def allow(seconds):
    """How long something may take on this machine that takes this many seconds on a quiet one."""
    return HICCUP_S + seconds * slowness()
