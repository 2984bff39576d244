"""Calls that can never complete together get an error that names which peers wait in what, instead of waiting for ever.

Owns when that is looked for and which peers receive it; which calls contradict each other is `contradictions`' rule.

Rules: docs/protocol.md, "Contradictions".
"""

from pccl.core.fields import CollectiveSpec
from pccl.core.master.admission import Admission
from pccl.core.master.collectives import Collectives
from pccl.core.master.part import Common, Part
from pccl.core.master.pending import Pending
from pccl.core.master.sync import Syncs
from pccl.core.messages.to_master import SyncState
from pccl.core.messages.to_peer import RefusedPending, RefusedTopology
from pccl.core.rules.ballot import Ballot
from pccl.core.rules.contradictions import OpenCall, contradicting, describe
from pccl.core.text import clip


class Refusals(Part):
    """The watch over open calls of all kinds."""

    def __init__(
        self, common: Common, admission: Admission, pending: Pending, syncs: Syncs, collectives: Collectives
    ) -> None:
        super().__init__(common)
        self._admission = admission
        self._pending = pending
        self._syncs = syncs
        self._collectives = collectives

    def advance(self, now: float) -> bool:
        """Answer calls that can never complete together."""
        topology, pending, syncs = self._admission.ballot, self._pending.ballot, self._syncs.voting()
        if self._admission.trial is not None or not (topology.votes or syncs):
            return False
        voting = self._collectives.voting()
        if not voting and not pending.votes and not (topology.votes and syncs):
            return False
        # Only a collective of a group that has voters in an exclusive ballot can miss one of them.
        exclusive: list[Ballot[None] | Ballot[SyncState]] = [topology, *syncs]
        groups = dict.fromkeys(self._roster.accepted[voter].group for ballot in exclusive for voter in ballot.votes)
        voting = [collective for collective in voting if collective.group in groups]
        ballots: list[Ballot[None] | Ballot[CollectiveSpec] | Ballot[SyncState]] = [
            *exclusive,
            pending,
            *(collective.ballot for collective in voting),
        ]
        calls = [OpenCall(each.question, each in exclusive, each.votes, each.missing()) for each in ballots]
        wrong = contradicting(calls)
        reason = clip(describe(wrong))
        refused = [ballot for ballot, call in zip(ballots, calls, strict=True) if call in wrong]
        if topology in refused:
            self._outbox.send(topology.votes, RefusedTopology(reason))
            topology.clear()
        if pending in refused:
            self._outbox.send(pending.votes, RefusedPending(reason))
            pending.clear()
        for ballot in syncs:
            if ballot in refused:
                self._syncs.refuse_contradicting(ballot, reason, now)
        for collective in voting:
            if collective.ballot in refused:
                self._collectives.refuse_contradicting(collective, reason, now)
        return False
