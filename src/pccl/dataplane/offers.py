"""What the data planes share: the buffers of calls in flight, by tag, and what became of their attempts.

A call offers its buffers before it votes. After each attempt it settles: only then is it known whether the result
stands or the input must be put back. When it will not try again it withdraws the offer; until then buffers are kept
alive here, and no other call gets its tag. Must not know how bytes move.
"""

import threading
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from pccl.core.effects.peer_effects import StartAttempt
from pccl.dataplane.ring.segments import output_count
from pccl.dataplane.tensors.buffers import Buffers, Extent, Feedback, Tensor, fresh
from pccl.errors import UsageError
from pccl.types import Result


class Traffic(Struct, frozen=True):
    """Bytes that an attempt moved over its lanes, headers included."""

    sent_bytes: int = 0
    received_bytes: int = 0
    repeated_bytes: int = 0
    """Of those sent, the second copies of segments that hung on another lane."""


class Settled(Traffic, frozen=True):
    """What became of a call."""

    output: Tensor | None = None
    """Where the result is, if an attempt has begun; of use only when it was committed."""


class CannotBegin(Exception):
    """There are no buffers to work on; the sentence says why."""


class Attempt(Protocol):
    """The data plane's part in an attempt that has ended, or is about to."""

    @property
    def commits_at_once(self) -> bool:
        """`commit` has nothing, or next to nothing, to do."""

    def commit(self) -> None:
        """The result stands: whatever of it is not in its place yet goes there; only after the end."""

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
        """Of each offer, from where to where it is read, and written."""
        self._complete: dict[int, Buffers] = {}
        """Of the present attempts: the next one may have a result of another length."""
        self._attempts: dict[int, Attempt] = {}
        self._flaws: dict[int, str] = {}
        self._copied: set[int] = set()
        """Tags whose buffers are copies of other tensors."""

    def offer(self, tag: int, buffers: Buffers) -> None:
        """These buffers are for the collective with this tag."""
        with self._lock:
            if tag in self._buffers:
                raise UsageError(f"tag {tag} is in flight; wait for it, or choose another tag", Result.INVALID_ARGUMENT)
            memory = _memory(buffers)
            other = self._disturbed(*memory)
            if other is None:
                other = self._disturbed_behind(buffers)
            if other is not None:
                raise UsageError(
                    f"tag {tag} would work on memory that the collective with tag {other} is still working on; wait "
                    "for that one first",
                    Result.INVALID_ARGUMENT,
                )
            self._buffers[tag], self._memory[tag] = buffers, memory
            if buffers.reads or buffers.writes:
                self._copied.add(tag)

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

    def _disturbed_behind(self, buffers: Buffers) -> int | None:
        """The same for the caller's tensors that buffers are copies of. Where there are none, nothing is compared."""
        copied = buffers.reads or buffers.writes
        for tag in self._buffers if copied else self._copied:
            reads, writes = _extents(buffers)
            their_reads, their_writes = _extents(self._buffers[tag])
            if _meet(writes, their_reads + their_writes) or _meet(reads, their_writes):
                return tag
        return None

    def spoil(self, tag: int, flaw: str) -> None:
        """What was offered for this tag is not there: an attempt that starts fails because of this, and so the
        collective ends for all peers. An empty sentence says that it is there now."""
        self._flaws[tag] = flaw

    def flaw(self, tag: int) -> str:
        """Why an attempt with this tag cannot begin; empty if it can."""
        return self._flaws.get(tag, "")

    def lend(self, tag: int, feedback: Feedback) -> None:
        """With what was offered for this tag goes what coding has lost before."""
        with self._lock:
            self._buffers[tag] = replace(self._buffers[tag], feedback=feedback)

    def find(self, tag: int) -> Buffers:
        """The buffers of a collective that travels with its vote: they were offered before, and the result is as long
        as the input."""
        return self._buffers[tag]

    def take(self, start: StartAttempt) -> Buffers:
        """The buffers that were offered for an attempt, with room for a result whose length was not known
        before. Raises `CannotBegin`."""
        offered, spec = self._buffers.get(start.tag), start.spec
        if offered is None:
            raise CannotBegin("no buffers were offered for it")
        if flaw := self.flaw(start.tag):
            raise CannotBegin(flaw)
        wanted = output_count(spec.kind, spec.count, start.size, start.rank)
        try:
            recv = fresh(wanted, spec.dtype) if offered.recv is None else offered.recv
        except (OSError, OverflowError) as error:
            raise CannotBegin(f"no memory for a result of {wanted} x {spec.dtype.name}: {error}") from error
        complete = Buffers(offered.send, recv, offered.feedback)
        if (complete.send.count, complete.output.count) != (spec.count, wanted):
            raise CannotBegin(f"recv holds {complete.output.count} elements, and the result {wanted}")
        self._complete[start.tag] = complete
        return complete

    def began(self, tag: int, attempt: Attempt) -> None:
        """An attempt works on the buffers of this tag."""
        self._attempts[tag] = attempt

    def commits_at_once(self, tag: int) -> bool:
        """To settle it as committed takes less time than to wake another thread for it."""
        attempt = self._attempts.get(tag)
        return attempt is None or attempt.commits_at_once

    def settle(self, tag: int, committed: bool) -> Settled:
        """The attempt was answered, so nothing works on the buffers any more: keep the result or put the input back."""
        complete = self._complete.pop(tag, None)
        attempt = self._attempts.pop(tag, None)
        if attempt is None:
            return Settled()
        if committed:
            attempt.commit()
        else:
            attempt.restore()
        output = None if complete is None else complete.recv
        moved = attempt.traffic
        return Settled(moved.sent_bytes, moved.received_bytes, moved.repeated_bytes, output)

    def withdraw(self, tag: int) -> None:
        """The call is over; its tag and its memory are free."""
        with self._lock:
            self._buffers.pop(tag, None)
            self._memory.pop(tag, None)
            self._flaws.pop(tag, None)
            self._copied.discard(tag)


def _memory(buffers: Buffers) -> tuple[int, int, int, int]:
    """From where to where a call reads, and writes."""
    return *_range(buffers.send), *_range(buffers.recv)


def _extents(buffers: Buffers) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    """All that it reads, and writes."""
    recv = () if buffers.recv is None else (buffers.recv.extent,)
    return (*buffers.reads, buffers.send.extent), (*buffers.writes, *recv)


def _meet(ours: tuple[Extent, ...], theirs: tuple[Extent, ...]) -> bool:
    """One of these shares memory with one of those: in the order of their beginnings, none may begin before the last of
    the other side has ended."""
    ends: list[tuple[str, int]] = [("", 0), ("", 0)]
    for extent, side in sorted([*((each, 0) for each in ours), *((each, 1) for each in theirs)]):
        space, end = ends[1 - side]
        if space == extent.space and extent.begin < end and extent.begin < extent.end:
            return True
        ends[side] = max(ends[side], (extent.space, extent.end))
    return False


def _range(tensor: Tensor | None) -> tuple[int, int]:
    """From where to where a tensor lies. One that is empty, or not there yet, overlaps with nothing."""
    return (tensor.address, tensor.address + tensor.nbytes) if tensor is not None and tensor.nbytes else (0, 0)
