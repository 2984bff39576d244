"""What the shell asks of a data plane. Must not know how bytes move."""

from collections.abc import Callable, Sequence
from typing import Protocol

from pccl.core.effects.peer_effects import StartAttempt
from pccl.core.effects.peer_events import AttemptEnded
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.connection import Connection
from pccl.dataplane.offers import Offers
from pccl.dataplane.tensors.buffers import Buffers, Tensor

Lanes = Sequence[Connection]


class DataPlane(Protocol):
    """Runs collectives over lanes that are lent to it, and reduces what came in parcels."""

    offers: Offers
    """Where calls leave their buffers."""
    stall_s: float
    """Whatever makes no progress for this long has failed."""

    def start(
        self, effect: StartAttempt, to_next: Lanes, from_prev: Lanes, ended: Callable[[AttemptEnded], None]
    ) -> None:
        """Begin and return at once. The lanes are the data plane's until it calls `ended`, exactly once and from any
        thread; lanes named in `AttemptEnded.broken` are closed by the shell then. In a ring of two both sequences hold
        the same lanes. Lanes are non-blocking, and the first bytes of the previous peer may be there already."""

    def abort(self, tag: int, attempt: int) -> None:
        """Stop this attempt if it is there; its `ended` still comes."""

    def moved_bytes(self) -> list[int]:
        """What each attempt under way has sent and received so far. May be called by any thread."""

    def check(self, contribution: bytes) -> int:
        """64 bits that tell damaged bytes from whole ones."""

    def contribution(self, spec: CollectiveSpec, buffers: Buffers, draw: int) -> bytes:
        """What this peer brings to an exchange, as it travels: its elements, or their codes. Random rounding begins
        with `draw`, which must be another one for each."""

    def reduce_all(self, spec: CollectiveSpec, contributions: list[bytes], out: Tensor) -> None:
        """Reduce these, by rank, each as `contribution` made it, into a tensor; at once, since they are short."""

    def close(self) -> None:
        """The event loop ends: stop everything; nothing needs to be reported any more."""
