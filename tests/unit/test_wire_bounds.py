"""What one message of a master may make a peer open."""

import pytest

from pccl.core.effects.peer_effects import Dial, PeerEffect, Resolve
from pccl.core.effects.peer_events import Call, FromMaster, MasterUp, WaitAccepted
from pccl.core.fields import Identity, LinkSpec
from pccl.core.limits import PeerLimits
from pccl.core.messages.to_peer import Welcome, Wire
from pccl.core.peer.peer import Peer, PeerStage
from pccl.types import PeerId


def wired(*links: LinkSpec, lanes: int = 0) -> tuple[Peer, list[PeerEffect]]:
    """A candidate whose master asks for these links."""
    peer = Peer(Identity(PeerId("anna"), 0, "", 1, lanes), PeerLimits())
    for event in (MasterUp(), Call(1, WaitAccepted()), FromMaster(Welcome("run"))):
        peer.handle(event, 0.0)
    return peer, peer.handle(FromMaster(Wire(links)), 0.0)


def link(number: int, lanes: int, peer: str = "bert") -> LinkSpec:
    return LinkSpec(number, PeerId(peer), True, "10.0.0.1", 1, lanes)


def test_a_false_master_opens_no_thousands_of_connections() -> None:
    for links in ((link(1, 1024), link(2, 1024)), tuple(link(number, 1) for number in range(1, 4096))):
        peer, effects = wired(*links)
        assert not [each for each in effects if isinstance(each, Dial)]
        assert peer.stage is PeerStage.GONE
        (answer,) = [each.answer for each in effects if isinstance(each, Resolve)]
        assert "lanes_max" in str(answer)


@pytest.mark.parametrize(("lanes", "links"), [(0, 64), (4, 75), (1024, 8)])
def test_what_an_honest_one_asks_for_is_within_the_bound(lanes: int, links: int) -> None:
    peer, effects = wired(*(link(number, lanes or 8) for number in range(1, links + 1)), lanes=lanes)
    assert peer.stage is PeerStage.CANDIDATE
    assert len([each for each in effects if isinstance(each, Dial)]) == links * ((lanes or 8) + 1)


@pytest.mark.parametrize("links", [(link(1, 1), link(1, 1)), (link(1, 1, "anna"),)])
def test_a_link_is_asked_for_once_and_to_others(links: tuple[LinkSpec, ...]) -> None:
    assert wired(*links)[0].stage is PeerStage.GONE
