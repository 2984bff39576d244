"""What the data planes share: the buffers of calls in flight, by tag, and what became of their runs.

A call offers its buffers before it votes. After each attempt it settles: only then is it known whether the result
stands or the input must be put back. When it will not try again it withdraws the offer; until then buffers are kept
alive here, and nobody else gets its tag. Must not know how bytes move.
"""

import threading
from typing import Protocol

from msgspec import Struct

from pccl.dataplane.buffers import Buffers
from pccl.errors import UsageError
from pccl.types import Result


class Traffic(Struct, frozen=True):
    """Bytes that a run moved over its lanes, headers included."""

    sent_bytes: int = 0
    received_bytes: int = 0


class Ran(Protocol):
    """A run that has ended, or is about to."""

    def restore(self) -> None:
        """Put back every byte of an input that was overwritten; only after the end."""

    @property
    def traffic(self) -> Traffic:
        """What it moved; only after the end."""


class Offers:
    """Used by user threads and by the control thread. What only looks up or removes one entry needs no lock: an
    operation on a dictionary is atomic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held while a new offer is compared with the others, and when one goes."""
        self._buffers: dict[int, Buffers] = {}
        self._memory: dict[int, tuple[int, int, int, int]] = {}
        self._runs: dict[int, Ran] = {}

    def offer(self, tag: int, buffers: Buffers) -> None:
        """These buffers are for the collective with this tag."""
        with self._lock:
            if tag in self._buffers:
                raise UsageError(f"tag {tag} is in flight; wait for it, or choose another tag", Result.INVALID_ARGUMENT)
            memory = _memory(buffers)
            other = self._disturbed(*memory)
            if other is not None:
                raise UsageError(
                    f"tag {tag} would work on memory that the collective with tag {other} is still working on; wait "
                    "for that one first",
                    Result.INVALID_ARGUMENT,
                )
            self._buffers[tag], self._memory[tag] = buffers, memory

    def _disturbed(self, read: int, read_end: int, write: int, write_end: int) -> int | None:
        """The tag of one that would read what is written here, or write what is read or written here. There may be
        thousands, so the comparison is spelled out."""
        for tag, (their_read, their_read_end, their_write, their_write_end) in self._memory.items():
            if write < their_write_end and their_write < write_end:
                return tag
            if (write < their_read_end and their_read < write_end) or (
                read < their_write_end and their_write < read_end
            ):
                return tag
        return None

    def take(self, tag: int) -> Buffers | None:
        """The buffers offered for a tag."""
        return self._buffers.get(tag)

    def began(self, tag: int, run: Ran) -> None:
        """A run works on the buffers of this tag."""
        self._runs[tag] = run

    def settle(self, tag: int, committed: bool) -> Traffic:
        """The attempt was answered, so no run works on the buffers any more: keep the result or put the input back."""
        run = self._runs.pop(tag, None)
        if run is None:
            return Traffic()
        if not committed:
            run.restore()
        return run.traffic

    def withdraw(self, tag: int) -> None:
        """The call is over; its tag and its memory are free."""
        with self._lock:
            self._buffers.pop(tag, None)
            self._memory.pop(tag, None)


def _memory(buffers: Buffers) -> tuple[int, int, int, int]:
    """From where to where it reads, and writes."""
    send, recv = buffers.send, buffers.recv
    return send.address, send.address + send.nbytes, recv.address, recv.address + recv.nbytes
