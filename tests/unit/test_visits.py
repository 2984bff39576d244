"""Visitors take no place of a peer, hold none for nothing, and have one visit at a time."""

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Received
from pccl.core.effects.peer_effects import StartTransfer
from pccl.core.effects.peer_events import TransferEnded
from pccl.core.fields import Identity, LinkSpec
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.core.master.master import Master
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.to_master import Fetch, Join, LinkUp, SyncState
from pccl.core.messages.to_peer import Kick, RefusedSync, Serve, StartSync, Welcome, Wire
from pccl.core.peer.links import Links
from pccl.core.peer.outbox import Outbox
from pccl.core.peer.visits import Visits
from pccl.types import PeerId, SharedStateSyncStrategy
from tests.unit.test_broadcast_root import messages, three_accepted

LIMITS = MasterLimits()
VISITOR = 9


def arrive(master, connection=VISITOR, visits=True, now=0.0):
    return master.handle(Received(connection, Join(Identity(f"v{connection}", 0, "h", connection, 0, visits))), now)


def pass_time(master, until, answers=True):
    """Give the master its ticks; what it sent, by kind, with the time."""
    sent = []
    while (deadline := master.next_deadline()) is not None and deadline <= until:
        effects = master.handle(Tick(), deadline)
        sent += [(deadline, kind) for kind in (Kick, Wire) for _ in messages(effects, kind)]
        for connection, _ in messages(effects, Ping):
            if answers:
                master.handle(Received(connection, Pong()), deadline)
    return sent


def kicks(sent):
    return [when for when, kind in sent if kind is Kick]


def fetch(master, now=0.0):
    """Let the visitor ask, and all links that are asked for stand; what was sent to it then."""
    effects = master.handle(Received(VISITOR, Fetch()), now)
    for connection, wire in messages(effects, Wire):
        for link in wire.links:
            effects += master.handle(Received(connection, LinkUp(link.number)), now)
    for connection, _ in messages(effects, Ping):
        master.handle(Received(connection, Pong()), now)
    return [message for kind in (StartSync, RefusedSync) for _, message in messages(effects, kind)]


def synced():
    """A master whose three peers hold the same, and a visitor."""
    master, _ = three_accepted()
    for connection in (1, 2, 3):
        vote = SyncState(1, SharedStateSyncStrategy.ENFORCE_POPULAR, bytes(16), bytes(16))
        master.handle(Received(connection, vote), 0.0)
    arrive(master)
    return master


def test_visitors_take_no_places_of_peers():
    master = Master("run", MasterLimits(peers_max=1))
    for connection in (5, 6, 7):
        assert messages(arrive(master, connection), Welcome)
    assert messages(arrive(master, 8, visits=False), Welcome)
    ((_, kick),) = messages(arrive(master, 9, visits=False), Kick)
    assert "the run is full: 1 peer " in kick.reason


def test_a_visitor_that_asks_for_nothing_is_told_and_has_to_go():
    master = Master("run", LIMITS)
    arrive(master)
    assert kicks(pass_time(master, 100.0)) == [LIMITS.link_timeout_s]
    assert not master.roster.visitors
    assert master.next_deadline() is None


def test_so_is_one_that_stays_after_a_refusal():
    master = Master("run", LIMITS)
    arrive(master)
    (refused,) = fetch(master, 5.0)
    assert isinstance(refused, RefusedSync)
    assert kicks(pass_time(master, 100.0)) == [5.0 + LIMITS.link_timeout_s]


def test_a_transfer_may_take_long_but_not_in_silence():
    master = synced()
    (start,) = fetch(master)
    assert isinstance(start, StartSync)
    assert kicks(pass_time(master, 500.0)) == []
    (when,) = kicks(pass_time(master, 1000.0, answers=False))
    assert LIMITS.silence_s <= when - 500.0 <= 1.5 * LIMITS.silence_s
    assert len(master.roster.accepted) == 3


def test_the_master_excuses_visitors_when_it_stood_still():
    master = Master("run", LIMITS)
    arrive(master)
    assert not messages(master.handle(Tick(), 100.0), Kick)
    fetch(master, 100.5)
    assert len(master.roster.visitors) == 1


def test_the_next_visit_waits_until_the_links_of_the_last_are_gone():
    master = synced()
    assert len(fetch(master, 1.0)) == 1
    assert fetch(master, 2.0) == []
    assert any("v9" in sentence for sentence in master.explain())
    sent = pass_time(master, 1.0 + LIMITS.link_timeout_s)
    assert min(when for when, kind in sent if kind is Wire) == 1.0 + LIMITS.link_timeout_s
    assert master.handle(Received(VISITOR, Fetch()), 12.0)
    assert not master.roster.visitors, "it has said Fetch a third time before the second was answered"


def test_a_holder_serves_a_visitor_once_at_a_time():
    outbox = Outbox()
    effects = outbox.effects
    lanes = Links(PeerId("a"), PeerLimits(), outbox)
    visiting = Visits(lanes, outbox)

    def serve(attempt):
        lanes.wire((LinkSpec(attempt, "v", True, "h", 1, 1),))
        lanes.dialled(attempt, 0, 1)
        lanes.dialled(attempt, 1, 1)
        effects.clear()
        visiting.serve(Serve(attempt, "v", (0,), bytes(16), bytes(16)))
        return [each.attempt for each in effects if isinstance(each, StartTransfer)]

    assert serve(1) == [1]
    assert serve(2) == []
    visiting.ended(TransferEnded(1, ""), None)
    assert serve(3) == [3]
