"""The last collective that each group has committed: how long it took, and for whom it waited.

Knows nothing of how a collective comes to its end.
"""

from msgspec import Struct

from pccl.codec import contribution_bytes
from pccl.core.master.collective import Collective
from pccl.core.status import RoundStatus
from pccl.types import CollectiveKind, PeerId

_SENT = {CollectiveKind.ALL_REDUCE: 2, CollectiveKind.BROADCAST: 1, CollectiveKind.ALL_GATHER: 0}
"""How often a peer sends all but a share of the tensor around a ring; of an all-gather, the shares of the others."""


class Round(Struct, frozen=True):
    """One of them."""

    status: RoundStatus
    at: float

    def told(self, now: float) -> RoundStatus:
        """With its age."""
        fields = {name: getattr(self.status, name) for name in self.status.__struct_fields__}
        return RoundStatus(**{**fields, "ago_s": now - self.at})


def committed(collective: Collective, number: int, now: float) -> Round:
    """The record of one that is committed now."""
    spec, votes, size = collective.spec, collective.ballot.votes, len(collective.ring)
    length = contribution_bytes(spec.codec, spec.count, spec.dtype)
    times = _SENT.get(spec.kind, 1)
    sent = length * (size - 1) if not times or not collective.lanes else times * length * (size - 1) // max(1, size)
    last, moving_s = PeerId(next(reversed(votes), "")), now - collective.since
    return Round(
        RoundStatus(
            group=collective.group,
            number=number,
            kind=spec.kind.name.lower(),
            tag=collective.tag,
            peers=size,
            seconds=now - collective.ballot.since,
            waited_s=max(0.0, collective.since - collective.ballot.since),
            waited_for=last,
            bytes=sent,
            mbps=sent * 8 / 1e6 / moving_s if moving_s > 0 else 0.0,
            ago_s=0.0,
        ),
        now,
    )
