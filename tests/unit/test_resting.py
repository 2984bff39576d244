"""A link that rests has no number, so nobody can report on it, whatever they guess."""

from pccl.core.effects import Received
from pccl.core.messages import LinkDown
from pccl.core.wiring import LinkStage
from tests.unit.test_broadcast_root import three_accepted


def test_a_guessed_number_does_not_touch_a_resting_link():
    master, _ = three_accepted()
    link = next(iter(master.wiring._links.values()))
    master.handle(Received(1, LinkDown(link.number, "cut")), 0.0)  # it stood: it is dialled anew
    for _ in range(2):
        ends = [member.connection for member in master.roster.accepted.values() if member.peer in link.ends]
        master.handle(Received(ends[0], LinkDown(link.number, "refused")), 0.0)
    assert link.stage is LinkStage.RESTING
    assert link.number == 0
    for number in range(40):
        master.handle(Received(1, LinkDown(number, "a guess")), 0.0)
    assert len(master.roster.accepted) == 3
