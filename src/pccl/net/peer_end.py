"""A peer's end of a control connection: it sends its preamble first, and reads whether the master takes it.

Owns the greeting and the words of a refusal; must not know what a message says. See `connection.py`.
"""

import asyncio
from collections.abc import Callable

from pccl.net.connection import ControlEnd
from pccl.security.control import Guard
from pccl.security.tls import NotProven
from pccl.wire.framing import (
    REFUSAL_TEXT_MAX,
    TO_PEER_FRAME_MAX,
    FrameReader,
    Purpose,
    WireError,
    WrongVersion,
    parse_preamble,
    parse_refusal,
    preamble,
)

_REFUSED = "it does not take this connection"
_UNPROVEN = "it does not let this peer in, and has not proved to be the master"
"""The words of a refusal come before any proof, so a false master or any machine on the way can have sent them."""


class PeerEnd(ControlEnd):
    """A peer's end."""

    def __init__(
        self, on_frame: Callable[[bytes], None], on_closed: Callable[[str], None], guard: Guard | None = None
    ) -> None:
        super().__init__(FrameReader(TO_PEER_FRAME_MAX), on_closed, guard)
        self._purpose = Purpose.CONTROL if guard is None else guard.purpose
        self._on_frame = on_frame
        self.greeted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the master has answered: with nothing, or with the words of its refusal."""
        self._refused_by = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._put(preamble(self._purpose) if self._guard is None else self._guard.outgoing())

    def _write(self, data: bytes) -> None:
        if not self._refused_by:  # What is refused gets nothing more of us, least of all in the clear.
            super()._write(data)

    def _take_purpose(self, head: bytes) -> None:
        try:
            if parse_preamble(head) is not self._purpose:
                self._refused_by = _REFUSED if self._guard is None else _UNPROVEN
        except WrongVersion as error:
            self._refused_by = str(error)
        except WireError as error:
            self._greet(str(error))
            raise
        self._spoken_to = True
        if self._refused_by:
            # What follows is the same in every version: the listener's reason, in words, which are never sealed.
            self._reader.limit, self._guard = REFUSAL_TEXT_MAX, None
        elif self._guard is None:
            self._greet("")

    def _unsealed(self, data: bytes) -> bytes:
        try:
            plain = super()._unsealed(data)
        except NotProven as error:
            self._greet(str(error))
            raise
        if self._guard is not None and self._guard.open:
            self._greet("")
        return plain

    def _take_frame(self, body: bytes) -> None:
        if self._refused_by:
            self._greet(f"{self._refused_by}; it says: {parse_refusal(body)}")
        else:
            self._on_frame(body)

    def _greet(self, refusal_text: str) -> None:
        if not self.greeted.done():
            self.greeted.set_result(refusal_text)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.greeted.done():
            if self._refused_by:
                self._greet(self._refused_by)
            else:
                cause = self._cause or (str(error) if error else "it closed the connection without an answer")
                self.greeted.set_exception(ConnectionError(cause))
        super().connection_lost(error)
