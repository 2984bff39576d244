"""A call that was interrupted (Ctrl-C) leaves its vote standing, and the next call of its kind takes it over."""

from pccl.core.effects import Abandon, Call, FromMaster, MasterUp, PeerEffect, Resolve, SendMaster, UpdateTopology
from pccl.core.limits import PeerLimits
from pccl.core.messages import Topology, TopologyUpdated, VoteTopology, Welcome
from pccl.core.peer import Peer, PeerIdentity
from pccl.types import PeerId


def accepted_peer(tags_max: int = 4096) -> Peer:
    peer = Peer(PeerIdentity(PeerId("a"), 0, "", 1, 0), PeerLimits())
    peer.handle(MasterUp(), 0.0)
    peer.handle(FromMaster(Welcome("run", tags_max)), 0.0)
    peer.handle(FromMaster(Topology(1, ("a", "b"), 2, 1, 2)), 0.0)
    return peer


def resolved(effects: list[PeerEffect]) -> list[int]:
    return [effect.call for effect in effects if isinstance(effect, Resolve)]


def test_an_interrupted_vote_is_cast_once_and_answers_the_next_caller() -> None:
    peer = accepted_peer()
    assert SendMaster(VoteTopology()) in peer.handle(Call(1, UpdateTopology()), 1.0)
    assert resolved(peer.handle(Abandon(1), 2.0)) == [1]
    assert SendMaster(VoteTopology()) not in peer.handle(Call(2, UpdateTopology()), 3.0)
    assert resolved(peer.handle(FromMaster(TopologyUpdated()), 4.0)) == [2]


def test_an_answer_that_nobody_waits_for_any_more_is_no_breach() -> None:
    peer = accepted_peer()
    peer.handle(Call(1, UpdateTopology()), 1.0)
    peer.handle(Abandon(1), 2.0)
    assert resolved(peer.handle(FromMaster(TopologyUpdated()), 3.0)) == []
    assert peer.accepted
    assert SendMaster(VoteTopology()) in peer.handle(Call(2, UpdateTopology()), 4.0)


def test_two_threads_in_the_same_call_are_told_so() -> None:
    peer = accepted_peer()
    peer.handle(Call(1, UpdateTopology()), 1.0)
    effects = peer.handle(Call(2, UpdateTopology()), 2.0)
    assert resolved(effects) == [2]
    assert SendMaster(VoteTopology()) not in effects
