"""Holders and a requester in one process, over real loopback lanes.

Owns the making of states and lanes, and the wait for the end of a transfer.
"""

import threading
from typing import NamedTuple

import numpy as np

from pccl.dataplane.ring.arithmetic import STORED
from pccl.dataplane.state.agenda import Goal
from pccl.dataplane.state.manifest import Entry, Holding, take_manifest
from pccl.dataplane.state.pulling import Pulling
from pccl.dataplane.state.serving import Rate, Serving
from pccl.dataplane.tensors.buffers import Tensor
from pccl.types import DataType
from tests.native.rings import connection
from tests.patience import HANG_S

WAIT_S = HANG_S
STALL_S = 30.0


class Content(NamedTuple):
    """What an entry is made of."""

    name: str
    array: np.ndarray
    dtype: DataType = DataType.UINT8
    free: bool = False

    @property
    def entry(self):
        tensor = Tensor(self.array.ctypes.data, self.array.size, self.dtype, self.array)
        return Entry(self.name, self.dtype, self.array.size, self.free, tensor)


def random_content(name, nbytes, seed, dtype=DataType.UINT8, free=False, offset=0):
    """Any bits but zero bytes, so that all of it differs from a blank; `offset` bytes into an allocation."""
    memory = (np.frombuffer(np.random.default_rng(seed).bytes(nbytes + offset), np.uint8) | 1)[offset:]
    if offset % dtype.itemsize == 0:
        memory = memory.view(STORED[dtype])
    return Content(name, memory, dtype, free)


def blank(content):
    """The same place with nothing in it yet."""
    return content._replace(array=np.zeros_like(content.array))


def copied(contents):
    return [content._replace(array=content.array.copy()) for content in contents]


def holding(contents):
    entries = [content.entry for content in contents]
    return Holding(entries, take_manifest(entries))


def goal(of, newcomer=False):
    return Goal(of.manifest.layout, of.manifest.content, newcomer)


class End:
    """Waits for the end of a transfer, and sees that it comes once."""

    def __init__(self):
        self.reports = []
        self._came = threading.Event()

    def __call__(self, report):
        self.reports.append(report)
        self._came.set()

    def wait(self, timeout_s=WAIT_S):
        assert self._came.wait(timeout_s), "the transfer has not ended"
        assert len(self.reports) == 1
        return self.reports[0]


class Rig:
    """One requester and several holders, each with some lanes."""

    def __init__(self, holders, lanes=1, buffer_bytes=0, connect=connection):
        pairs = [[connect(buffer_bytes) for _ in range(lanes)] for _ in range(holders)]
        self.near = [[near for near, _ in holder] for holder in pairs]
        """Ends of the requester, by holder."""
        self.far = [[far for _, far in holder] for holder in pairs]
        self._lanes = [lane for side in (self.near, self.far) for holder in side for lane in holder]
        self.transfers = []
        self.attempt = 1

    def serve(self, holder, own, stall_s=STALL_S, rate_bytes_s=0):
        end = End()
        rate = Rate(rate_bytes_s) if rate_bytes_s else None
        serving = Serving(self.attempt, own, self.far[holder], end, stall_s, rate)
        self.transfers.append(serving)
        serving.start()
        return serving, end

    def pull(self, own, wanted, stall_s=STALL_S):
        end = End()
        pulling = Pulling(self.attempt, own, wanted, self.near, end, stall_s)
        self.transfers.append(pulling)
        pulling.start()
        return pulling, end

    def close_broken(self, report):
        """As the shell does."""
        flat = [lane for holder in self.near for lane in holder]
        for place in report.broken:
            flat[place].close()

    def close(self):
        for transfer in self.transfers:
            transfer.abort()
            transfer.join()
        for lane in self._lanes:
            lane.close()


def equal(one, other):
    return [content.array.tobytes() for content in one] == [content.array.tobytes() for content in other]
