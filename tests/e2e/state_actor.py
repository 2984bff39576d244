"""What a peer of the tests does with a shared state: hold one, change it, sync it, train with it."""

import contextlib
import hashlib
import json
import os
import select
import signal
import sys
import threading
import time

import numpy as np

from pccl import (
    Attribute,
    CollectiveAborted,
    SharedState,
    SharedStateSyncStrategy,
    SyncFailed,
    TensorInfo,
    TooFewPeers,
    UsageError,
)
from pccl.api.goodbye import living

THOUGHT_S = 0.02
"""A step takes some time, so that others can come and go between two of them."""


def random_array(draw, count, dtype):
    """Of any bits at all."""
    words = draw.integers(0, 1 << 64, -(-count * dtype.itemsize // 8), np.uint64)
    return words.view(dtype)[:count]


@contextlib.contextmanager
def dying(await_moved, die_at):
    """SIGKILL ourselves when this many bytes have moved in the call within. At its end at the latest: on a busy machine
    the last bytes may move while the thread that looks at them has no processor."""
    if die_at is None:
        yield
        return

    def die():
        await_moved(die_at)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()
    try:
        yield
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


class StateActor:
    """For a peer that has a `communicator`."""

    def hold(self, entries, seed, revision=0, free=()):
        """Entries as (name, count, dtype), filled with what the seed gives."""
        draw = np.random.default_rng(seed)
        self.arrays = {name: random_array(draw, count, np.dtype(dtype)) for name, count, dtype in entries}
        infos = [
            TensorInfo.from_numpy(array, name, allow_content_inequality=name in free)
            for name, array in self.arrays.items()
        ]
        self.state = SharedState(infos)
        self.state.revision = revision
        return {"digest": self.digest(), "bytes": sum(array.nbytes for array in self.arrays.values())}

    def digest(self):
        digest = hashlib.sha256()
        for array in self.arrays.values():
            digest.update(array)
        return digest.hexdigest()

    def sync(self, strategy="ENFORCE_POPULAR", die_at=None, stop_at=None):
        if stop_at is not None:
            threading.Thread(target=self.stop_transferring, args=(stop_at,), daemon=True).start()
        try:
            with dying(self.await_transferred, die_at):
                info = self.communicator.sync_shared_state(self.state, SharedStateSyncStrategy[strategy])
        finally:
            self.synced = {"revision": self.state.revision, "digest": self.digest()}
        return {**self.synced, "tx": info.tx_bytes, "rx": info.rx_bytes}

    def prefetch(self, die_at=None):
        """Fetch what the others hold, before connect."""
        with dying(self.await_transferred, die_at):
            info = self.communicator.prefetch_shared_state(self.state)
        return {"tx": info.tx_bytes, "rx": info.rx_bytes, "revision": self.state.revision, "torn": self.state.torn}

    def round(self, learns=(), die_at=None):
        """One round of training until somebody waits to be let in, and let it in. Each step is told of, and changes
        these entries; SIGKILL ourselves when this many bytes were served meanwhile."""
        with dying(self.await_transferred, die_at):
            return self._round(learns)

    def _round(self, learns):
        steps, gradient = 0, np.ones(100_000, np.float32)
        while not self.communicator.are_peers_pending():
            begin = time.monotonic()
            self.communicator.all_reduce(gradient, op="avg", retry=True)
            for name in learns:
                self.arrays[name] += 1
            steps += 1
            facts = {"event": "stepped", "steps": steps, "step_s": time.monotonic() - begin}
            os.write(1, json.dumps(facts).encode() + b"\n")
        self.communicator.update_topology()
        self.state.push_revision()
        return {"steps": steps}

    def await_serving(self):
        """Look until a visitor is being served."""
        while not any(each.moved_bytes for each in _transfers()):
            select.select([], [], [], 0.001)
        return {}

    def drop(self):
        """Have no state any more."""
        del self.state, self.arrays
        return {}

    def sync_until_done(self):
        self._sync_until_done(self.state)
        return self.held()

    def held(self):
        return {"revision": self.state.revision, "digest": self.digest()}

    def sync_twice(self):
        """One that waits in another thread, and one that comes into its way."""
        first = threading.Thread(target=self.sync, daemon=True)
        first.start()
        while not self.communicator._membership._shell.transfers.offered:
            pass
        try:
            self.communicator.sync_shared_state(self.state)
        except UsageError as error:
            return {"reason": str(error)}
        return {"reason": ""}

    def sync_interrupted(self):
        """Ctrl-C while it waits for the votes of the others."""
        threading.Thread(target=self._interrupt_offered, daemon=True).start()
        try:
            self.communicator.sync_shared_state(self.state)
        except KeyboardInterrupt:
            return {"interrupted": True}
        return {"interrupted": False}

    def await_over(self):
        """Look until the vote that was left behind is answered."""
        while self.communicator._membership.core._sync.open:
            select.select([], [], [], 0.001)
        return {}

    def _interrupt_offered(self):
        while not self.communicator._membership._shell.transfers.offered:
            select.select([], [], [], 0.001)
        os.kill(os.getpid(), signal.SIGINT)

    def await_transferred(self, moved_bytes):
        while not any(each.moved_bytes >= moved_bytes for each in _transfers()):
            select.select([], [], [], 0.001)

    def stop_transferring(self, moved_bytes):
        self.await_transferred(moved_bytes)
        os.write(1, b'{"event": "ending"}\n')
        os.kill(os.getpid(), signal.SIGSTOP)

    def alter(self, entry, place):
        """Change one element."""
        self.arrays[entry].view(np.uint8)[place] ^= 1
        return {}

    def build(self, learner):
        """What takes long is done before anybody waits for this peer."""
        self.learner = NumpyLearner() if learner == "numpy" else TorchLearner()
        return {}

    def train_state(self, steps):
        """So many optimizer steps in step with the others, from whatever they hold; the digest of each revision."""
        learn, digests = self.learner, {}
        while learn.state.revision < steps and not select.select([sys.stdin], [], [], THOUGHT_S)[0]:
            # A newcomer starts where the others are after they have let it in.
            if digests and self.communicator.are_peers_pending():
                self.communicator.update_topology()
            self._sync_until_done(learn.state)
            digests[learn.state.revision] = learn.digest()
            gradient = learn.gradient(self.communicator.rank)
            with contextlib.suppress(TooFewPeers):
                self.communicator.all_reduce(gradient, op="avg", retry=True)
            learn.step(gradient)
            learn.state.push_revision()
            self._tell_step(learn.state.revision)
        return {"digests": digests, "size": self.communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE)}

    def save(self, path):
        """A checkpoint, as any training script writes one."""
        self.learner.save(path)
        return {"revision": self.learner.state.revision, "digest": self.learner.digest()}

    def load(self, path):
        self.learner.load(path)
        return {"revision": self.learner.state.revision, "digest": self.learner.digest()}

    def _sync_until_done(self, state):
        while True:
            try:
                self.communicator.sync_shared_state(state)
                return
            except (SyncFailed, CollectiveAborted):
                continue

    def _tell_step(self, revision):
        if revision % 10 == 0:
            facts = {"event": "step", "revision": revision, "size": len(self.communicator.ring)}
            os.write(1, json.dumps(facts).encode() + b"\n")


def _transfers():
    """Of all memberships of this process: a visitor's is not that of its communicator."""
    shells = [membership._shell for membership in list(living)]
    return [each.transfer for shell in shells if shell for each in list(shell.transfers._running.values())]


class NumpyLearner:
    """SGD with momentum on numbers."""

    def __init__(self):
        draw = np.random.default_rng(os.getpid())
        self.weights = draw.standard_normal(20_000).astype(np.float32)
        self.momentum = draw.standard_normal(20_000).astype(np.float32)
        self.state = SharedState(
            [TensorInfo.from_numpy(self.weights, "weights"), TensorInfo.from_numpy(self.momentum, "momentum")]
        )

    def digest(self):
        return hashlib.sha256(self.weights.tobytes() + self.momentum.tobytes()).hexdigest()

    def save(self, path):
        np.savez(path, weights=self.weights, momentum=self.momentum, revision=self.state.revision)

    def load(self, path):
        with np.load(path) as saved:
            self.weights[:], self.momentum[:] = saved["weights"], saved["momentum"]
            self.state.revision = int(saved["revision"])

    def gradient(self, rank):
        return self.weights * np.float32(0.1 + 0.01 * rank)

    def step(self, gradient):
        self.momentum *= np.float32(0.9)
        self.momentum += gradient
        self.weights -= np.float32(0.05) * self.momentum


class TorchLearner:
    """AdamW on a small network."""

    def __init__(self):
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(os.getpid())
        self.torch = torch
        self.module = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 1))
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3)
        self.state = SharedState.from_module(self.module, self.optimizer)
        self.module.eval()

    def digest(self):
        return hashlib.sha256(b"".join(each.tensor_bytes for each in self._tensors())).hexdigest()

    def _tensors(self):
        for info in self.state.tensors:
            entry = info._entry()
            yield type("Bytes", (), {"tensor_bytes": bytes(_memory(entry.tensor))})

    def gradient(self, rank):
        torch = self.torch
        data = torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * self.state.revision + rank))
        self.optimizer.zero_grad()
        self.module(data).square().mean().backward()
        return torch.cat([each.grad.flatten() for each in self.module.parameters()])

    def step(self, gradient):
        place = 0
        for each in self.module.parameters():
            each.grad.copy_(gradient[place : place + each.numel()].reshape(each.shape))
            place += each.numel()
        self.optimizer.step()


def _memory(tensor):
    import ctypes

    return (ctypes.c_uint8 * tensor.nbytes).from_address(tensor.address)
