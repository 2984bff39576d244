"""The holder's side of a state transfer: answers requests on every lane until each has said goodbye.

Owns the rate limit for who serves beside other work. Must not know who asks, or why.
"""

import itertools
import threading
import time
from collections.abc import Sequence

from pccl.dataplane.connection import Connection
from pccl.dataplane.state.digests import CHUNK_BYTES, chunks
from pccl.dataplane.state.manifest import Holding
from pccl.dataplane.state.transfer import (
    SLICE_MS,
    Ended,
    Header,
    Kind,
    Lane,
    LaneBroke,
    Report,
    SharedPatience,
    Stopped,
    Transfer,
)

PORTION_BYTES = 64 << 10
"""What is sent at once under a rate limit: at 1 MB/s every 60 ms, so that no visitor takes the limit for a stall."""

REQUEST_BYTES = 4096
"""A request under a rate limit costs at least this much of it: answering one takes as much of the processor as sending
some KB, so that a visitor that asks for single bytes gets no more of that than others."""

ASKED_MAX = 4
"""How often each chunk may be asked for under a rate limit, on average: once, and again for lanes that broke. Who asks
for more does not mean to end."""


class Rate:
    """A bucket that fills with so many bytes a second; all lanes that shall share them draw from it, and are served in
    the order in which they came: many small requests of one do not keep another from a large one."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._size = max(PORTION_BYTES, bytes_per_s * SLICE_MS / 1000)
        """What comes together while a thread sleeps is not lost, and no thread may send more than that at once."""
        self._level = 0.0
        self._filled_at = time.monotonic()
        self._lock = threading.Lock()

    def draw(self, portion: int) -> float:
        """Take so many bytes, at most a portion, and say in how many seconds they are there: until then they are not to
        be sent. They are taken now, so a thread that comes later waits for what is left."""
        with self._lock:
            now = time.monotonic()
            self._level = min(self._size, self._level + (now - self._filled_at) * self._bytes_per_s)
            self._filled_at = now
            self._level -= portion
            return max(0.0, -self._level / self._bytes_per_s)


class Serving(Transfer):
    """Serves one state over lanes of any number of requesters. That one of them dies is no failure of ours: it is told
    by its broken lanes alone. If contents change meanwhile, their digests do not fit any more, which is for the
    requester to find out."""

    def __init__(
        self,
        attempt: int,
        own: Holding,
        lanes: Sequence[Connection],
        ended: Ended,
        stall_s: float,
        rate: Rate | None = None,
    ) -> None:
        """`stall_s`: a lane that takes no byte for this long is broken, and so are all that together take too few. With
        a `rate`, for requesters that no peer waits for, so is one that asks for nothing for as long."""
        self._patience = SharedPatience(stall_s)
        made = [Lane(attempt, place, lane, stall_s, self._patience) for place, lane in enumerate(lanes)]
        super().__init__("serve", made, ended)
        self._own = own
        self._rate = rate
        self._requests = itertools.count(1)
        self._requests_max = ASKED_MAX * (1 + sum(chunks(entry.nbytes) for entry in own.manifest.entries))
        self._dropped: list[tuple[int, str]] = []

    def _use(self, lane: Lane) -> None:
        while True:
            if self._rate is None:
                lane.await_bytes(self._abort.is_set)  # who waits for other holders asks us for nothing, and lives
            # A visitor's lanes are new: no attempt has used them, and there is no end to what it might say one has.
            header = lane.receive_header(self._abort.is_set, unused=self._rate is not None)
            if header is None:
                lane.clean = True
                return
            if self._rate is not None and next(self._requests) > self._requests_max:
                raise LaneBroke("more was requested than anybody needs")
            self._answer(lane, header)

    def _answer(self, lane: Lane, request: Header) -> None:
        manifest = self._own.manifest
        if request.kind is Kind.MANIFEST:
            self._send(lane, Header(Kind.MANIFEST, length=len(manifest.encoded)), memoryview(manifest.encoded))
            return
        if not manifest.has(request.chunk) or request.length != manifest.chunk_bytes(request.chunk):
            raise LaneBroke("a chunk was requested that does not exist")
        begin = request.chunk.number * CHUNK_BYTES
        self._send(lane, request, self._own.entries[request.chunk.entry].tensor.part(begin, request.length))

    def _send(self, lane: Lane, header: Header, payload: memoryview) -> None:
        counts = header.kind is Kind.CHUNK
        if header.length <= PORTION_BYTES:  # many small entries: one system call and one packet for each
            self._await_rate(max(REQUEST_BYTES, header.length))
            lane.send(header.pack() + payload, self._abort.is_set)
            lane.moved_bytes += header.length * counts
            return
        lane.send(header.pack(), self._abort.is_set)
        portion = len(payload) if self._rate is None else PORTION_BYTES
        for start in range(0, len(payload), portion):
            self._await_rate(min(portion, len(payload) - start))
            lane.send(payload[start : start + portion], self._abort.is_set, counts=counts)

    def _await_rate(self, portion: int) -> None:
        if self._rate is None:
            return
        delay_s = self._rate.draw(portion)
        if delay_s > 0:
            with self._patience.paused():
                stopped = self._abort.wait(delay_s)
            if stopped:
                raise Stopped

    def _gone(self, lane: Lane, why: str) -> None:
        self._dropped.append((lane.place, why))

    def _report(self) -> Report:
        broken = self.broken
        cause = "aborted" if self._abort.is_set() and broken else ""
        return Report(cause, broken, sent_bytes=self.moved_bytes, dropped=tuple(sorted(self._dropped)))
