"""The reference data plane: the ring in numpy over the lent sockets, one thread for each attempt.

The oracle of the native data plane, which gives the same bits and speaks the same format on the lanes, and of use
where no compiler is; chosen by name, and slow. Owns the threads. Must not know peers, votes or retries.
"""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from pccl.codec import Codec
from pccl.core.effects.peer_effects import StartAttempt
from pccl.core.effects.peer_events import AttemptEnded
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.connection import Connection
from pccl.dataplane.offers import CannotBegin, Offers, Traffic
from pccl.dataplane.patience import Patience
from pccl.dataplane.ring.arithmetic import STORED, check, reduce_all
from pccl.dataplane.ring.coding import CodedShares, Coding, memory
from pccl.dataplane.ring.reference_ring import Failed, Receiver, Ring, Sender
from pccl.dataplane.tensors.buffers import Buffers, Tensor


class ReferenceAttempt:
    """One attempt in a thread of its own."""

    def __init__(self, effect: StartAttempt, ring: Ring, stall_s: float, ended: Callable[[AttemptEnded], None]) -> None:
        self._effect, self._ring, self._stall_s = effect, ring, stall_s
        self._ended = ended
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"pccl attempt {effect.attempt}", daemon=True)

    def start(self) -> None:
        """Begin; `ended` is called from a thread of its own."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread is gone."""
        self._thread.join()

    def abort(self) -> None:
        """From any thread: the end comes within 100 ms."""
        self._stop.set()

    def _work(self) -> None:
        cause = ""
        try:
            self._run()
        except Failed as failure:
            cause = str(failure)
        except Exception as error:  # such as no memory; the shell waits for the end and must get it
            cause = f"{type(error).__name__}: {error}"
        self._ring.leave()
        broken = {self._effect.to_next[stripe] for stripe in self._ring.broken_next}
        broken |= {self._effect.from_prev[stripe] for stripe in self._ring.broken_prev}
        digest = b"" if cause else self._ring.digest
        self._ended(AttemptEnded(self._effect.tag, self._effect.attempt, cause, tuple(sorted(broken)), digest))

    def _run(self) -> None:
        ring, turn_at = self._ring, time.monotonic()
        patience = Patience(self._stall_s, ring.open_segments)
        while not ring.finished:
            if self._stop.is_set():
                raise Failed("aborted")
            useful, open_segments = ring.useful_bytes, ring.open_segments
            if not ring.advance():
                ring.wait()
            now = time.monotonic()
            patience.spend(now - turn_at, ring.useful_bytes - useful, open_segments - ring.open_segments)
            turn_at = now
            if patience.cause and not ring.finished:
                raise Failed(patience.cause)

    commits_at_once = True

    def commit(self) -> None:
        """The result is in its place already, decoded segment by segment: written to be read, not to be fast."""

    def restore(self) -> None:
        """Put the input back; stops and waits for its end first if need be."""
        self.abort()
        self.join()
        self._ring.restore()

    @property
    def moved_bytes(self) -> int:
        """So far, in both directions."""
        return self._ring.sent_bytes + self._ring.received_bytes

    @property
    def traffic(self) -> Traffic:
        """What it moved."""
        return Traffic(self._ring.sent_bytes, self._ring.received_bytes)


class ReferencePlane:
    """Runs collectives in threads of Python. All methods but `moved_bytes`, and those of `offers`, are
    called in the event loop's thread."""

    def __init__(self, stall_s: float) -> None:
        self.offers = Offers()
        self.stall_s = stall_s
        self._running: dict[int, ReferenceAttempt] = {}

    def start(
        self,
        effect: StartAttempt,
        to_next: Sequence[Connection],
        from_prev: Sequence[Connection],
        ended: Callable[[AttemptEnded], None],
    ) -> None:
        """Begin an attempt; see `DataPlane`."""
        try:
            buffers = self.offers.take(effect)
        except CannotBegin as failure:
            ended(AttemptEnded(effect.tag, effect.attempt, str(failure)))
            return
        ring = Ring(effect, buffers, [Sender(lane) for lane in to_next], [Receiver(lane) for lane in from_prev])

        def gone(event: AttemptEnded) -> None:
            del self._running[effect.attempt]
            ended(event)

        this = self._running[effect.attempt] = ReferenceAttempt(effect, ring, self.stall_s, gone)
        try:
            this.start()
        except RuntimeError as error:  # the machine has no more threads
            gone(AttemptEnded(effect.tag, effect.attempt, f"it cannot begin: {error}"))
            return
        self.offers.began(effect.tag, this)

    def abort(self, tag: int, attempt: int) -> None:
        """Stop an attempt; see `DataPlane`."""
        if (running := self._running.get(attempt)) is not None:
            running.abort()

    def moved_bytes(self) -> list[int]:
        """See `DataPlane`."""
        return [running.moved_bytes for running in list(self._running.values())]

    def check(self, contribution: bytes) -> int:
        """See `DataPlane`."""
        return check(np.frombuffer(contribution, np.uint8))

    def contribution(self, spec: CollectiveSpec, buffers: Buffers, draw: int) -> bytes:
        """See `DataPlane`."""
        given, codec = memory(buffers.send), Codec.parse(spec.codec)
        if codec is None:
            return given.tobytes()
        shares = CodedShares(Coding(codec, spec.dtype, spec.op), buffers.feedback)
        return shares.encode(given, 0, (draw, 0, 0)).tobytes()

    def reduce_all(self, spec: CollectiveSpec, contributions: list[bytes], out: Tensor) -> None:
        """See `DataPlane`."""
        codec = Codec.parse(spec.codec)
        if codec is not None:
            coded = [np.frombuffer(each, np.uint8) for each in contributions]
            memory(out)[:] = Coding(codec, spec.dtype, spec.op).reduce_all(coded, spec.count)
            return
        stored = [np.frombuffer(each, STORED[spec.dtype]) for each in contributions]
        memory(out)[:] = reduce_all(stored, spec.dtype, spec.op).view(np.uint8)

    def close(self) -> None:
        """The loop ends: no thread stays behind, which takes no longer than an abort."""
        running = list(self._running.values())
        for each in running:
            each.abort()
        for each in running:
            each.join()
