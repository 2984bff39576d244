"""The last collective that each group has committed: how long it took, and for whom it waited.

Knows nothing of how a collective comes to its end.
"""

from msgspec import Struct

from pccl.codec import contribution_bytes
from pccl.core.fields import CollectiveSpec
from pccl.core.master.collective import Collective
from pccl.core.status import RoundStatus
from pccl.types import CollectiveKind, PeerId

_SENT = {CollectiveKind.ALL_REDUCE: 2, CollectiveKind.BROADCAST: 1, CollectiveKind.ALL_GATHER: 0}
"""How often a peer sends all but a share of the tensor around a ring; of an all-gather, the shares of the others."""


class Round(Struct, frozen=True):
    """One of them. Few are ever asked for, and all are on the way of an outcome: the rest is computed when asked."""

    group: int
    number: int
    tag: int
    spec: CollectiveSpec
    peers: int
    by_ring: bool
    last: PeerId
    called_at: float
    started_at: float
    committed_at: float

    def told(self, now: float) -> RoundStatus:
        """As the status has it."""
        sent, moving_s = self._sent_bytes(), self.committed_at - self.started_at
        return RoundStatus(
            group=self.group,
            number=self.number,
            kind=self.spec.kind.name.lower(),
            tag=self.tag,
            peers=self.peers,
            seconds=self.committed_at - self.called_at,
            waited_s=max(0.0, self.started_at - self.called_at),
            waited_for=self.last,
            bytes=sent,
            mbps=sent * 8 / 1e6 / moving_s if moving_s > 0 else 0.0,
            ago_s=now - self.committed_at,
        )

    def _sent_bytes(self) -> int:
        length = contribution_bytes(self.spec.codec, self.spec.count, self.spec.dtype)
        times, others = _SENT.get(self.spec.kind, 1), self.peers - 1
        return times * length * others // max(1, self.peers) if times and self.by_ring else length * others


def committed(collective: Collective, number: int, now: float) -> Round:
    """The record of one that is committed now."""
    return Round(
        collective.group,
        number,
        collective.tag,
        collective.spec,
        len(collective.ring),
        bool(collective.lanes),
        PeerId(next(reversed(collective.ballot.votes), "")),
        collective.ballot.since,
        collective.since,
        now,
    )
