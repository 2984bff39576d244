"""A rank's place in a run in which nodes hold sharded models: it reduces with the same rank of the other nodes, and
agrees with the ranks of its own node on what came of it.

Owns this agreement. Each collective of a group commits among the same peers on all of them; a rank of a node may be
killed between the commits of its node's groups, and then they differ. All nodes see the same difference, for each sees
the commits of all groups, and so all decide alike. Must not know parameters, rounds or schedules.
"""

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import torch
import xxhash

from pccl import (
    CallMismatch,
    Communicator,
    ErrorFeedback,
    Kicked,
    MasterLost,
    MembershipLost,
    PCCLError,
    PeerId,
    ProtocolError,
    Refused,
    SharedState,
    SharedStateSyncInfo,
    SyncFailed,
    UsageError,
)
from pccl.training.fsdp.node import Node
from pccl.training.group import POLL_S, Flight, Group, Landed, TimeIsOver
from pccl.training.rows import Row, Table, halves

log = logging.getLogger("pccl.training")

Answer = TypeVar("Answer")

KINDS: tuple[type[PCCLError], ...] = (
    TimeIsOver,
    Refused,
    Kicked,
    MasterLost,
    ProtocolError,
    MembershipLost,
    CallMismatch,
    UsageError,
    SyncFailed,
)
"""What a call of one rank may end with, and all of its node then do; the first of these counts."""


class Told(NamedTuple):
    """What a rank tells the others of its node after a call."""

    kind: int = -1
    """Place in `KINDS`, or -1: it has an answer."""
    text: str = ""
    nodes: tuple[int, ...] = ()
    """Those whose peers took part."""
    pending: bool = False
    alone: bool = False
    revision: int = 0
    received: int = 0
    """Bytes."""


class NodeFlight(Flight):
    """A reduction that is under way on this rank, and others of the node's ranks on those."""

    def __init__(self, group: "NodeGroup", fragment: int, delta: torch.Tensor, packed: torch.Tensor) -> None:
        super().__init__(fragment, delta, packed, None)
        self._group, part = group, group.node.own_part(delta)
        self._own = part.clone()
        """What this rank brings, should it have to be reduced again."""
        self._begun = group.launch_part(fragment, part, packed)

    def land(self, me: PeerId) -> Landed:
        """Wait until all ranks of this node have a result of the same nodes."""
        landed = self._group.settled(lambda: self._begun.land(me), self._again)
        self._group.node.join_parts(self.delta)
        return landed

    def _again(self, me: PeerId) -> Landed:
        part = self._begun.delta
        part.copy_(self._own)
        self._group.take_back(self.fragment)
        self._begun = self._group.launch_part(self.fragment, part, self._packed)
        return self._begun.land(me)

    def drop(self) -> None:
        """Wait until its memory is free, whatever comes of it."""
        self._begun.drop()


class LostFlight(Flight):
    """One that could not be launched: all ranks of the node learn of it where they land theirs."""

    def __init__(self, fragment: int, delta: torch.Tensor, packed: torch.Tensor, lost: MembershipLost) -> None:
        super().__init__(fragment, delta, packed, None)
        self._lost = lost

    def land(self, me: PeerId) -> Landed:
        """Raises why."""
        raise self._lost


class NodeGroup(Group):
    """This rank, its counterparts and its node."""

    def __init__(self, place: str | Communicator, codec: str | ErrorFeedback | None, node: Node) -> None:
        if not isinstance(place, str):
            raise UsageError(
                "training: the master's address must be passed for a sharded model, got a Communicator; each rank "
                "makes one of its own, in the group of its place in the mesh"
            )
        super().__init__(place, codec)
        self.node = node
        self._in_step = False
        """This node holds what all have agreed on."""
        self._me = PeerId("")
        self._given_up = False

    @property
    def me(self) -> PeerId:
        """This peer's id; also when its time was over in the middle of a call."""
        return self._me

    # ── agreement ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, own: Told) -> list[Told]:
        """What all ranks of this node have come to. Raises the worst of their errors, on all of them."""
        told = [msgspec.msgpack.decode(each, type=Told) for each in self.node.exchange(msgspec.msgpack.encode(own))]
        if bad := [(each.kind, place, each.text) for place, each in enumerate(told) if each.kind >= 0]:
            kind, place, text = min(bad)
            raise KINDS[kind](text if place == self.node.place else f"rank {place} of this node: {text}")
        return told

    def _attempt(self, call: Callable[[], Answer]) -> tuple[Answer | None, Told]:
        try:
            return call(), Told()
        except KINDS as error:
            told = self._as_it_is(error)
            return None, Told(next(number for number, each in enumerate(KINDS) if isinstance(told, each)), str(told))

    def _as_it_is(self, error: PCCLError) -> PCCLError:
        """Calls end with other errors where the time was over in the middle of them."""
        return TimeIsOver("SIGTERM: the time is over") if self._given_up else error

    def _all(self, call: Callable[[], Answer]) -> Answer:
        """A call that each rank makes: its answer, if all have one."""
        answers: list[Answer] = []
        _, told = self._attempt(lambda: answers.append(call()))
        self._tell(told)
        return answers[0]

    def settled(self, first: Callable[[], Landed], again: Callable[[PeerId], Landed]) -> Landed:
        """The result of a collective of all groups of this node, among nodes that are the same for all of them: where
        groups differ, those that had more make it again without the nodes that the others have lost."""
        landed, told = self._attempt(first)
        tries = 0
        while True:
            nodes = () if landed is None else tuple(sorted(row.party for row in landed.table.rows))
            if landed is not None:
                told = Told(nodes=nodes, pending=landed.pending, alone=landed.alone)
            all_told = self._tell(told)
            assert landed is not None, "an error was raised"
            common = set(nodes).intersection(*(each.nodes for each in all_told))
            if all(set(each.nodes) == common for each in all_told):
                pending, alone = any(each.pending for each in all_told), all(each.alone for each in all_told)
                return landed._replace(table=_in_order(landed.table), pending=pending, alone=alone)
            tries += 1
            if tries > self._tries_max(all_told):
                raise UsageError("training: the groups of this node do not come to the same nodes; report this")
            if set(nodes) != common:
                log.info("a node was lost between two commits of a round: its part is reduced again without it")
                landed, told = self._attempt(partial(again, self.me))

    @staticmethod
    def _tries_max(told: list[Told]) -> int:
        """Each try is one for a node that was lost."""
        return max(len(each.nodes) for each in told) + 1

    def agreed(self, flag: bool) -> bool:
        """Whether it is so on any rank of this node."""
        return any(each != b"\0" for each in self.node.exchange(bytes([flag])))

    def norm_of(self, norm: float) -> float:
        """Of the whole delta: what several ranks hold alike counts once."""
        norms = [float(each) for each in self.node.gather(torch.tensor([norm], dtype=torch.float64))]
        return math.sqrt(sum(each * each for each in norms) / self.node.copies)

    def together(self, row: Row) -> Row:
        """The row of this node, which all its ranks tell: tokens of all, the time of the slowest."""
        rows = [msgspec.msgpack.decode(each, type=Row) for each in self.node.exchange(msgspec.msgpack.encode(row))]
        digest = xxhash.xxh3_128()
        for each in rows:
            digest.update(each.digest_high.to_bytes(8, "big", signed=True))
            digest.update(each.digest_low.to_bytes(8, "big", signed=True))
        high, low = halves(digest.digest())
        return row._replace(
            party=self.node.number,
            tokens=sum(each.tokens for each in rows),
            counts=min(each.counts for each in rows),
            finite=min(each.finite for each in rows),
            synced=min(each.synced for each in rows),
            holds=max(each.holds for each in rows),
            steps=min(each.steps for each in rows),
            digest_high=high,
            digest_low=low,
            loss=sum(each.loss for each in rows) / len(rows),
            computed_s=max(each.computed_s for each in rows),
            waited_s=min(each.waited_s for each in rows),
            reduced_s=max(each.reduced_s for each in rows),
        )

    # ── coming and going ─────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, state: SharedState) -> None:
        """Be admitted together with the other ranks of this node."""
        self.node.begin()
        self._in_step = False
        super().join(state)
        self._me = self.communicator.peer_id
        self.node.watch(self._is_out)
        self._all(lambda: True)

    def give_up(self) -> None:
        """All ranks of this node learn of it at their next exchange."""
        self._given_up = True
        super().give_up()

    def end(self) -> None:
        """What the ranks of this node still do together, such as an export, may take its time."""
        super().end()
        self.node.watch(lambda: False)

    def _is_out(self) -> bool:
        return self._communicator is None or self._communicator.is_out

    def _make(self) -> Communicator:
        assert self._address is not None, "an address"
        party, size = self.node.party, self.node.size
        return Communicator(self._address, self.node.place, sigterm=False, party=party, party_size=size)

    def _prefetch(self, joining: Communicator, state: SharedState) -> None:
        self._all(lambda: super(NodeGroup, self)._prefetch(joining, state))

    # ── what all peers do together ───────────────────────────────────────────────────────────────────────────────────

    def choose(self, state: SharedState, table: Table) -> None:
        """Groups elect each for itself: where nodes begin with different models, all must take the shards of one. So
        all but that one offer nothing."""
        most = max(row.round for row in table.rows)
        digests = [row.digest for row in table.rows if row.round == most]
        chosen = max(digests, key=lambda each: (digests.count(each), each))
        mine = next(row for row in table.rows if row.party == self.node.number)
        if (mine.round, mine.digest) != (most, chosen):
            state.interrupted(True)

    def sync(self, state: SharedState) -> SharedStateSyncInfo:
        """Hold what the group holds, on all ranks of this node or on none."""
        before = state.revision
        info, told = self._attempt(lambda: super(NodeGroup, self).sync(state))
        try:
            received = info.rx_bytes if info is not None else 0
            all_told = self._tell(told._replace(revision=state.revision, received=received))
            if len({each.revision for each in all_told}) > 1:
                raise SyncFailed("the ranks of this node got different revisions: a node was lost between their syncs")
        except SyncFailed:
            if not self._in_step:  # Some of it is other nodes', some is not.
                state.revision = before
                state.interrupted(True)
            raise
        assert info is not None, "an error was raised"
        self._in_step = True
        return info._replace(rx_bytes=sum(each.received for each in all_told))

    def admit(self) -> None:
        """Let candidates in."""
        self._all(lambda: super(NodeGroup, self).admit())

    def launch(self, fragment: int, delta: torch.Tensor, packed: torch.Tensor) -> Flight:
        """Begin to reduce this rank's part of a delta, and with it to gather the rows."""
        return NodeFlight(self, fragment, delta, packed)

    def launch_part(self, fragment: int, part: torch.Tensor, packed: torch.Tensor) -> Flight:
        """Begin to reduce this."""
        try:
            return super().launch(fragment, part, packed)
        except (MembershipLost, UsageError) as error:
            lost = self._as_it_is(error)
            if not isinstance(lost, MembershipLost):
                raise
            return LostFlight(fragment, part, packed, lost)

    def take_back(self, fragment: int) -> None:
        """The last result of it is of nodes that are not the same for all groups."""
        if isinstance(self._codec, ErrorFeedback):
            self._codec.take_back(fragment)

    def roll_call(self, packed: torch.Tensor, least: int) -> Landed:
        """The rows of all nodes, but for those whose settings differ, such as the number of their ranks: these have no
        peer in some groups, which must not be taken for one that was lost."""

        def call() -> Landed:
            return super(NodeGroup, self).roll_call(packed, least)

        return self.settled(call, lambda me: call())

    def awaited_s(self) -> float:
        """How long others have waited for a rank of this node."""
        own = torch.tensor([super().awaited_s()], dtype=torch.float64)
        return max(float(each) for each in self.node.gather(own))

    def candidates_wait(self) -> bool:
        """Asked by a node alone. All its ranks ask, for all accepted peers do."""
        if not self.agreed(time.monotonic() - self._asked_at >= POLL_S):
            return False
        self._asked_at = -math.inf
        waits = self._all(super().candidates_wait)
        return self.agreed(waits)

    def await_candidates(self, here: int, wanted: int) -> None:
        """Until a candidate waits."""
        self._all(lambda: super(NodeGroup, self).await_candidates(here, wanted))


def _in_order(table: Table) -> Table:
    """By node, so that sums over a table are the same on all ranks of a node."""
    order = sorted(range(len(table.peers)), key=lambda place: table.rows[place].party)
    peers, rows = tuple(table.peers[place] for place in order), tuple(table.rows[place] for place in order)
    return Table(peers, rows, tuple(table.extras[place] for place in order))
