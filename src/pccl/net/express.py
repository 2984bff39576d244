"""Express lanes: parcels sent and received beside the control connection, and the exchanges that reduce them.

Owns the sockets of express lanes. They stay in the event loop, because what they carry is shorter than the votes around
it and travels at the same time. Must not know which parcels are wanted, or when.
"""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

from pccl.codec import contribution_bytes
from pccl.core.effects.peer_effects import SendParcel, StartExchange
from pccl.core.effects.peer_events import AttemptEnded, LaneClosed, PeerEvent
from pccl.core.rules.schedule import PARCEL_BYTES_MAX, PARCELS_BYTES_MAX, PARCELS_KEPT_MAX
from pccl.dataplane.connection import Connection
from pccl.dataplane.patience import BYTES_MIN_S
from pccl.dataplane.plane import DataPlane
from pccl.dataplane.ring.parcels import PARCELS_PER_TURN, Damaged, Exchanged, Inbox, wrap
from pccl.dataplane.ring.segments import HEADER_BYTES
from pccl.dataplane.state.digests import digest, memory
from pccl.net import sockets
from pccl.net.lanes import LaneKey

READ_BYTES = 2 * PARCEL_BYTES_MAX
"""Taken from a lane at once: the longest parcel needs no second call."""

BACKLOG_MAX = PARCELS_BYTES_MAX + PARCELS_KEPT_MAX * HEADER_BYTES
"""Bytes that wait to be sent on one lane: as much as its other end may keep."""

PARCELS_PER_S = 20_000
"""What comes faster on one lane waits to be read. Honest peers that exchange as fast as they can send 2,600 a second
here, no more than `PARCELS_PER_TURN` of them at a time."""


class _ExpressLane:
    """One lane: what has come over it, and what the kernel has not taken yet."""

    def __init__(self, sock: Connection, inbox: Inbox) -> None:
        self.sock = sock
        self.inbox = inbox
        self.received_bytes = 0
        self._rest = bytearray()

    def send(self, data: bytes) -> None:
        """Send it, or what the kernel takes of it now and the rest later. Raises `OSError`."""
        if not self._rest:
            with suppress(BlockingIOError, InterruptedError):
                data = data[self.sock.send(data) :]
        if data:
            self._rest += data
            if len(self._rest) > BACKLOG_MAX:
                raise ConnectionError("the other end takes no parcels")

    def flush(self) -> bool:
        """Send more of what waits; True if anything still does. Raises `OSError`."""
        with suppress(BlockingIOError, InterruptedError):
            del self._rest[: self.sock.send(self._rest)]
        return bool(self._rest)

    @property
    def waits(self) -> bool:
        """Something waits to be sent."""
        return bool(self._rest)


class _Exchange:
    """One that waits for parcels."""

    def __init__(self, effect: StartExchange, give_up: asyncio.TimerHandle, seen: dict[LaneKey, int]) -> None:
        self.effect = effect
        self.give_up = give_up
        self.seen = seen
        """How many bytes had come over each lane when it was last looked at."""


class Express:
    """All express lanes of one peer. Lives in one event loop."""

    def __init__(self, data_plane: DataPlane, report: Callable[[PeerEvent], None]) -> None:
        self._data_plane = data_plane
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[LaneKey, _ExpressLane] = {}
        self._sent: dict[int, bytes] = {}
        """Our contributions, by the numbers of their parcels: what was sent is what is reduced."""
        self._first_draw = secrets.randbits(62)
        """Contributions are rounded at random, if at all, before the master has numbered their collective; and no other
        peer may draw the same, for then the errors of equal contributions would not cancel out."""
        self._waiting: dict[int, _Exchange] = {}
        """By attempt."""

    # ── lanes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def carry(self, key: LaneKey, sock: Connection | None) -> None:
        """This lane is ours from now on; if it is gone, that has been reported."""
        if sock is not None:
            lane = self._lanes[key] = _ExpressLane(sock, Inbox(self._data_plane.check))
            self._loop.add_reader(sock.fileno(), self._readable, key, lane)

    def close(self, key: LaneKey) -> None:
        """Close a lane, if it is there."""
        lane = self._lanes.pop(key, None)
        if lane is not None:
            self._loop.remove_reader(lane.sock.fileno())
            self._loop.remove_writer(lane.sock.fileno())
            lane.sock.close()

    def stop(self) -> None:
        """Close everything; nothing needs to be told any more."""
        for key in list(self._lanes):
            self.close(key)
        for waiting in self._waiting.values():
            waiting.give_up.cancel()
        self._waiting.clear()

    def _broke(self, key: LaneKey, cause: str) -> None:
        self.close(key)
        self._report(LaneClosed(*key, cause))

    # ── parcels ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def send(self, effect: SendParcel) -> None:
        """Send the input of a collective to all other peers of the group."""
        draw = self._first_draw + effect.parcel
        contribution = self._data_plane.contribution(effect.spec, self._data_plane.offers.find(effect.tag), draw)
        self._sent = {number: kept for number, kept in self._sent.items() if number >= effect.oldest}
        self._sent[effect.parcel] = contribution
        parcel = wrap(effect.parcel, effect.oldest, contribution, self._data_plane.check(contribution))
        for key in effect.lanes:
            lane = self._lanes.get(key)
            if lane is None:
                continue  # It broke, which has been reported.
            try:
                lane.send(parcel)
            except OSError as error:
                self._broke(key, sockets.in_words(error))
            else:
                if lane.waits:
                    self._loop.add_writer(lane.sock.fileno(), self._writable, key, lane)

    def _writable(self, key: LaneKey, lane: _ExpressLane) -> None:
        try:
            if not lane.flush():
                self._loop.remove_writer(lane.sock.fileno())
        except OSError as error:
            self._broke(key, sockets.in_words(error))

    def _readable(self, key: LaneKey, lane: _ExpressLane) -> None:
        try:
            data = lane.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(key, sockets.in_words(error))
            return
        if not data:
            self._broke(key, "the other end closed it")
            return
        lane.received_bytes += len(data)
        self._feed(key, lane, data)
        if len(data) == READ_BYTES:
            # There may be more, of which the descriptor does not tell: under TLS it is read ahead of us.
            self._loop.call_soon(self._readable_again, key, lane)

    def _feed(self, key: LaneKey, lane: _ExpressLane, data: bytes) -> None:
        try:
            complete = lane.inbox.feed(data)
        except Damaged as error:
            self._broke(key, str(error))
            return
        if lane.inbox.full:
            # Not read until all of it was looked at, a turn of the loop at a time.
            self._loop.remove_reader(lane.sock.fileno())
            self._loop.call_later(PARCELS_PER_TURN / PARCELS_PER_S, self._feed_rest, key, lane)
        if complete:
            for waiting in list(self._waiting.values()):
                self._try_to_finish(waiting)

    def _readable_again(self, key: LaneKey, lane: _ExpressLane) -> None:
        if self._lanes.get(key) is lane and not lane.inbox.full:
            self._readable(key, lane)

    def _feed_rest(self, key: LaneKey, lane: _ExpressLane) -> None:
        if self._lanes.get(key) is not lane:
            return  # Closed meanwhile.
        self._loop.add_reader(lane.sock.fileno(), self._readable, key, lane)
        self._feed(key, lane, b"")
        self._loop.call_soon(self._readable_again, key, lane)

    # ── exchanges ────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, effect: StartExchange) -> None:
        """Reduce as soon as every parcel is there."""
        give_up = self._loop.call_later(self._data_plane.stall_s, self._give_up, effect.attempt)
        seen = {key: self._lanes[key].received_bytes for key, _ in effect.parcels if key in self._lanes}
        waiting = self._waiting[effect.attempt] = _Exchange(effect, give_up, seen)
        if flaw := self._data_plane.offers.flaw(effect.tag):
            self._end(effect.attempt, flaw)
        else:
            self._try_to_finish(waiting)

    def _give_up(self, attempt: int) -> None:
        """A parcel has not come for long. While bytes come over its lane it may only be slow, with others before it:
        those that came since the last look pay for as long as they take at the least rate."""
        waiting, stall_s = self._waiting[attempt], self._data_plane.stall_s
        missing = {key for key, number in waiting.effect.parcels if self._find(key, number) is None}
        seen = {key: self._lanes[key].received_bytes for key in missing if key in self._lanes}
        came = max((nbytes - waiting.seen.get(key, 0) for key, nbytes in seen.items()), default=0)
        waiting.seen = seen
        if came > 0:
            left_s = min(stall_s, came / BYTES_MIN_S)
            waiting.give_up = self._loop.call_later(left_s, self._give_up, attempt)
        else:
            self._end(attempt, "a parcel did not come")

    def abort(self, attempt: int) -> None:
        """Stop an exchange, if it is there and still waits."""
        if attempt in self._waiting:
            self._end(attempt, "aborted")

    def _try_to_finish(self, waiting: _Exchange) -> None:
        effect = waiting.effect
        contributions = [contribution for each in effect.parcels if (contribution := self._find(*each)) is not None]
        if len(contributions) < len(effect.parcels):
            return
        offers = self._data_plane.offers
        buffers = offers.find(effect.tag)
        expected = contribution_bytes(effect.spec.codec, effect.spec.count, effect.spec.dtype)
        if any(len(each) != expected for each in contributions):
            self._end(effect.attempt, "a parcel does not hold what its sender voted for")
            return
        offers.began(effect.tag, Exchanged(buffers, expected, len(contributions)))
        self._data_plane.reduce_all(effect.spec, contributions, buffers.output)
        self._end(effect.attempt, "", digest(memory(buffers.output)))

    def _forget(self, effect: StartExchange) -> None:
        """What was used, or was to be, is not needed again: another attempt has other parcels."""
        for key, number in effect.parcels:
            if key is None:
                self._sent.pop(number, None)
            elif key in self._lanes:
                self._lanes[key].inbox.take(number)

    def _find(self, key: LaneKey | None, number: int) -> bytes | None:
        """What came in a parcel, or left in one; None while it is missing."""
        if key is None:
            return self._sent[number]
        lane = self._lanes.get(key)
        return None if lane is None else lane.inbox.parcels.get(number)

    def _end(self, attempt: int, cause: str, result: bytes = b"") -> None:
        waiting = self._waiting.pop(attempt)
        waiting.give_up.cancel()
        self._forget(waiting.effect)
        self._report(AttemptEnded(waiting.effect.tag, attempt, cause, digest=result))
