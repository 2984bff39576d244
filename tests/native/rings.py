"""Rings of real loopback lanes in one process, each peer on the native or on the reference data plane.

Owns lanes between neighbours, and one face for runs of both kinds. What a run must give is in `oracle.py`.
"""

import os
import select
import socket
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from pccl import _native
from pccl.codec import NONE
from pccl.core.effects.peer_effects import StartAttempt
from pccl.core.effects.peer_events import AttemptEnded
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.native import channel_of, lent, plan, take_back
from pccl.dataplane.reference import ReferenceAttempt
from pccl.dataplane.ring.arithmetic import STORED
from pccl.dataplane.ring.reference_ring import Receiver, Ring, Sender
from pccl.dataplane.ring.segments import output_count, result_digest
from pccl.dataplane.tensors.buffers import Buffers, Feedback, Tensor
from pccl.types import CollectiveKind, DataType, ReduceOp
from tests.native.oracle import TAG as TAG
from tests.patience import HANG_S

WAIT_S = HANG_S
"""Longer than any run of ours takes, with a sanitizer on a busy machine too."""
STALL_S = 30.0


class Repeats:
    """What native peers send again though nothing hangs: one of every so many segments, or none. Of a whole run of
    tests `PCCL_TEST_REPEAT_EVERY`."""

    every = int(os.environ.get("PCCL_TEST_REPEAT_EVERY", "0"))


class Strands:
    """Into how many strands attempts are divided, as far as there are lanes. Of a whole run of tests
    `PCCL_TEST_STRANDS`, but for those that need lanes of one strand."""

    count = int(os.environ.get("PCCL_TEST_STRANDS", "1"))


class Work(NamedTuple):
    """What a ring is to do."""

    dtype: DataType
    op: ReduceOp
    count: int
    segment_bytes: int
    kind: CollectiveKind = CollectiveKind.ALL_REDUCE
    root: int = 0
    codec: str = NONE

    @property
    def spec(self) -> CollectiveSpec:
        return CollectiveSpec(self.count, self.dtype, self.op, self.codec, kind=self.kind)

    def output(self, size: int, rank: int) -> np.ndarray:
        """Room for what the peer of this rank gets."""
        return np.zeros(output_count(self.kind, self.count, size, rank), STORED[self.dtype])


class NativePeer:
    """A run of the native data plane."""

    def __init__(self, effect, buffers, lanes, stall_s):
        self._notifier = _native.Notifier()
        channels = [channel_of(lane) for lane in lanes[0]], lent(lanes[1])
        self._from_prev, self._given_back = lanes[1], False
        addresses = buffers.send.address, buffers.output.address
        self._buffers = buffers
        feedback = buffers.feedback
        residuals = (0, 0) if feedback is None else (feedback.carried.address, feedback.lost.address)
        made = plan(effect, stall_s)
        made.repeat_every = Repeats.every
        self._run = _native.start(made, *addresses, *channels, self._notifier, *residuals)
        self.abort, self.commit, self.restore = self._run.abort, self._run.commit, self._run.restore

    def wait(self, timeout_s=WAIT_S):
        """True when it has ended."""
        if not self._run.ended:
            select.select([self._notifier.fd], [], [], timeout_s)
        if self._run.ended and not self._given_back:
            self._given_back = True
            take_back(self._from_prev, self._run.report)
        return self._run.ended

    @property
    def moved_bytes(self):
        return self._run.moved_bytes

    @property
    def cause(self):
        return self._run.report.cause

    @property
    def broken(self):
        """Stripes that are of no more use: to the next peer, from the previous one."""
        return self._run.report.broken_next, self._run.report.broken_prev

    @property
    def sent_bytes(self):
        return self._run.report.sent_bytes

    @property
    def repeated_bytes(self):
        return self._run.report.repeated_bytes

    @property
    def digest(self):
        """Of the result, as the master gets it."""
        return result_digest(self._run.report.checks)


class ReferencePeer:
    """A run of the reference data plane."""

    def __init__(self, effect, buffers, lanes, stall_s):
        self._ring = Ring(effect, buffers, [Sender(lane) for lane in lanes[0]], [Receiver(lane) for lane in lanes[1]])
        self._gone = threading.Event()
        self._event: AttemptEnded | None = None
        self._run = ReferenceAttempt(effect, self._ring, stall_s, self._ended)
        self.abort, self.commit, self.restore = self._run.abort, self._run.commit, self._run.restore
        self._run.start()

    def _ended(self, event):
        self._event = event
        self._gone.set()

    def wait(self, timeout_s=WAIT_S):
        """True when it has ended."""
        if self._gone.wait(timeout_s):
            self._run.join()
        return self._gone.is_set()

    @property
    def moved_bytes(self):
        return self._run.moved_bytes

    @property
    def cause(self):
        return self._event.cause

    @property
    def broken(self):
        return self._ring.broken_next, self._ring.broken_prev

    @property
    def sent_bytes(self):
        return self._run.traffic.sent_bytes

    @property
    def digest(self):
        return self._event.digest


PEERS = {"native": NativePeer, "reference": ReferencePeer}


def tensor(array, dtype):
    return Tensor(array.ctypes.data, array.size, dtype, array)


def connection(buffer_bytes=0):
    """Two ends of a loopback connection, as lanes are: non-blocking and without delay."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        if buffer_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        dialled = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    for end in (dialled, accepted):
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if buffer_bytes:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return dialled, accepted


class Rig:
    """Peers in a ring, with the same lanes for one attempt after the other."""

    def __init__(self, size, lanes, buffer_bytes=0):
        self.size, self.lanes, self._buffer_bytes = size, lanes, buffer_bytes
        self.attempt = 0
        self._runs = []
        # links[r] is between rank r and the next; two peers have one link, used both ways.
        self.links = [[self.connect(link) for _ in range(lanes)] for link in range(size if size > 2 else 1)]

    def connect(self, link):
        """A new lane of this link."""
        return connection(self._buffer_bytes)

    def sides(self, rank):
        """The lanes of a rank: to the next peer, from the previous one."""
        if self.size == 2:
            both = [ends[rank] for ends in self.links[0]]
            return both, both
        return [ends[0] for ends in self.links[rank]], [ends[1] for ends in self.links[rank - 1]]

    def effect(self, rank, work):
        keys = tuple((0, stripe) for stripe in range(self.lanes)), tuple((1, stripe) for stripe in range(self.lanes))
        names = (keys[0], keys[0]) if self.size == 2 else keys
        place = (work.segment_bytes, work.root, min(Strands.count, self.lanes))
        return StartAttempt(1, TAG, self.attempt, work.spec, rank, self.size, *names, *place)

    def start_one(self, rank, kind, work, arrays, stall_s=STALL_S):
        """Start the run of one rank; `arrays` are what it sends, where it receives, what it carries and loses."""
        buffers = Buffers(*(tensor(array, work.dtype) for array in arrays[:2]))
        if len(arrays) > 2:
            real = DataType.DOUBLE if work.dtype is DataType.DOUBLE else DataType.FLOAT
            buffers = replace(buffers, feedback=Feedback(*(tensor(array, real) for array in arrays[2:])))
        return PEERS[kind](self.effect(rank, work), buffers, self.sides(rank), stall_s)

    def start(self, kinds: Sequence[str], work, *arrays, stall_s=STALL_S):
        """Begin the next attempt on all ranks; of each list of arrays every rank gets one."""
        self.attempt += 1
        self._runs = []
        for rank, kind in enumerate(kinds):
            self._runs.append(self.start_one(rank, kind, work, [each[rank] for each in arrays], stall_s))
        return list(self._runs)

    @property
    def spoilt(self):
        """Whether the last attempt has left peers at work, or lanes in the middle of a segment."""
        if len(self._runs) != (self.size if self.attempt else 0):
            return True
        return not all(run.wait(0) and not run.cause and run.broken == ([], []) for run in self._runs)

    def throw_away(self):
        """Peers that are still at work end first: lanes must not be closed under them."""
        for run in self._runs:
            run.abort()
        for run in self._runs:
            assert run.wait(WAIT_S), "a peer goes on after its abort"
        self.close()

    def repair(self, runs):
        """As the shells do: lanes that either end reports broken are closed, and new ones made. How many there were."""
        broken = set()
        for rank, run in enumerate(runs):
            to_next, from_prev = run.broken
            broken |= {(rank % len(self.links), stripe) for stripe in to_next}
            broken |= {((rank - 1) % len(self.links), stripe) for stripe in from_prev}
        for link, stripe in broken:
            for end in self.links[link][stripe]:
                end.close()
            self.links[link][stripe] = self.connect(link)
        return len(broken)

    def close(self):
        for end in (end for link in self.links for ends in link for end in ends):
            end.close()


def copies(arrays):
    return [np.array(array) for array in arrays]
