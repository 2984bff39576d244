"""A peer in a process of its own. Obeys lines of JSON on its standard input, answers each with a line of JSON."""

import hashlib
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from datetime import timedelta

import numpy as np

from pccl import (
    Attribute,
    CollectiveAborted,
    CollectiveTimedOut,
    Communicator,
    DataType,
    PCCLError,
    ReduceOp,
    TooFewPeers,
)
from pccl.core.effects.peer_events import CallCollective
from pccl.core.fields import CollectiveSpec
from tests.e2e.state_actor import StateActor, dying
from tests.e2e.token_plane import LONG, TokenPlane
from tests.stress.doom import Doom, Point

STEP_S = 0.01
GLANCE_S = 0.0002
"""Between two looks at bytes that move: some hundred thousand of them. Looking without a pause would take the processor
from those who move them."""
PERIOD = 251
"""A prime: no two chunks or segments of a pattern are alike."""
_printing = threading.Lock()


def tell(event, **facts):
    with _printing:
        os.write(1, (json.dumps({"event": event, **facts}) + "\n").encode())


def surplus(values, times):
    """The least and the greatest difference from so many times the pattern. Piece by piece: to be given the memory for
    large arrays takes longer than to calculate with them."""
    pattern = np.resize(np.arange(PERIOD), 4_000 * PERIOD).astype(values.dtype) * np.asarray(times, values.dtype)
    pieces = [values[place : place + pattern.size] for place in range(0, values.size, pattern.size)]
    differences = (piece - pattern[: piece.size] for piece in pieces)
    extremes = np.array([(each.min(), each.max()) for each in differences]).reshape(-1, 2)
    return [float(extremes[:, 0].min()), float(extremes[:, 1].max())] if pieces else []


class Actor(StateActor):
    def __init__(self, settings):
        token = settings.pop("token", True)
        descriptors = settings.pop("descriptors", None)
        if descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        self.communicator = Communicator(**settings)
        self.fate = Doom()
        if token:
            self.communicator._data_plane = TokenPlane(self.run_started)
        else:
            self.fate.attach()

    def run_started(self, run):
        tell("started", tag=run.tag, attempt=run.attempt, size=run.size)

    def facts(self):
        it = self.communicator
        return {
            "peer": it.peer_id,
            "epoch": it.epoch,
            "ring": it.ring,
            "rank": it.rank,
            "size": it.get_attribute(Attribute.GLOBAL_WORLD_SIZE),
            "group_size": it.get_attribute(Attribute.LOCAL_WORLD_SIZE),
            "groups": it.get_attribute(Attribute.NUM_DISTINCT_PEER_GROUPS),
            "largest_group": it.get_attribute(Attribute.LARGEST_PEER_GROUP_WORLD_SIZE),
            "port": it._membership.core.identity.port,
        }

    def parties(self):
        """Of all of the group."""
        return {"parties": sorted(map(self.communicator.party_of, self.communicator.ring))}

    def connect(self, n_attempts=5):
        self.communicator.connect(n_attempts)
        return self.facts()

    def update(self):
        self.communicator.update_topology()
        return self.facts()

    def pending(self):
        return {"pending": self.communicator.are_peers_pending()}

    def await_pending(self):
        """Ask until somebody waits."""
        while not self.communicator.are_peers_pending():
            pass
        return {}

    def await_size(self, size):
        """Look at the attributes, which needs no call to anybody, until they show this size."""
        while self.communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE) != size:
            select.select([], [], [], STEP_S)
        return self.facts()

    def collective(self, tag=0, count=LONG, dtype="FLOAT"):
        spec = CollectiveSpec(count, DataType[dtype], ReduceOp.SUM)
        committed = self.communicator._call("collective", CallCollective(tag, spec))
        return {"attempt": committed.attempt, "epoch": committed.epoch, "ring": committed.ring}

    def hurry(self, rounds, count, share):
        """Reduce again and again, with so little time for the start that votes are often taken back, more from try to
        try; how often that happened, and what went wrong."""
        late, wrong = 0, []
        for number in range(rounds):
            tensor, time_s = np.full(count, share + number, np.float32), 0.0
            while True:
                try:
                    info = self.communicator.all_reduce(tensor, tag=number % 3, timeout=timedelta(seconds=time_s))
                    break
                except CollectiveTimedOut as error:
                    late, time_s = late + 1, 2 * time_s + 0.0002
                    if not (tensor == share + number).all() or not set(error.missing_peers) <= set(
                        self.communicator.ring
                    ):
                        wrong.append(f"round {number}: {error}")
            kept = tensor.copy()
            expected = sum(range(1, info.local_world_size + 1)) + number * info.local_world_size
            if not (kept == expected).all():
                wrong.append(f"round {number}: {kept[0]} instead of {expected}")
        return {"late": late, "wrong": wrong}

    def reduce(
        self, count, share, tag=0, op="SUM", dtype="float32", die_at=None, apart=False, tell_at=None, timeout=None
    ):
        """Reduce numbers that are easy to check; SIGKILL ourselves, or say so, when this many bytes have moved."""
        send = np.resize(np.arange(PERIOD).astype(dtype) + np.asarray(share, dtype), count)
        recv = np.zeros_like(send) if apart else send
        if tell_at is not None:
            threading.Thread(target=self.tell_moving, args=(tell_at,), daemon=True).start()
        try:
            with dying(self.await_moved, die_at):
                info = self.communicator.all_reduce(send, recv, op=ReduceOp[op], tag=tag, timeout=timeout)
        except PCCLError:
            tell("input", intact=surplus(send, 1) == [share, share])
            raise
        return {
            "peers": info.local_world_size,
            "attempts": info.attempts,
            "sent": info.tx_bytes,
            "received": info.rx_bytes,
            "surplus": surplus(recv, info.local_world_size if op == "SUM" else 1),
            "digest": hashlib.sha256(recv).hexdigest(),
        }

    def reduce_many(self, lengths, share, retry, die_at=None, **arguments):
        """One transaction over tensors of two types; SIGKILL ourselves when this many bytes have moved."""
        tensors = [np.full(length, share, ("float32", "int64")[i % 2]) for i, length in enumerate(lengths)]
        try:
            with dying(self.await_moved, die_at):
                info = self.communicator.all_reduce_many(tensors, retry=retry, async_op=True, **arguments).wait()
        except PCCLError:
            tell("input", intact=all((tensor == share).all() for tensor in tensors))
            raise
        values = sorted({float(value) for tensor in tensors for value in (tensor.min(), tensor.max())})
        return {"peers": info.peers, "attempts": info.attempts, "values": values}

    def doom(self, point, **arguments):
        """SIGKILL ourselves at this point of a collective to come."""
        self.fate.arm(Point[point], **arguments)
        return {}

    def end_of(self, call, share, **arguments):
        """Make a call that may fail, with tensors full of our share; what became of each of its tags."""
        from tests.e2e.ends import make_call

        return {"ends": make_call(self.communicator, call, share, **arguments)}

    def conform(self, me, peers):
        """Everything that a peer of a conforming group does."""
        from tests.e2e.conformance import conform

        return conform(self.communicator, me, peers)

    def await_moved(self, moved_bytes):
        while max(self.communicator._data_plane.moved_bytes(), default=-1) < moved_bytes:
            select.select([], [], [], GLANCE_S)

    def tell_moving(self, moved_bytes):
        self.await_moved(moved_bytes)
        tell("moving")

    def fork(self):
        """A child that lives on and tries to use what is not its own."""
        child = os.fork()
        if child == 0:
            try:
                self.communicator.update_topology()
                tell("child", error=None)
            except PCCLError as error:
                tell("child", error=type(error).__name__, reason=str(error))
            while True:
                signal.pause()
        return {"child": child}

    def open_files(self, count):
        """What a training script does: it has this many files open at once."""
        files = []
        try:
            while len(files) < count:
                files.append(open(os.devnull))  # noqa: SIM115 - closed below
        except OSError as error:
            return {"opened": len(files), "reason": str(error)}
        finally:
            for file in files:
                file.close()
        return {"opened": count}

    def hold_files(self, left):
        """Files that stay open, as many as leave this many descriptors."""
        spare = []
        try:
            while True:
                spare.append(open(os.devnull))  # noqa: SIM115 - they stay open
        except OSError:
            for file in spare[-left:]:
                file.close()
        self.held = spare[:-left]
        return {"held": len(self.held)}

    def close(self):
        self.communicator.close()
        return {}

    def train(self):
        """Like a training script: admit whoever waits, reduce, again; until the next line comes."""
        longest, steps, aborted, epoch = 0.0, 0, 0, 0

        def timed(call, *arguments):
            nonlocal longest
            began = time.monotonic()
            try:
                return call(*arguments)
            finally:
                longest = max(longest, time.monotonic() - began)

        while not select.select([sys.stdin], [], [], STEP_S)[0]:
            try:
                timed(self.collective)
            except TooFewPeers:
                pass
            except CollectiveAborted:
                aborted += 1
            steps += 1
            if timed(self.communicator.are_peers_pending):
                timed(self.communicator.update_topology)
            if self.communicator.epoch != epoch:
                epoch = self.communicator.epoch
                tell("epoch", longest_s=longest, **self.facts())
        return {"steps": steps, "longest_s": longest, "aborted": aborted}


def main():
    try:
        actor = Actor(json.loads(sys.argv[1]))
    except PCCLError as error:
        tell("failed", call="build", error=type(error).__name__, reason=str(error))
        return
    tell("ready")
    for line in sys.stdin:
        order = json.loads(line)
        name = order.pop("do")
        began = time.monotonic()
        try:
            facts = getattr(actor, name)(**order)
        except PCCLError as error:
            lost = getattr(error, "lost_peers", ())
            facts = {"error": type(error).__name__, "reason": str(error), "result": int(error.result), "lost": lost}
            tell("failed", call=name, seconds=time.monotonic() - began, **facts)
        else:
            tell(name, seconds=time.monotonic() - began, **facts)


if __name__ == "__main__":
    main()
