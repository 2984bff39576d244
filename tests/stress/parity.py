"""The shared state of a stress peer: synced in every step, and equal everywhere at every revision.

Owns the state. Its content follows from its revision, so every holder can check it.
"""

import time

from pccl import CallMismatch, CollectiveAborted, SharedState, SyncFailed, TensorInfo
from tests.stress.caller import TRIES_MAX, Caller
from tests.stress.values import Wrong, digest, pattern

PARITY = 8
"""Its tag in what is told."""

COUNT = 1 << 17
"""Elements: a megabyte, which takes a newcomer a few messages and some milliseconds to pull."""


class Parity:
    """What one peer holds, from membership to membership."""

    def __init__(self) -> None:
        self._step = pattern("int64", COUNT)
        self._content = self._step * 0
        self._state = SharedState([TensorInfo.from_numpy(self._content, "content")])
        self._held = ("", 0)
        """As whom we were last in step, and the revision that followed."""

    def sync(self, it: Caller) -> None:
        """Hold what the others hold, and check it."""
        began = time.monotonic()
        for _ in range(TRIES_MAX):
            try:
                it.communicator.sync_shared_state(self._state)
                break
            except (SyncFailed, CollectiveAborted) as error:
                it.report("aborted", kind="sync", seconds=time.monotonic() - began, reason=str(error))
            except CallMismatch:
                if not self._state.torn:
                    raise
                # All its holders died while we pulled it: begin again with a new state.
                self._content *= 0
                self._state.revision = 0
                self._held = ("", 0)
            began = time.monotonic()
        else:
            raise Wrong(f"step {it.step}: the sync failed {TRIES_MAX} times")
        if self._held[0] == it.me and self._state.revision < self._held[1]:
            raise Wrong(f"step {it.step}: the shared state went back from {self._held[1]} to {self._state.revision}")
        if not (self._content == self._step * self._state.revision).all():
            raise Wrong(f"step {it.step}: revision {self._state.revision} of the shared state has another content")
        self._held = (it.me, self._state.revision)
        it.report(
            "committed",
            kind="sync",
            step=it.step,
            tag=PARITY,
            digest=f"{self._state.revision}/{digest([self._content])}",
            peers=[],
            attempts=0,
            seconds=time.monotonic() - began,
        )

    def learn(self) -> None:
        """The step is done: the next revision, the same for all peers."""
        self._content += self._step
        self._state.push_revision()
        self._held = (self._held[0], self._state.revision)
