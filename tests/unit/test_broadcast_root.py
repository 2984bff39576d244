"""A broadcast starts only with its root in the ring, and every peer is told which rank that is."""

import pytest
from msgspec.structs import replace

from pccl.core.effects.master import Received, Send
from pccl.core.effects.peer_events import CallCollective
from pccl.core.fields import CollectiveSpec, Identity
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.messages.to_master import Initiate, Join, Leave, LinkDown, LinkUp, VoteTopology
from pccl.core.messages.to_peer import RefusedCollective, Start, Wire
from pccl.core.peer.collectives import Collectives
from pccl.core.peer.outbox import Outbox
from pccl.core.text import Violation
from pccl.types import CollectiveKind, DataType, PeerId, ReduceOp

CONNECTIONS = {1: "a", 2: "b", 3: "c"}


def messages(effects, kind):
    """(connection, message) of what was sent of this kind."""
    sent = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]
    return [(connection, effect.message) for effect in sent for connection in effect.connections]


def three_joined():
    """A master that has told three peers which links to make, and these, with the connection of each end."""
    master = Master("run", MasterLimits())
    for connection, peer in CONNECTIONS.items():
        master.handle(Received(connection, Join(Identity(peer, 0, "h", connection, 0))), 0.0)
    wires = messages(master.handle(Received(1, VoteTopology()), 0.0), Wire)
    return master, [(connection, link) for connection, wire in wires for link in wire.links]


def three_accepted():
    """A master with a ring of three, and the numbers of its links."""
    master, ends = three_joined()
    for connection, link in ends:
        master.handle(Received(connection, LinkUp(link.number)), 0.0)
    assert len(master.roster.accepted) == 3
    return master, {connection: link.number for connection, link in ends}


def initiate(master, root, connections=CONNECTIONS):
    spec = CollectiveSpec(8, DataType.FLOAT, ReduceOp.SUM, kind=CollectiveKind.BROADCAST, root=root)
    return [
        effect for connection in connections for effect in master.handle(Received(connection, Initiate(0, spec)), 0.0)
    ]


def test_a_root_that_is_a_member_is_fine():
    master, _ = three_accepted()
    assert len(messages(initiate(master, "b"), Start)) == 3


def test_a_root_from_elsewhere_is_refused():
    for root, named in (("stranger", "stranger"), ("", "an empty id")):
        master, _ = three_accepted()
        effects = initiate(master, root)
        assert messages(effects, Start) == []
        refused = messages(effects, RefusedCollective)
        assert len(refused) == 3
        assert f"must be in the group, got {named}; name one of" in refused[0][1].reason
        assert len(messages(initiate(master, "a"), Start)) == 3, "the tag is free again"


def test_a_root_that_is_lost_before_the_start_is_refused():
    master, links = three_accepted()
    master.handle(Received(1, LinkDown(links[1], "cut")), 0.0)  # the ring does not stand: nothing starts
    assert messages(initiate(master, "c"), Start) == []
    refused = messages(master.handle(Received(3, Leave()), 0.0), RefusedCollective)
    assert len(refused) == 2
    assert "got c; name one of a, b" in refused[0][1].reason


class AllLanes:
    """Lends whatever is asked for."""

    def lend(self, peer, lanes, attempt):
        return tuple((0, lane) for lane in lanes)


def started(spec):
    outbox = Outbox()
    effects = outbox.effects
    runs = Collectives(PeerId("b"), AllLanes(), outbox)
    runs.initiate(1, CallCollective(0, spec), (), 0)
    runs.dispatch(Start(0, 9, 4, (0,), 64), 4, (PeerId("c"), PeerId("a"), PeerId("b")))
    return effects[-1]


def test_a_run_is_told_the_rank_of_the_root():
    spec = CollectiveSpec(8, DataType.FLOAT, ReduceOp.SUM)
    assert started(spec).root_rank == 0
    broadcast = replace(spec, kind=CollectiveKind.BROADCAST, root="a")
    assert (started(broadcast).rank, started(broadcast).root_rank) == (2, 1)
    with pytest.raises(Violation, match="without its root"):
        started(replace(broadcast, root="d"))
