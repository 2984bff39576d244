"""A link that rests: no peer can report on it, and a ring around it is looked for once; one that breaks as soon as it
stands."""

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Received
from pccl.core.master import admission
from pccl.core.master.link import LinkStage
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import LinkDown, LinkUp
from tests.unit.test_broadcast_root import initiate, three_accepted


def rest(master):
    """Let a link that stood fail from both ends; the link, and the connections of these."""
    link = next(iter(master.links._links.values()))
    master.handle(Received(1, LinkDown(link.number, "cut")), 1.0)  # it stood: it is dialled anew
    ends = [member.connection for member in master.roster.accepted.values() if member.peer in link.ends]
    for _ in range(2):
        master.handle(Received(ends[0], LinkDown(link.number, "refused")), 1.0)
    assert link.stage is LinkStage.RESTING
    return link, ends


def test_a_way_around_a_pair_is_looked_for_once(monkeypatch):
    """There is none in a ring of three; whatever happens elsewhere meanwhile does not change that."""
    asked, arrange = [], admission.arrange
    monkeypatch.setattr(admission, "arrange", lambda *given: asked.append(given) or arrange(*given))
    master, _ = three_accepted()
    _, ends = rest(master)
    asked.clear()
    for connection in ends * 3:  # until neither owes an answer
        master.handle(Received(connection, Pong()), 1.1)
    for _ in range(5):
        master.handle(Received(3, Ping()), 1.2)
    assert len(asked) == 1


def test_a_guessed_number_does_not_touch_a_resting_link():
    master, _ = three_accepted()
    link, _ = rest(master)
    assert link.number == 0
    for number in range(40):
        master.handle(Received(1, LinkDown(number, "a guess")), 1.0)
    assert len(master.roster.accepted) == 3


def test_members_that_reach_each_other_after_all_are_kept_apart_no_more():
    """Theirs may be the only way around another pair, and a candidate lost its place for want of it."""
    master, _ = three_accepted()
    link = next(iter(master.links._links.values()))
    master.handle(Received(1, LinkDown(link.number, "cut")), 1.0)
    master.links.avoid(link.ends, 1.0)
    for member in [member for member in master.roster.accepted.values() if member.peer in link.ends]:
        assert master.links.avoided
        master.handle(Received(member.connection, LinkUp(link.number)), 2.0)
    assert link.stage is LinkStage.STANDING
    assert not master.links.avoided


def test_an_end_that_denies_its_links_each_time_they_stand_goes():
    """The liar waits until both ends have reported them up; the others cannot work meanwhile."""
    master, _ = three_accepted()
    liar = next(iter(master.roster.accepted.values()))
    now = 10.0
    while liar.peer in master.roster.accepted:
        now += 0.01
        assert now < 10.0 + 2 * master.limits.silence_s, "it is never put out"
        master.handle(Tick(), now)
        for member in list(master.roster.accepted.values()):
            master.handle(Received(member.connection, Pong()), now)
        for link in list(master.links.all()):
            for member in [each for each in master.roster.accepted.values() if each.peer in link.ends]:
                master.handle(Received(member.connection, LinkUp(link.number)), now)
            if liar.peer in link.ends and link.stage is LinkStage.STANDING:
                master.handle(Received(liar.connection, LinkDown(link.number, "no")), now)
    assert len(master.roster.accepted) == 2


def test_a_link_that_breaks_with_a_collective_is_no_mark_against_its_ends():
    """However soon after it stood: lanes of an aborted collective are closed."""
    for used in (False, True):
        master, _ = three_accepted()
        if used:
            initiate(master, "b")
        link = next(iter(master.links.all()))
        ends = [member.connection for member in master.roster.accepted.values() if member.peer in link.ends]
        master.handle(Received(ends[0], LinkDown(link.number, "aborted")), 0.1)
        assert link.failures == (0 if used else 1)
