"""A peer that was kicked is alone as far as it knows, so that loops over the number of peers end."""

from pccl.core.effects.peer_events import FromMaster
from pccl.core.fields import KickKind
from pccl.core.messages.to_peer import Kick
from tests.unit.test_abandon import accepted_peer


def test_whoever_is_kicked_has_a_group_of_one() -> None:
    peer = accepted_peer()
    assert peer.sizes.group_size > 1
    peer.handle(FromMaster(Kick(KickKind.SILENT, "it was silent")), 0.0)
    assert (peer.sizes.global_size, peer.sizes.group_size) == (1, 1)
    assert peer.ring == (peer.identity.peer,), "sizes and ring tell the same"
