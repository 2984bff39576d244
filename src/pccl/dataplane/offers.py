"""What the data planes share: the buffers of calls in flight, by tag, and what became of their runs.

A call offers its buffers before it votes and settles them after it was answered: only then is it known whether the
result stands or the input must be put back. Between the two, buffers are kept alive here. Must not know how bytes move.
"""

from typing import Protocol

from msgspec import Struct

from pccl.core.effects import StartRun
from pccl.dataplane.buffers import Buffers, Tensor, fresh
from pccl.dataplane.segments import output_count
from pccl.errors import UsageError
from pccl.types import Result


class Traffic(Struct, frozen=True):
    """Bytes that a run moved over its lanes, headers included."""

    sent_bytes: int = 0
    received_bytes: int = 0


class Settled(Traffic, frozen=True):
    """What became of a call."""

    output: Tensor | None = None
    """Where the result is, if a run has begun; of use only when it was committed."""


class CannotRun(Exception):
    """There are no buffers to run on; the sentence says why."""


class Ran(Protocol):
    """A run that has ended, or is about to."""

    def restore(self) -> None:
        """Put back every byte of an input that was overwritten; only after the end."""

    @property
    def traffic(self) -> Traffic:
        """What it moved; only after the end."""


class Offers:
    """Used by user threads and by the control thread; each step is one operation on a dictionary, which is atomic."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffers] = {}
        self._runs: dict[int, Ran] = {}

    def offer(self, tag: int, buffers: Buffers) -> None:
        """These buffers are for the collective with this tag."""
        if self._buffers.setdefault(tag, buffers) is not buffers:
            raise UsageError(f"tag {tag} is in flight; wait for it, or choose another tag", Result.INVALID_ARGUMENT)

    def find(self, tag: int) -> Buffers:
        """The buffers of a collective that travels with its vote: they were offered before, and the result is as long
        as the input."""
        return self._buffers[tag]

    def take(self, run: StartRun) -> Buffers:
        """The buffers that were offered for a run, with room for a result whose length nobody knew before. Raises
        `CannotRun`."""
        offered, spec = self._buffers.get(run.tag), run.spec
        if offered is None:
            raise CannotRun("no buffers were offered for it")
        wanted = output_count(spec.kind, spec.count, run.size, run.rank)
        try:
            complete = Buffers(offered.send, fresh(wanted, spec.dtype) if offered.recv is None else offered.recv)
        except (OSError, OverflowError) as error:
            raise CannotRun(f"no memory for a result of {wanted} x {spec.dtype.name}: {error}") from error
        if (complete.send.count, complete.output.count) != (spec.count, wanted):
            raise CannotRun(f"recv holds {complete.output.count} elements, and the result {wanted}")
        self._buffers[run.tag] = complete
        return complete

    def began(self, tag: int, run: Ran) -> None:
        """A run works on the buffers of this tag."""
        self._runs[tag] = run

    def settle(self, tag: int, committed: bool) -> Settled:
        """The call was answered, so no run works on its buffers any more: keep the result or put the input back."""
        run = self._runs.pop(tag, None)
        if run is not None and not committed:
            run.restore()
        output = self._buffers.pop(tag).recv
        if run is None:
            return Settled()
        return Settled(run.traffic.sent_bytes, run.traffic.received_bytes, output)
