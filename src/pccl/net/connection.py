"""The ends of a control connection: every byte of one goes through here. The peer's is in `peer_end.py`.

Owns preamble, frames, the orderly end and the bound on what waits to be sent. What the ends prove to each other and
how their bytes are sealed is the guard's business. Must not know what a message says.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from pccl.net.budgets import CANDIDATE_BACKLOG_MAX, MEMBER_BACKLOG_MAX, UNPROVED_MAX
from pccl.net.rates import FRAMES_PER_TURN
from pccl.security.control import AcceptingGuard, Bearer, Guard, Refused
from pccl.security.tls import NotProven
from pccl.wire.framing import (
    HELLO_FRAME_MAX,
    PREAMBLE_BYTES,
    TO_MASTER_FRAME_MAX,
    FrameReader,
    Purpose,
    WireError,
    WrongVersion,
    frame,
    parse_preamble,
    preamble,
    refusal,
)

FRAME_TIMEOUT_S = 30.0
"""From the first byte of a frame to its last, at the master's end, once its sender has proved who it is; before, all of
it together has `listening.HELLO_TIMEOUT_S`. The longest frame takes 7 s at the least rate that a lane may have, and TCP
sends again after 1, 3, 7 and 15 s. A member whose connection ends so comes back on another."""

LINGER_S = 5.0
"""After our last message the other end has this long to read it and to close. Closing at once would answer bytes that
are still on their way to us with a reset, and a reset can overtake that message, which says why we close."""


class ControlEnd(asyncio.Protocol):
    """What both ends share: bytes in, frames out, and one report of the end with its cause."""

    def __init__(self, reader: FrameReader, on_closed: Callable[[str], None], guard: Guard | None) -> None:
        self._guard = guard
        """None: nothing is proved, and all is sent in the clear."""
        self._reader = reader
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._head = bytearray()
        self._spoken_to = False
        """True once the other end's preamble was read and is ours."""
        self._cause = ""
        """Why it ends; not empty from the moment that this end gives up on it."""

    # ── for the shells ───────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def alive(self) -> bool:
        """It has not ended, as far as this end knows."""
        return self._transport is not None and not self._cause

    def send(self, body: bytes) -> None:
        """Send one frame."""
        self._write(frame(body))

    def close(self, cause: str = "closed by this end") -> None:
        """End it after what was sent has left, for which it has `LINGER_S`."""
        self._cause = self._cause or cause
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._transport.write_eof()
        except OSError:  # It was reset, and asyncio has not noticed yet: nothing that was sent will leave any more.
            self._transport.abort()
            return
        asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    def fail(self, cause: str) -> None:
        """End it at once, because of this."""
        self._cause = self._cause or cause
        if self._transport is not None:
            self._transport.abort()

    # ── for asyncio ──────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._cause:  # Ended before it began.
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._cause:
            return  # No longer used; read only so that the last message that we sent is not lost to a reset.
        try:
            if not self._spoken_to:
                data = self._take_preamble(data)
            if self._spoken_to:
                self._take(self._unsealed(data))
        except (WireError, NotProven) as error:
            self.fail(str(error))

    def _unsealed(self, data: bytes) -> bytes:
        if self._guard is None:
            return data
        plain = self._guard.feed(data)
        self._put(self._guard.outgoing())  # of the handshake
        return plain

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_closed(self._cause or (str(error) if error else self._end_of_file()))

    # ── for the two kinds of end ─────────────────────────────────────────────────────────────────────────────────────

    def _take(self, data: bytes) -> None:
        """Bytes behind the preamble."""
        for body in self._reader.feed(data):
            if not self._cause:
                self._take_frame(body)

    def _take_frame(self, body: bytes) -> None:
        raise NotImplementedError

    def _backlog_max(self) -> int:
        """Bytes that may wait for an end that does not read."""
        return MEMBER_BACKLOG_MAX

    def _take_purpose(self, head: bytes) -> None:
        """Check the other end's preamble."""
        raise NotImplementedError

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._cause:
            return  # Its end is on its way to the core.
        waiting = self._transport.get_write_buffer_size()
        if waiting > CANDIDATE_BACKLOG_MAX and waiting > self._backlog_max():
            self.fail(f"it does not read: {waiting} bytes wait to be sent")
        elif self._guard is None:
            self._transport.write(data)
        else:
            self._guard.write(data)
            self._put(self._guard.outgoing())

    def _put(self, data: bytes) -> None:
        """Send bytes as they are."""
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _take_preamble(self, data: bytes) -> bytes:
        """Collect the preamble; the bytes behind it."""
        missing = PREAMBLE_BYTES - len(self._head)
        self._head += data[:missing]
        # A stranger gives itself away with its first bytes: no need to wait for more of them.
        if len(self._head) == PREAMBLE_BYTES or not b"PCCL".startswith(self._head[:4]):
            self._take_purpose(bytes(self._head))
        return data[missing:]

    def _end_of_file(self) -> str:
        if self._reader.buffered or (self._head and not self._spoken_to):
            return "the connection ended in the middle of a message"
        return "the connection was closed"


_UNGUARDED = (
    "this master has no secret, so no token and no certificate can be proved to it: start it with --secret, or with "
    "--ca, --cert and --key"
)


@dataclass(frozen=True)
class MasterSide:
    """What the master's end of a connection asks of its shell, and tells it."""

    frame: Callable[[bytes], float]
    """A frame has come; the seconds before the next one may."""
    closed: Callable[[str], None]
    kept: Callable[[int], None] = lambda nbytes: None
    """So many bytes stay in memory for now."""
    is_member: Callable[[], bool] = lambda: True
    turn: Callable[[Callable[[], None]], None] = lambda step: step()
    """Go on with a handshake when it is this connection's turn."""
    paid: Callable[[Callable[[], None]], None] = lambda step: step()
    """Go on with it now; its cost counts as if it had been a turn."""


class MasterEnd(ControlEnd):
    """The master's end. A stranger gets no answer, but one of another version gets it in words. One connection gets a
    few frames handled in each turn of the loop, and none while it is held up: then it is not read."""

    def __init__(self, side: MasterSide, guard: AcceptingGuard | None = None) -> None:
        # A peer that has greeted is counted and bounded by the core; only unknown connections are kept to small frames.
        super().__init__(FrameReader(HELLO_FRAME_MAX, then=TO_MASTER_FRAME_MAX), side.closed, guard)
        self._side = side
        self._accepting = guard
        self._held, self._unproved = b"", 0
        """What has come and waits for our turn, and how much came so."""
        self._frames = 0
        self._watch: asyncio.TimerHandle | None = None
        """Looks whether the frame that is incomplete is still the same."""
        self._turn: asyncio.Handle | None = None
        """The next turn of what was read and not handled, or of a connection that is held up."""

    @property
    def bearer(self) -> Bearer | None:
        """What the other end shows, and must prove before its first frame; None where nothing is proved."""
        return self._accepting.bearer if self._accepting is not None else None

    @property
    def proved(self) -> bool:
        """It has."""
        return self._accepting is not None and self._accepting.open

    @property
    def kept_bytes(self) -> int:
        """What is in memory for it: unread answers, and what has come and was not handled."""
        unread = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return unread + self._reader.buffered + self._reader.left

    def connection_lost(self, error: Exception | None) -> None:
        for handle in (self._watch, self._turn):
            if handle is not None:
                handle.cancel()
        super().connection_lost(error)

    def _backlog_max(self) -> int:
        return MEMBER_BACKLOG_MAX if self._side.is_member() else CANDIDATE_BACKLOG_MAX

    def _write(self, data: bytes) -> None:
        super()._write(data)
        if self._transport is not None and (waiting := self._transport.get_write_buffer_size()):
            self._side.kept(min(waiting, len(data)))

    # ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, data: bytes) -> None:
        pause_s = 0.0
        for body in self._reader.feed(data, FRAMES_PER_TURN):
            self._frames += 1
            if not self._cause:
                pause_s = max(pause_s, self._side.frame(body))
        if self._reader.left or pause_s:
            self._rest(pause_s)
        if self._reader.buffered or self._reader.left:
            self._side.kept(len(data))
        if self._reader.buffered and self._watch is None:
            self._watch_frame()

    def _rest(self, pause_s: float) -> None:
        """Others have their turn; until the next one nothing is read."""
        loop = asyncio.get_running_loop()
        if self._transport is not None:
            self._transport.pause_reading()
        self._turn = loop.call_later(pause_s, self._go_on) if pause_s else loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._turn = None
        if not self._cause:
            try:
                self._take(b"")
            except WireError as error:
                self.fail(str(error))
        if self._turn is None and self._transport is not None:
            self._transport.resume_reading()

    def _watch_frame(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(FRAME_TIMEOUT_S, self._judge_frame, self._frames)

    def _judge_frame(self, frames: int) -> None:
        """A frame was incomplete a while ago: it has come, or another one is by now, or it comes too slowly."""
        self._watch = None
        if not self._reader.buffered or self._turn is not None:
            return
        if frames == self._frames:
            self.fail(f"it sent a part of a message, and not the rest within {FRAME_TIMEOUT_S:g} s")
        else:
            self._watch_frame()

    # ── the opening ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_purpose(self, head: bytes) -> None:
        try:
            purpose = parse_preamble(head)
        except WrongVersion as error:
            self._refuse(f"the master refuses this connection: seen from the master, {error}")
            return
        ours = Purpose.CONTROL if self._guard is None else self._guard.purpose
        if purpose is ours:
            self._spoken_to = True
            if self._guard is None:
                self._put(preamble(purpose))
        elif purpose in (Purpose.LANE, Purpose.SECURE_LANE, Purpose.PROVED_LANE):
            self._refuse("this is the port of a master: check the announced address of a peer")
        else:
            self._refuse(_UNGUARDED if self._accepting is None else self._accepting.wants)

    def _unsealed(self, data: bytes) -> bytes:
        if self._accepting is None or self._accepting.open:
            return super()._unsealed(data)
        try:
            self._held += self._accepting.greet(data)
        except Refused as error:
            self._refuse(f"the master refuses this connection: {error}")
            return b""
        if self._held:
            self._go_on_shaking(self._accepting, len(data))
        else:
            self._put(self._accepting.outgoing())
        return b""

    def _go_on_shaking(self, guard: AcceptingGuard, nbytes: int) -> None:
        """Nothing is read of a connection that waits for its turn."""
        if not guard.rationed:
            self._side.paid(self._shake)
            return
        self._unproved += nbytes
        if self._unproved > UNPROVED_MAX:
            raise WireError(f"it sent {self._unproved} bytes before it had proved who it is")
        if self._transport is not None:
            self._transport.pause_reading()
        self._side.turn(self._shake)

    def _shake(self) -> None:
        """It is our turn."""
        data, self._held = self._held, b""
        if self._cause or self._transport is None:
            return
        self._transport.resume_reading()
        try:
            self._take(super()._unsealed(data))
        except NotProven as error:
            # It may be an honest end that a reason helps: an alert of TLS, or words inside it.
            self._put(b"" if self._guard is None else self._guard.outgoing())
            self.close(str(error))
        except WireError as error:
            self.fail(str(error))

    def _refuse(self, reason: str) -> None:
        self._put(refusal(reason))
        self.close(reason)
