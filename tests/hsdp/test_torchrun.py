"""Nodes as users start them: torchrun, one for each, starts all ranks of a node again when one died."""

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT, Process
from tests.patience import HANG_S
from tests.training.test_processes import UNTIL_STOPPED, master, processes

__all__ = ["master", "processes"]

pytestmark = pytest.mark.skipif("PCCL_TEST_HSDP" not in os.environ, reason="make test-hsdp runs these")


class Torchrun(Process):
    """A node of two ranks."""

    def __init__(self, address):
        script = [str(ROOT / "examples" / "fsdp_hybrid.py"), address, "--rounds", str(UNTIL_STOPPED), "--every", "4"]
        command = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "100", *script]
        settings = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        super().__init__("-m", "torch.distributed.run", *command, settings=settings)

    def ranks(self):
        """Their process ids."""
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def end(self):
        """With its ranks, which it ends when it is asked to."""
        self.process.terminate()
        self.process.wait(timeout=HANG_S)
        super().end()


def test_ranks_that_torchrun_starts_again_join_again(master, processes):
    for _ in range(2):
        processes.append(Torchrun(master.address))
        master.expect_said("epoch", "joined")
    for _ in range(2):
        os.kill(processes[-1].ranks()[-1], signal.SIGKILL)
        master.expect_said("of its party", "is gone")
        master.expect_said("epoch", "joined", "4 peers")
