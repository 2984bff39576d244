"""A user's surplus of collectives is refused by its own peer: the master, which would kick, never hears of it."""

from pccl.core.effects.peer_effects import Failure, FailureKind, Resolve, SendMaster
from pccl.core.effects.peer_events import Call, CallCollective
from pccl.core.fields import CollectiveSpec
from pccl.core.messages.to_master import Initiate
from pccl.types import DataType, ReduceOp
from tests.unit.test_abandon import accepted_peer

SPEC = CollectiveSpec(1, DataType.FLOAT, ReduceOp.SUM)


def test_one_collective_too_many_is_refused_before_the_vote() -> None:
    peer = accepted_peer(tags_max=2)
    for tag in (0, 1):
        assert SendMaster(Initiate(tag, SPEC)) in peer.handle(Call(tag, CallCollective(tag, SPEC)), 0.0)
    effects = peer.handle(Call(2, CallCollective(2, SPEC)), 0.0)
    [answer] = [effect.answer for effect in effects if isinstance(effect, Resolve)]
    assert isinstance(answer, Failure)
    assert answer.kind is FailureKind.USAGE
    assert "2 collectives are in flight" in answer.reason
    assert not any(isinstance(effect, SendMaster) for effect in effects)
