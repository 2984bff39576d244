"""An exchange starts only if every parcel is sure to come: each way in which one may not, at both sides."""

import pytest

from pccl.core.effects.master import Received
from pccl.core.effects.peer_effects import SendParcel, StartExchange
from pccl.core.effects.peer_events import CallCollective
from pccl.core.fields import CollectiveSpec
from pccl.core.messages.to_master import Initiate, LinkDown, LinkUp
from pccl.core.messages.to_peer import Abort, Start, Wire
from pccl.core.peer.collectives import UNUSED_MAX, Collectives
from pccl.core.peer.outbox import Outbox
from pccl.core.rules.schedule import PARCELS_MAX
from pccl.core.text import Violation
from pccl.types import DataType, PeerId, ReduceOp
from tests.unit.test_broadcast_root import messages, three_accepted

SPEC = CollectiveSpec(8, DataType.FLOAT, ReduceOp.SUM)


def vote(master, connection, parcel):
    return master.handle(Received(connection, Initiate(0, SPEC, parcel)), 0.0)


def start_of(*batches):
    """The one start that all three got."""
    started = [message for effects in batches for _, message in messages(effects, Start)]
    assert len(started) == 3
    assert len(set(started)) == 1
    return started[0]


def cut(master, links, connection=1):
    """A link breaks at this end; what the peers are told to make instead."""
    effects = master.handle(Received(connection, LinkDown(links[connection], "cut")), 0.0)
    return [(end, link.number) for end, wire in messages(effects, Wire) for link in wire.links]


def remake(master, ends):
    return [effect for end, link in ends for effect in master.handle(Received(end, LinkUp(link)), 0.0)]


def test_everybodys_parcel_is_on_its_way():
    master, _ = three_accepted()
    start = start_of(vote(master, 2, 7), vote(master, 1, 5), vote(master, 3, 9))
    assert start.lanes == ()
    assert start.parcels == (5, 7, 9), "in the order of the ring, not of the votes"


def test_one_votes_without():
    master, _ = three_accepted()
    start = start_of(vote(master, 1, 5), vote(master, 2, 0), vote(master, 3, 9))
    assert start.lanes
    assert start.parcels == ()


def test_a_link_that_breaks_between_vote_and_start_may_have_lost_a_parcel():
    master, links = three_accepted()
    vote(master, 1, 5)
    remake(master, cut(master, links))
    assert start_of(vote(master, 2, 7), vote(master, 3, 9)).lanes


def test_a_vote_that_comes_while_a_link_is_remade_sent_its_parcel_over_the_old_one():
    master, links = three_accepted()
    ends = cut(master, links)
    vote(master, 1, 5)
    remake(master, ends)
    assert start_of(vote(master, 2, 7), vote(master, 3, 9)).lanes


def test_a_link_that_breaks_after_the_start_aborts():
    master, links = three_accepted()
    start_of(vote(master, 1, 5), vote(master, 2, 7), vote(master, 3, 9))
    effects = master.handle(Received(1, LinkDown(links[1], "cut")), 0.0)
    assert len(messages(effects, Abort)) == 3


# ── a peer ───────────────────────────────────────────────────────────────────────────────────────────────────────────

RING = (PeerId("a"), PeerId("b"), PeerId("c"))


class Links:
    """Stand, all or none."""

    stand = True

    def express(self, peers):
        return tuple((number, 4) for number, _ in enumerate(peers)) if self.stand else None

    def lend(self, peer, lanes, attempt):
        return tuple((0, lane) for lane in lanes)

    def give_back(self, attempt, broken, cause):
        pass


def a_peer():
    outbox = Outbox()
    effects = outbox.effects
    links = Links()
    return Collectives(PeerId("b"), links, outbox), links, effects


def launch(runs, effects, tag, parcel_bytes=64):
    effects.clear()
    runs.initiate(tag, CallCollective(tag, SPEC), RING, parcel_bytes)
    return [effect for effect in effects if isinstance(effect, SendParcel)]


def test_a_short_contribution_goes_along_and_says_what_is_not_needed_any_more():
    runs, _, effects = a_peer()
    assert launch(runs, effects, 0)[0].oldest == 1
    assert launch(runs, effects, 1)[0].parcel == 2
    assert launch(runs, effects, 2)[0].oldest == 1, "the first is still in flight"
    assert launch(runs, effects, 3, parcel_bytes=31) == [], "too long by a byte"


def test_without_a_link_to_everybody_none_is_sent():
    runs, links, effects = a_peer()
    links.stand = False
    assert launch(runs, effects, 0) == []
    assert effects[-1].message.parcel == 0


def test_an_exchange_is_made_of_the_parcels_that_the_start_names():
    runs, _, effects = a_peer()
    launch(runs, effects, 0)
    runs.dispatch(Start(0, 9, 4, (), 64, (5, 1, 8)), 4, RING)
    (started,) = [effect for effect in effects if isinstance(effect, StartExchange)]
    assert started.parcels == (((0, 4), 5), (None, 1), ((1, 4), 8))


@pytest.mark.parametrize("parcels", [(), (5, 2, 8), (5, 1)])
def test_a_start_with_parcels_that_were_not_sent_is_a_violation(parcels):
    runs, _, effects = a_peer()
    launch(runs, effects, 0)
    with pytest.raises(Violation, match="not sent"):
        runs.dispatch(Start(0, 9, 4, (), 64, parcels), 4, RING)


def test_parcels_in_vain_end_until_links_change():
    runs, _, effects = a_peer()
    for tag in range(UNUSED_MAX):
        assert launch(runs, effects, tag)
        runs.dispatch(Start(tag, 9 + tag, 4, (0,), 64), 4, RING)
    assert launch(runs, effects, 100) == []
    runs.links_changed()
    assert launch(runs, effects, 101)


def test_no_more_are_in_use_than_others_keep():
    runs, _, effects = a_peer()
    assert all(launch(runs, effects, tag) for tag in range(PARCELS_MAX))
    assert launch(runs, effects, PARCELS_MAX) == []
