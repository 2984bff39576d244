"""The requester's side of a state transfer: brings the entries of this peer to the elected contents.

Owns what happens between the arrival of a chunk and its place in the tensor: it is received aside, its digest is
verified, and only then it is copied. What is asked of whom is decided in `agenda.py`. Must not know peers or elections.
"""

import itertools
import threading
import time
from collections.abc import Sequence

from pccl.dataplane.connection import Connection
from pccl.dataplane.state.agenda import Agenda, Goal
from pccl.dataplane.state.digests import CHUNK_BYTES, digest
from pccl.dataplane.state.manifest import BadManifest, Chunk, Holding, decode, foreign_bytes_max, shown
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


class Pulling(Transfer):
    """Pulls what differs from several holders at once.

    A failure leaves every chunk of the tensors either as it was or as elected, never anything else. Taking a manifest
    and pulling again fetches only what is missing.
    """

    def __init__(
        self,
        attempt: int,
        own: Holding,
        goal: Goal,
        holders: Sequence[Sequence[Connection]],
        ended: Ended,
        stall_s: float,
    ) -> None:
        """`holders`: the lanes to each; a report counts lanes through all of them. `stall_s`: a lane that owes an
        answer and brings no byte for this long is broken, and so is one that owes one while all together bring less
        than they must (`dataplane/patience.py`)."""
        owners = [holder for holder, lanes in enumerate(holders) for _ in lanes]
        connections = itertools.chain.from_iterable(holders)
        patience = None if goal.visit else SharedPatience(stall_s)
        lanes = [Lane(attempt, place, connection, stall_s, patience) for place, connection in enumerate(connections)]
        super().__init__("pull", lanes, ended)
        self._own = own
        self._agenda = Agenda(own.manifest, goal, owners)
        self._changed = threading.Condition()
        """Its lock guards the agenda, and the tensors while a chunk is copied."""
        self._placed_bytes = 0
        self._unplaced = ""
        """Why a chunk that came is not in its place."""

    def abort(self) -> None:
        """See `Transfer`."""
        with self._changed:
            self._agenda.fail("aborted")
            self._changed.notify_all()

    def _use(self, lane: Lane) -> None:
        scratch = bytearray(min(CHUNK_BYTES, max((entry.tensor.nbytes for entry in self._own.entries), default=0)))
        agenda, place = self._agenda, lane.place
        while True:
            with self._changed:
                if agenda.over or agenda.is_gone(place):
                    break
                for_manifest = agenda.asks_for_manifest(place)
                chunks = [] if for_manifest else agenda.next_chunks(place, time.monotonic())
                if not agenda.owed(place):
                    self._changed.wait(SLICE_MS / 1000)
                    continue
                expected = None if for_manifest else agenda.expected(place)
            if expected is None:
                self._fetch_manifest(lane)
            else:
                self._request(lane, chunks)
                self._fetch_chunk(lane, *expected, scratch)
        if not agenda.is_gone(place) and not agenda.owed(place):
            lane.say_goodbye()

    def _stopped(self, lane: Lane) -> bool:
        return self._agenda.over or self._agenda.is_gone(lane.place)

    def _gone(self, lane: Lane, why: str) -> None:
        with self._changed:
            self._agenda.lane_gone(lane.place, why)
            self._changed.notify_all()

    def _lied(self, lane: Lane, why: str) -> Stopped:
        with self._changed:
            self._agenda.holder_lied(self._agenda.holder_of(lane.place), why)
            self._changed.notify_all()
        return Stopped()

    def _receive_header(self, lane: Lane) -> Header:
        header = lane.receive_header(lambda: self._stopped(lane))
        if header is None:
            raise LaneBroke("the holder sent bye, which only the requester sends")
        return header

    # ── manifest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fetch_manifest(self, lane: Lane) -> None:
        lane.send(Header(Kind.MANIFEST).pack(), lambda: self._stopped(lane))
        header = self._receive_header(lane)
        length = self._agenda.manifest_bytes()
        if header.kind is not Kind.MANIFEST or (length is not None and header.length != length):
            raise self._lied(lane, "its manifest is not of the elected layout")
        own = self._own.manifest
        if length is None and header.length > foreign_bytes_max(own):
            raise LaneBroke("the elected state has other entries than ours, too many to say which")
        body = lane.receive_growing(header.length, lambda: self._stopped(lane))
        try:
            manifest = decode(body, None if length is None else len(own.entries))
        except BadManifest as error:
            raise self._lied(lane, f"its manifest: {error}") from None
        goal = self._agenda.goal
        if (manifest.layout, manifest.content) != (goal.layout, goal.content):
            raise self._lied(lane, "its manifest is not the elected one")
        with self._changed:
            self._agenda.manifest_came(lane.place, manifest)
            self._changed.notify_all()

    # ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(self, lane: Lane, chunks: list[Chunk]) -> None:
        manifest = self._own.manifest
        requests = [Header(Kind.CHUNK, chunk, manifest.chunk_bytes(chunk)).pack() for chunk in chunks]
        lane.send(b"".join(requests), lambda: self._stopped(lane))

    def _fetch_chunk(self, lane: Lane, chunk: Chunk, elected: bytes, scratch: bytearray) -> None:
        length = self._own.manifest.chunk_bytes(chunk)
        if self._receive_header(lane) != Header(Kind.CHUNK, chunk, length):
            raise self._lied(lane, "it answered what it was not asked")
        content = memoryview(scratch)[:length]
        lane.receive(content, lambda: self._stopped(lane), counts=True)
        fits = digest(content) == elected
        if not fits and not self._agenda.goal.visit:
            raise self._lied(lane, "it sent a chunk that does not have the elected content")
        with self._changed:
            if self._agenda.chunk_came(lane.place, elected if fits else None, time.monotonic()):
                self._place(chunk, content)
            self._changed.notify_all()

    def _place(self, chunk: Chunk, content: memoryview) -> None:
        entry = self._own.entries[chunk.entry]
        self._placed_bytes += len(content)
        try:
            entry.tensor.put(chunk.number * CHUNK_BYTES, content)
        except RuntimeError as error:  # of a device; the agenda counts this chunk as held, so the pull must not succeed
            self._unplaced = f"entry {shown(entry.name)} cannot be written: {str(error).partition(chr(10))[0]}"
            self._agenda.fail(self._unplaced)

    def _report(self) -> Report:
        agenda = self._agenda
        dropped = tuple(sorted(agenda.dropped.items()))
        received, placed = self.moved_bytes, self._placed_bytes
        return Report(
            self._unplaced or agenda.cause, self.broken, received_bytes=received, placed_bytes=placed, dropped=dropped
        )
