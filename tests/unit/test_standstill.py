"""A core that stood still itself concludes nothing from the silence it slept through."""

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Received, Send
from pccl.core.effects.peer_effects import CloseMaster, Resolve
from pccl.core.effects.peer_events import Call, FromMaster, MasterUp, WaitAccepted
from pccl.core.fields import Identity
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.core.master.master import Master
from pccl.core.messages.both import Pong
from pccl.core.messages.to_master import AskPending, Join, LinkUp, VoteTopology
from pccl.core.messages.to_peer import Kick, Welcome, Wire
from pccl.core.peer.peer import Peer
from pccl.types import PeerId

LIMITS = MasterLimits(silence_s=10.0)


def two_accepted() -> Master:
    master = Master("run", LIMITS)
    master.handle(Received(1, Join(Identity("a", 0, "h", 1, 1))), 0.0)
    master.handle(Received(2, Join(Identity("b", 0, "h", 2, 1))), 0.0)
    effects = master.handle(Received(1, VoteTopology()), 0.0)
    links = [
        effect.message.links for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Wire)
    ]
    for connection in (1, 2):
        master.handle(Received(connection, LinkUp(links[0][0].number)), 0.0)
    assert len(master.roster.accepted) == 2
    return master


def run_until(master: Master, end: float) -> list[float]:
    """Give the master its ticks on time; when somebody is kicked is returned."""
    kicks = []
    while (deadline := master.next_deadline()) is not None and deadline <= end:
        effects = master.handle(Tick(), deadline)
        kicks += [deadline for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Kick)]
    return kicks


def test_a_silent_peer_that_is_waited_for_is_kicked_after_the_limit() -> None:
    master = two_accepted()
    master.handle(Received(1, AskPending()), 0.0)
    kicks = run_until(master, 60.0)
    assert len(kicks) == 1
    assert 10.0 < kicks[0] <= 10.0 * 1.5


def test_a_master_that_stood_still_kicks_nobody_for_the_time_it_missed() -> None:
    """Whatever comes first afterwards, a late tick or a message of somebody else."""
    for first in (Tick(), Received(1, Pong())):
        master = two_accepted()
        master.handle(Received(1, AskPending()), 0.0)
        effects = master.handle(first, 100.0)
        effects += master.handle(Received(2, Pong()), 100.1)
        assert not [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Kick)]
        assert run_until(master, 109.0) == []


def test_a_peer_that_stood_still_does_not_give_its_master_up() -> None:
    for late in (True, False):
        peer = Peer(Identity(PeerId("a"), 0, "", 1, 0), PeerLimits(master_silence_s=10.0))
        peer.handle(MasterUp(), 0.0)
        peer.handle(FromMaster(Welcome("run")), 0.0)
        peer.handle(Call(1, WaitAccepted()), 0.0)
        effects = []
        if late:
            effects += peer.handle(Tick(), 100.0)
        else:
            while (deadline := peer.next_deadline()) is not None and deadline <= 100.0:
                effects += peer.handle(Tick(), deadline)
        gave_up = any(isinstance(effect, CloseMaster | Resolve) for effect in effects)
        assert gave_up == (not late)
