"""What both sides of a state transfer share: the form of requests and answers, lanes, threads and the report.

Owns the wire format (docs/shared-state.md) and the rule when a lane is clean: the requester has said goodbye on it, and
nothing was owed to it then. Must not know what is served or wanted, peers or votes.
"""

import select
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from pccl.core.fields import SEGMENT_BYTES_MAX
from pccl.dataplane.connection import Connection, drop, receive_into, rest_of
from pccl.dataplane.patience import Patience
from pccl.dataplane.ring.segments import HEADER_BYTES as SEGMENT_HEADER_BYTES
from pccl.dataplane.ring.segments import Header as Segment
from pccl.dataplane.ring.segments import seal
from pccl.dataplane.state.manifest import Chunk

SLICE_MS = 50
"""The longest sleep: an abort takes effect within 100 ms."""

GOODBYE_S = 0.05
"""A goodbye is sent when nothing is owed, so there is room for it. If not, the lane is broken, and none waits."""

_MAGIC = b"PCCLSTAT"
"""Eight bytes where a segment has its tag: no collective has this tag."""
_GOODBYE_TAG = int.from_bytes(b"PCCL BYE", "little")
_LAYOUT = struct.Struct("<8sIIII")
HEADER_BYTES = _LAYOUT.size

_MANY = 1 << 30
"""Chunks are asked for many at a time, so that none pays for a round trip: what counts are bytes."""

_PORTION_BYTES = 64 << 10
"""Received at a time of what has only been announced: a manifest, a segment of an earlier attempt."""

Bytes = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a message asks for, or answers."""

    MANIFEST = 1
    CHUNK = 2


class Header(NamedTuple):
    """What stands before the bytes of an answer. A request is a header alone."""

    kind: Kind
    chunk: Chunk = Chunk(0, 0)
    length: int = 0
    """Bytes of the chunk, in the request too; of the manifest, in the answer."""

    def pack(self) -> bytes:
        """As it goes over a lane."""
        return _LAYOUT.pack(_MAGIC, self.kind, *self.chunk, self.length)

    @classmethod
    def unpack(cls, data: Bytes) -> "Header":
        """As it came over a lane. Raises `LaneBroke` if it is none."""
        magic, kind, entry, number, length = _LAYOUT.unpack(data)
        if magic != _MAGIC or kind not in list(Kind):
            raise LaneBroke("the bytes received are not a message of a state transfer")
        return cls(Kind(kind), Chunk(entry, number), length)


def goodbye(attempt: int) -> bytes:
    """The last message of a requester. In the form of a segment, since a holder may never read it: if the master is
    lost before the holder received the start, it lies in front of what uses the lane next, a transfer or a collective.
    Either drops segments of earlier attempts; a goodbye without a number was taken for that of the next transfer."""
    return Segment(_GOODBYE_TAG, attempt, 0, 0, length=1, seal=0, check=0).sealed().pack() + bytes(1)


class LaneBroke(Exception):
    """This lane is of no more use; the sentence says why."""


class Stopped(Exception):
    """The transfer, or the use of this lane, is over."""


class Report(Struct, frozen=True):
    """How a transfer ended."""

    cause: str
    """Why it failed; empty if it did not."""
    broken: tuple[int, ...] = ()
    """Lanes to be closed, by their place among all that were lent."""
    sent_bytes: int = 0
    """Of chunks. Headers and manifests are not counted, here and below."""
    received_bytes: int = 0
    placed_bytes: int = 0
    """Of those received, what was put in place: the tensors were written to."""
    dropped: tuple[tuple[int, str], ...] = ()
    """Who failed us, and why: holders by their place when pulling, lanes when serving."""


class SharedPatience:
    """The patience that all lanes of a transfer have together: what one of them moves, all have moved. A holder that
    serves many at once may be slow on each; one that sends a byte now and then while all others are done is not."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._patience = self._full()
        self._spent_at = self._over_at = time.monotonic()
        self._why = ""
        self._pauses = 0
        self._lock = threading.Lock()

    def _full(self) -> Patience:
        return Patience(self._stall_s, segments=_MANY)

    def over(self, since: float, nbytes: int) -> str:
        """So many bytes have moved on a lane that is owed something, or owes it, since then; the reason if there was
        no patience left meanwhile. Who begins after that has all of it."""
        with self._lock:
            now = time.monotonic()
            self._patience.spend(0.0 if self._pauses else now - self._spent_at, nbytes)
            self._spent_at = now
            if cause := self._patience.cause:
                self._why = cause.replace("too long", f"{self._stall_s:g} s")
                self._over_at, self._patience = now, self._full()
            return self._why if self._over_at > since else ""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What passes meanwhile is our own doing, and uses nothing up on any lane."""
        self._pause(1)
        try:
            yield
        finally:
            self._pause(-1)

    def _pause(self, change: int) -> None:
        with self._lock:
            self._pauses, self._spent_at = self._pauses + change, time.monotonic()


class Lane:
    """One lent connection: whole messages, in portions as they come. Used by one thread at a time."""

    def __init__(
        self,
        attempt: int,
        place: int,
        connection: Connection,
        stall_s: float,
        patience: SharedPatience | None = None,
    ) -> None:
        """Without `patience` any byte is progress: no peer waits for what a visitor pulls, and what it gets is limited
        by a rate, not by the link."""
        self._patience = patience
        self.attempt = attempt
        self.place = place
        self.connection = connection
        self.stall_s = stall_s
        self.clean = False
        """Goodbye was said, so the next user finds it as it was before."""
        self.moved_bytes = 0
        """Of chunks."""

    def receive(
        self, into: memoryview, stopped: Callable[[], bool], *, counts: bool = False, whole: bool = False
    ) -> None:
        """Fill it. Raises `LaneBroke`, also when no byte comes for `stall_s`, or too few, and `Stopped`. With `whole`,
        all waits for it together may last no longer: the other end may send byte by byte."""
        got, idle_s, since = 0, 0.0, time.monotonic()
        while got < len(into):
            if stopped():
                raise Stopped
            try:
                portion = receive_into(self.connection, into[got:])
            except (BlockingIOError, InterruptedError):
                idle_s = self._wait(select.POLLIN, idle_s)
                self._account(since, 0)
                continue
            except OSError as error:
                raise LaneBroke(f"receive: {error.strerror}") from error
            if portion == 0:
                raise LaneBroke("the other side closed the lane")
            got, idle_s = got + portion, idle_s if whole else 0.0
            self.moved_bytes += portion * counts
            self._account(since, portion)

    def receive_growing(self, length: int, stopped: Callable[[], bool]) -> bytearray:
        """So many bytes, in memory that grows with what has come: the length is the sender's word. Raises like
        `receive`."""
        body, portion = bytearray(), memoryview(bytearray(min(length, _PORTION_BYTES)))
        while len(body) < length:
            part = portion[: length - len(body)]
            self.receive(part, stopped)
            body += part
        return body

    def receive_header(self, stopped: Callable[[], bool], *, unused: bool = False) -> Header | None:
        """The next message's; None if it is the goodbye. Segments of earlier attempts may still lie in front of it:
        they are read and dropped, unless this lane was never used. Raises like `receive`."""
        data = memoryview(bytearray(SEGMENT_HEADER_BYTES))
        while True:
            self.receive(data[:HEADER_BYTES], stopped, whole=True)
            if bytes(data[: len(_MAGIC)]) == _MAGIC:
                return Header.unpack(data[:HEADER_BYTES])
            self.receive(data[HEADER_BYTES:], stopped, whole=True)
            segment = Segment.unpack(bytes(data))
            ours = (segment.tag, segment.attempt) == (_GOODBYE_TAG, self.attempt)
            if segment.seal != seal(segment) or segment.length > SEGMENT_BYTES_MAX or (unused and not ours):
                raise LaneBroke("the bytes received are not a message of a state transfer")
            self._drop(segment.length, stopped)
            if ours:
                return None

    def _drop(self, length: int, stopped: Callable[[], bool]) -> None:
        """Read the rest of an earlier attempt, which is no progress, in portions: its length is the sender's word."""
        patience, self._patience = self._patience, None
        scratch = memoryview(bytearray(min(length, _PORTION_BYTES)))
        began = time.monotonic()
        try:
            while length > 0:
                self.receive(scratch[: min(length, len(scratch))], stopped)
                length -= len(scratch)
        finally:
            self._patience = patience
        self._account(began, 0)

    def send(self, data: Bytes, stopped: Callable[[], bool], *, counts: bool = False) -> None:
        """Hand all of it to the kernel. Raises like `receive`."""
        rest, idle_s, since = memoryview(data), 0.0, time.monotonic()
        while rest:
            if stopped():
                raise Stopped
            portion = self._send_some(rest)
            if portion:
                rest, idle_s = rest[portion:], 0.0
                self.moved_bytes += portion * counts
            else:
                idle_s = self._wait(select.POLLOUT, idle_s)
            self._account(since, portion)

    def await_bytes(self, stopped: Callable[[], bool]) -> None:
        """Until something comes, however long that takes, or it breaks. Raises `Stopped`."""
        while not self._arrived():
            self._ready(select.POLLIN)
            if stopped():
                raise Stopped

    def _arrived(self) -> bool:
        """Something can be received, if only an end. Under TLS the descriptor does not tell: what came may be inside
        already, and what is there may be no byte of ours."""
        try:
            if not rest_of(self.connection).head and drop(self.connection):
                self.connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True  # What follows finds out why.
        return True

    def _send_some(self, data: memoryview) -> int:
        """Hand to the kernel what it takes at once; how much that was."""
        try:
            return self.connection.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise LaneBroke(f"send: {error.strerror}") from error

    def say_goodbye(self) -> None:
        """Nothing is owed to us: leave the lane as it was."""
        until = time.monotonic() + GOODBYE_S
        try:
            self.send(goodbye(self.attempt), lambda: time.monotonic() > until)
            self.clean = True
        except (LaneBroke, Stopped):
            self.clean = False

    def hang_up(self) -> None:
        """It broke on this side. The other one finds that out now, not when all lanes are given back: until then it may
        wait for an answer on this one."""
        with suppress(OSError):  # Broken on the other side, too.
            self.connection.shutdown(socket.SHUT_RDWR)

    def _account(self, since: float, nbytes: int) -> None:
        if self._patience is not None and (why := self._patience.over(since, nbytes)):
            raise LaneBroke(why)

    def _wait(self, event: int, idle_s: float) -> float:
        """How long nothing has moved now. What counts is time spent looking, not what the clock says: a lane does not
        stall because this thread was late."""
        if 0 < self.stall_s <= idle_s:
            raise LaneBroke(f"no byte moved for {self.stall_s:g} s")
        return idle_s if self._ready(event) else idle_s + SLICE_MS / 1000

    def _ready(self, event: int) -> bool:
        """Whether it can go on, after no more than `SLICE_MS`."""
        poll = select.poll()
        poll.register(self.connection.fileno(), event)
        return bool(poll.poll(SLICE_MS))


Ended = Callable[[Report], None]


class Transfer(ABC):
    """One side of a transfer: a thread for each lane, and one that waits for them and reports."""

    def __init__(self, name: str, lanes: Sequence[Lane], ended: Ended) -> None:
        self._name = name
        self._lanes = lanes
        self._ended = ended
        self._abort = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name=f"pccl {name}", daemon=True)

    def start(self) -> None:
        """Begin and return at once. The lanes are the transfer's until it calls `ended`: once, from its own thread."""
        self._thread.start()

    def abort(self) -> None:
        """From any thread, at any time: the end comes within 100 ms."""
        self._abort.set()

    def join(self) -> None:
        """Wait until no thread of it is left."""
        self._thread.join()

    @property
    def moved_bytes(self) -> int:
        """Of chunks, so far."""
        return sum(lane.moved_bytes for lane in self._lanes)

    @property
    def broken(self) -> tuple[int, ...]:
        """Places of lanes on which no goodbye was said; after the end."""
        return tuple(lane.place for lane in self._lanes if not lane.clean)

    @abstractmethod
    def _use(self, lane: Lane) -> None:
        """What is done with one lane, in a thread of its own; may raise `LaneBroke` and `Stopped`."""

    @abstractmethod
    def _gone(self, lane: Lane, why: str) -> None:
        """A lane broke."""

    @abstractmethod
    def _report(self) -> Report:
        """All lanes are done."""

    def _supervise(self) -> None:
        threads = [
            threading.Thread(target=self._guarded, args=(lane,), name=f"pccl {self._name} {lane.place}", daemon=True)
            for lane in self._lanes
        ]
        started = [thread for lane, thread in zip(self._lanes, threads, strict=True) if self._started(lane, thread)]
        for thread in started:
            thread.join()
        self._ended(self._report())

    def _started(self, lane: Lane, thread: threading.Thread) -> bool:
        try:
            thread.start()
        except RuntimeError as error:  # the machine has no more threads
            self._drop(lane, str(error))
            return False
        return True

    def _guarded(self, lane: Lane) -> None:
        try:
            self._use(lane)
        except Stopped:
            pass  # who stopped it knows why
        except LaneBroke as broke:
            self._drop(lane, str(broke))
        except Exception as error:  # such as no memory; the shell waits for the end and must get it
            self._drop(lane, f"{type(error).__name__}: {error}")

    def _drop(self, lane: Lane, why: str) -> None:
        lane.hang_up()
        self._gone(lane, why)
