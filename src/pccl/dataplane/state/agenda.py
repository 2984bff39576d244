"""What is still to be pulled, and from whom: the queue that all lanes of a pull share.

Owns who is asked for what, what happens to the requests of a lane that breaks, and when a pull is over. Decides only:
does no input or output, starts nothing, is told the time. A caller with several threads brings the lock.

Every chunk that all peers hold alike may come from any holder. The contents of free entries differ from holder to
holder, so they come from one, the **source**, whose manifest said what they are.
"""

from collections import deque
from dataclasses import dataclass, field

from msgspec import Struct

from pccl.dataplane.state.digests import CHUNK_BYTES, DIGEST_BYTES, differing, digest_at
from pccl.dataplane.state.manifest import Chunk, Manifest, difference

WINDOW_BYTES = 3 * CHUNK_BYTES
"""Requested on one lane at a time, so that a long round trip does not leave the link idle: 1 Gbit/s and 80 ms hold
10 MB. With several lanes it is as much on each, which longer and faster links need."""

WINDOW_LOW_BYTES = 2 * CHUNK_BYTES
"""When the queue runs short: one chunk on its way and the request for the next one too."""

REQUESTS_MAX = 1024
"""Of small entries on one lane: a thousand in a round trip, and no more than 24 KB of requests to be sent."""

REQUEST_BYTES = 256
"""Counted for a request on top of the chunk: about what Python spends on it, in bytes that a link of 10 Mbit/s would
carry meanwhile. So lanes share the many small entries too, not only the bytes."""

SECOND_REQUEST_S = 1.0
"""What a lane will bring within this is not asked for a second time: it would cost more than it gains, a lane too."""

PACE_BYTES_MIN = CHUNK_BYTES // 4
"""A lane's pace is taken from so many bytes at least, of one chunk or of several that came without a pause: fewer tell
of round trips and of the scheduler, not of the link."""


class Goal(Struct, frozen=True):
    """What was elected, and what this peer is."""

    layout: bytes
    content: bytes
    newcomer: bool
    """Free entries are wanted too."""
    visit: bool = False
    """The holders go on meanwhile: a chunk may have changed since they hashed it, and is left out then."""


@dataclass
class Asked:
    """One lane, and what it was asked for."""

    holder: int
    outstanding: deque[Chunk] = field(default_factory=deque)
    """Oldest first: answers come in this order."""
    outstanding_bytes: int = 0
    moved_at: float = 0.0
    """When the last chunk came, or the first was asked for."""
    pace_s: float = 0.0
    """Seconds for each byte, of late."""
    counted_bytes: int = 0
    """Those that came, and are in no pace yet."""
    counted_from: float = 0.0
    gone: bool = False

    def remaining_s(self, now: float) -> float:
        """When it will have brought everything. One that is later than expected is thought to need as long again."""
        elapsed_s = now - self.moved_at
        return max(self.outstanding_bytes * self.pace_s - elapsed_s, elapsed_s)

    def arrived(self, cost: int, now: float) -> None:
        """So much came at last: half of what is known of the pace is from what came lately."""
        self.counted_bytes += cost
        if self.counted_bytes >= PACE_BYTES_MIN:
            pace_s = (now - self.counted_from) / self.counted_bytes
            self.pace_s = (self.pace_s + pace_s) / 2 if self.pace_s else pace_s
            self.counted_bytes, self.counted_from = 0, now
        self.moved_at = now


class Agenda:
    """The state of one pull."""

    def __init__(self, own: Manifest, goal: Goal, holders: list[int]) -> None:
        """`holders`: which one each lane leads to."""
        self.goal = goal
        self._own = own
        self._held = [bytearray(entry.digests) for entry in own.entries]
        """Digests of what is in memory now."""
        self._lanes = [Asked(holder) for holder in holders]
        self._manifest: Manifest | None = None
        """Of the source; what chunks are checked against."""
        self._source: int | None = None
        self._asking: int | None = None
        """The lane that is fetching a manifest."""
        self._queue: deque[Chunk] = deque()
        self._free_queue: deque[Chunk] = deque()
        self._queued_bytes = 0
        self._unfinished: dict[Chunk, int] = {}
        """Every chunk that is wanted, and on how many lanes it is on its way."""
        self._unfinished_bytes = 0
        self.dropped: dict[int, str] = {}
        self.cause = ""
        self.over = False
        wants_free = goal.newcomer and any(entry.free for entry in own.entries)
        if goal.layout == own.layout and goal.content == own.content and not wants_free:
            self.over = True  # in step: there is nothing to ask for
        elif not holders:
            self.fail("no holder was named")

    # ── manifests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def asks_for_manifest(self, lane: int) -> bool:
        """True if this lane is the one to fetch a manifest now."""
        if self.over or self._asking is not None or self._source is not None or self._lanes[lane].outstanding:
            return False  # answers come in order, so a lane first delivers what it owes
        if self._lanes[lane].gone or (self._manifest is not None and not self._free_unfinished()):
            return False
        self._asking = lane
        return True

    def manifest_bytes(self) -> int | None:
        """The length of the manifest to come; None if its layout is not ours, and only serves to say how it differs."""
        return len(self._own.encoded) if self.goal.layout == self._own.layout else None

    def manifest_came(self, lane: int, manifest: Manifest) -> None:
        """One that was verified to be the elected one."""
        self._asking = None
        if self.goal.layout != self._own.layout:
            self.fail(difference(self._own, manifest) or "entries are cut or described in another way")
            return
        first = self._manifest is None
        self._forget_free()  # of the source before: its contents are others
        self._manifest, self._source = manifest, self._lanes[lane].holder
        for place, entry in enumerate(manifest.entries):
            if self.goal.newcomer if entry.free else first:
                for number in differing(self._held[place], entry.digests):
                    self._add(Chunk(place, number))
        self._end_if_done()

    def _add(self, chunk: Chunk) -> None:
        self._unfinished[chunk] = 0
        self._unfinished_bytes += self._cost(chunk)
        self._enqueue(chunk)

    def _forget_free(self) -> None:
        for chunk in [chunk for chunk in self._unfinished if self._is_free(chunk)]:
            del self._unfinished[chunk]
            self._unfinished_bytes -= self._cost(chunk)

    def _enqueue(self, chunk: Chunk, first: bool = False) -> None:
        queue = self._free_queue if self._is_free(chunk) else self._queue
        queue.appendleft(chunk) if first else queue.append(chunk)
        self._queued_bytes += self._cost(chunk)

    def _is_free(self, chunk: Chunk) -> bool:
        return self._own.entries[chunk.entry].free

    def _free_unfinished(self) -> bool:
        return self.goal.newcomer and any(self._is_free(chunk) for chunk in self._unfinished)

    def _cost(self, chunk: Chunk) -> int:
        return self._own.chunk_bytes(chunk) + REQUEST_BYTES

    # ── chunks ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_chunks(self, lane: int, now: float) -> list[Chunk]:
        """What this lane is to be asked for now; counted as asked."""
        asked, taken = self._lanes[lane], []
        while len(asked.outstanding) < REQUESTS_MAX and (chunk := self._next(asked)) is not None:
            taken.append(chunk)
            self._ask(asked, chunk, now)
        if not asked.outstanding and (late := self._late(asked, now)) is not None:
            taken.append(late)
            self._ask(asked, late, now)
        return taken

    def _next(self, asked: Asked) -> Chunk | None:
        queue = self._free_queue if asked.holder == self._source and self._free_queue else self._queue
        if not queue or asked.gone or self.over:
            return None
        cost = self._cost(queue[0])
        if asked.outstanding and asked.outstanding_bytes + cost > self._window():
            return None
        self._queued_bytes -= cost
        return queue.popleft()

    def _window(self) -> float:
        """A lane's share of the queue, so that no lane takes the last chunks from others that will be idle first; but
        not so little that it waits for a round trip between two chunks, as long as there is enough for all."""
        lanes = sum(not asked.gone for asked in self._lanes)
        low = min(WINDOW_LOW_BYTES + 2 * REQUEST_BYTES, self._unfinished_bytes / lanes)
        return max(min(WINDOW_BYTES + 3 * REQUEST_BYTES, self._queued_bytes / lanes), low)

    def _ask(self, asked: Asked, chunk: Chunk, now: float) -> None:
        if not asked.outstanding:
            asked.moved_at = asked.counted_from = now
            asked.counted_bytes = 0
        asked.outstanding.append(chunk)
        asked.outstanding_bytes += self._cost(chunk)
        self._unfinished[chunk] += 1

    def _late(self, idle: Asked, now: float) -> Chunk | None:
        """A chunk that a slow lane would bring last, for an idle lane of another holder: one of the
        same holder would only take the link from it. Each is asked for twice at most."""
        if idle.gone or self.over:
            return None
        for slow in (asked for asked in self._lanes if asked.holder != idle.holder):
            for chunk in reversed(slow.outstanding):
                patience_s = max(SECOND_REQUEST_S, 2 * self._cost(chunk) * idle.pace_s)
                if slow.remaining_s(now) < patience_s:
                    break
                if self._unfinished.get(chunk) == 1 and not self._is_free(chunk):
                    return chunk
        return None

    def expected(self, lane: int) -> tuple[Chunk, bytes]:
        """The chunk that this lane brings next, and its digest; only if one is owed."""
        assert self._manifest is not None, "chunks are asked for only when a manifest is there"
        chunk = self._lanes[lane].outstanding[0]
        return chunk, digest_at(self._manifest.entries[chunk.entry].digests, chunk.number)

    def owed(self, lane: int) -> bool:
        """Answers are to come on this lane."""
        return bool(self._lanes[lane].outstanding) or self._asking == lane

    def chunk_came(self, lane: int, digest: bytes | None, now: float) -> bool:
        """The expected one has come whole, or has changed (None) and is left out. False if it is not needed any more;
        if it is, it must be in its place before the lock is given away: the pull may be over with it."""
        asked = self._lanes[lane]
        if asked.gone:
            return False
        chunk = asked.outstanding.popleft()
        asked.outstanding_bytes -= self._cost(chunk)
        asked.arrived(self._cost(chunk), now)
        if chunk not in self._unfinished:
            return False
        del self._unfinished[chunk]
        self._unfinished_bytes -= self._cost(chunk)
        if digest is not None:
            self._held[chunk.entry][chunk.number * DIGEST_BYTES : (chunk.number + 1) * DIGEST_BYTES] = digest
        self._end_if_done()
        return digest is not None

    def _end_if_done(self) -> None:
        if not self._unfinished:
            self.over = True

    # ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────

    def lane_gone(self, lane: int, why: str) -> None:
        """It broke: what it owed is asked for elsewhere."""
        asked = self._lanes[lane]
        if asked.gone:
            return
        asked.gone = True
        if self._asking == lane:
            self._asking = None
        for chunk in reversed(asked.outstanding):
            if chunk in self._unfinished:
                self._unfinished[chunk] -= 1
                if self._unfinished[chunk] == 0:
                    self._enqueue(chunk, first=True)
        asked.outstanding.clear()
        asked.outstanding_bytes = 0
        if all(other.gone for other in self._lanes if other.holder == asked.holder):
            self._holder_gone(asked.holder, why)

    def holder_lied(self, holder: int, why: str) -> None:
        """Nothing that comes from it can be used."""
        self.dropped.setdefault(holder, why)
        for lane, asked in enumerate(self._lanes):
            if asked.holder == holder:
                self.lane_gone(lane, why)

    def _holder_gone(self, holder: int, why: str) -> None:
        self.dropped.setdefault(holder, why)
        if holder == self._source:
            self._source = None  # unless all free entries have come, there will be another
            self._queued_bytes -= sum(self._cost(chunk) for chunk in self._free_queue)
            self._free_queue.clear()
        if all(asked.gone for asked in self._lanes):
            reasons = "; ".join(f"holder {each}: {reason}" for each, reason in sorted(self.dropped.items()))
            self.fail(f"no holder is left ({reasons})")

    def is_gone(self, lane: int) -> bool:
        """This lane is not to be used any more."""
        return self._lanes[lane].gone

    def holder_of(self, lane: int) -> int:
        """Where it leads."""
        return self._lanes[lane].holder

    def fail(self, cause: str) -> None:
        """The pull cannot be completed."""
        if not self.over:
            self.cause, self.over = cause, True
