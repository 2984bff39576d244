"""A process may end at any moment of a run: it ends with its own exit code, and native threads never want the GIL."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG_S

ROOT = Path(__file__).parents[2]

ENDS_DURING_RUNS = """
import ctypes
import tests.native.conftest
import numpy as np
from pccl import _native
from pccl.types import DataType, ReduceOp
from tests.native.rings import Rig, Work, channel_of, plan
from tests.security.ends import SecuredRig

secured = {secured}

def keep(thing):  # as the kernel would: beyond the end of the interpreter
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    return thing

for count in (1, 1_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000):
    rig = keep(SecuredRig(("native",) * 2, 1) if secured else Rig(2, 1))
    work = Work(DataType.FLOAT, ReduceOp.SUM, count, 4096)
    for rank in range(2):
        fds = [[channel_of(lane) for lane in side] for side in rig.sides(rank)]
        address = keep(np.ones(count, np.float32)).ctypes.data
        # Python forgets the run at once: whoever works on it is its last owner.
        _native.start(plan(rig.effect(rank, work), 30.0), address, address, *fds, _native.Notifier())
"""


@pytest.mark.parametrize("secured", [False, True])
def test_process_ends_in_peace_during_runs(secured):
    """Under TLS, too, where OpenSSL tidies up at the end while threads of ours still make records."""
    for _ in range(5):
        ended = subprocess.run(
            [sys.executable, "-c", ENDS_DURING_RUNS.format(secured=secured)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
