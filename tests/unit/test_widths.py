"""Links with more lanes than their group began with: what they carried, what becomes of one that breaks or cannot be
made, and that the next master goes on with them."""

from collections.abc import Iterable

import pytest

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Received, Send
from pccl.core.fields import CollectiveSpec, Flow, Identity, LinkSpec
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.report import LinkReport, ReportPart
from pccl.core.messages.to_master import Done, Failed, Initiate, Join, LinkDown, LinkUp, ToMaster, VoteTopology
from pccl.core.messages.to_peer import Abort, Kick, Outcome, Start, ToPeer, Wire
from pccl.core.rules.lanes import FACTOR, LOOKS
from pccl.types import DataType, PeerId, ReduceOp
from tests.unit.scripted_master import Stage, resume

PEERS = {1: PeerId("anna"), 2: PeerId("bert"), 3: PeerId("carl")}
LEAST, MOST = 4, 64
WIDE = LEAST * FACTOR
LARGE = CollectiveSpec(1 << 26, DataType.FLOAT, ReduceOp.SUM)
ROUND_TRIP_US = 80_000
RUN_S = 10.0
PRESSED = Flow(256 << 20, 1 << 20, 40_000, 40_000, 0, ROUND_TRIP_US, ROUND_TRIP_US)
EXHAUSTED = "[Errno 24] Too many open files"


class Group:
    """Three members and their master, which says the least."""

    def __init__(self, master: Master, now: float = 0.0) -> None:
        self.master, self.now = master, now
        self.links: dict[int, dict[int, LinkSpec]] = {connection: {} for connection in PEERS}
        self.up: set[tuple[int, int]] = set()
        self.told: list[tuple[int, ToPeer]] = []

    def send(self, connection: int, message: ToMaster) -> None:
        self.note(self.master.handle(Received(connection, message), self.now))

    def note(self, effects: Iterable[object]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                for connection in effect.connections:
                    self.told.append((connection, effect.message))  # type: ignore[arg-type]
                    if isinstance(effect.message, Wire):
                        self.links[connection] = {link.number: link for link in effect.message.links}

    def take(self, kind: type) -> list[tuple[int, ToPeer]]:
        """What was told of this kind since the last look."""
        found = [(connection, message) for connection, message in self.told if isinstance(message, kind)]
        self.told = [(connection, message) for connection, message in self.told if not isinstance(message, kind)]
        return found

    def stand(self, *but: int) -> None:
        """Every link is made, unless its number is one of these."""
        for connection, links in list(self.links.items()):
            for number in links:
                if number not in but and (connection, number) not in self.up:
                    self.up.add((connection, number))
                    self.send(connection, LinkUp(number, ROUND_TRIP_US))

    def vote(self, tag: int = 0, parcels: dict[int, int] | None = None) -> None:
        for connection in PEERS if parcels is None else parcels:
            self.send(connection, Initiate(tag, LARGE, 0 if parcels is None else parcels[connection]))

    def start(self) -> Start:
        """The one that all three were told since the last look."""
        told = [message for _, message in self.take(Start)]
        assert len(told) == len(PEERS)
        assert len(set(told)) == 1
        assert isinstance(told[0], Start)
        return told[0]

    def finish(self, start: Start, seconds: float = RUN_S, flow: Flow = PRESSED) -> None:
        self.now += seconds
        for connection in PEERS:
            self.send(connection, Done(start.tag, start.attempt, b"", flow))

    def run(self, seconds: float = RUN_S, flow: Flow = PRESSED) -> Start:
        self.vote()
        start = self.start()
        self.finish(start, seconds, flow)
        return start

    def wait(self, seconds: float) -> None:
        """All answer pings meanwhile."""
        end = self.now + seconds
        while (due := self.master.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.note(self.master.handle(Tick(), self.now))
            for connection, _ in self.take(Ping):
                self.send(connection, Pong())
        self.now = end

    def lanes(self) -> set[int]:
        """Of all links that the members were told of last."""
        return {link.lanes for links in self.links.values() for link in links.values()}

    def a_link(self) -> int:
        """One of which the first member knows."""
        return next(iter(self.links[1]))

    def blameless(self) -> bool:
        return not self.take(Kick) and all(not link.failures for link in self.master.links.all())


def three(lanes: int = 0) -> Group:
    group = Group(Master("run", MasterLimits(default_lanes=LEAST)))
    for connection, peer in PEERS.items():
        group.send(connection, Join(Identity(peer, 0, "h", connection, lanes, lanes_max=MOST)))
    group.send(1, VoteTopology())
    group.stand()
    assert len(group.master.roster.accepted) == len(PEERS)
    group.told.clear()
    return group


@pytest.fixture
def wide() -> Group:
    """Three whose links have come to have more lanes."""
    group = three()
    assert group.run().lanes == (0, 1, 2, 3)
    group.stand()
    assert group.lanes() == {WIDE}
    group.told.clear()
    return group


def test_a_number_that_was_asked_for_stays() -> None:
    group = three(LEAST)
    for _ in range(3):
        assert group.run().lanes == (0, 1, 2, 3)
    assert group.lanes() == {LEAST}


# ── what is on its way ───────────────────────────────────────────────────────────────────────────────────────────────


def test_parcels_of_votes_before_the_links_were_made_again_are_lost() -> None:
    group = three()
    group.vote(0)
    start = group.start()
    group.vote(1, {1: 11, 2: 12})
    group.finish(start)
    group.stand()
    assert group.lanes() == {WIDE}
    group.vote(1, {3: 13})
    again = group.start()
    assert (again.tag, again.lanes, again.parcels) == (1, tuple(range(WIDE)), ())


def test_parcels_of_votes_while_they_are_made_again_are_lost() -> None:
    group = three()
    group.run()
    group.vote(1, {1: 11, 2: 12, 3: 13})
    assert group.take(Start) == [], "the ring does not stand"
    group.stand()
    assert group.start().lanes == tuple(range(WIDE))


def test_parcels_of_votes_thereafter_arrive(wide: Group) -> None:
    wide.vote(1, {1: 11, 2: 12, 3: 13})
    start = wide.start()
    assert (start.lanes, sorted(start.parcels)) == ((), [11, 12, 13])


def test_a_link_that_breaks_under_a_collective_with_many_lanes_is_made_again_with_as_many(wide: Group) -> None:
    wide.vote(0)
    start = wide.start()
    assert start.lanes == tuple(range(WIDE))
    wide.vote(1, {1: 11})
    broken = wide.a_link()
    wide.send(1, LinkDown(broken, "reset"))
    assert len(wide.take(Abort)) == len(PEERS)
    for connection in PEERS:
        wide.send(connection, Failed(start.tag, start.attempt, "aborted"))
    wide.vote(1, {2: 12})
    wide.stand()
    outcomes = [message for _, message in wide.take(Outcome)]
    assert [isinstance(each, Outcome) and each.committed for each in outcomes] == [False] * 3
    assert broken not in wide.links[1]
    assert wide.lanes() == {WIDE}, "it had served: its lanes are not too many"
    assert wide.blameless()
    wide.vote(1, {3: 13})
    again = wide.start()
    assert (again.lanes, again.parcels) == (tuple(range(WIDE)), ()), "what the broken link carried is lost"
    wide.finish(again)
    assert wide.run().lanes[:WIDE] == tuple(range(WIDE))


def test_what_was_aborted_is_not_measured(wide: Group) -> None:
    """All but one had their part done when it broke."""
    wide.vote()
    start = wide.start()
    wide.now += RUN_S / 2
    for connection in (2, 3):
        wide.send(connection, Done(start.tag, start.attempt, b"", PRESSED))
    wide.send(1, Failed(start.tag, start.attempt, "a lane broke"))
    wide.send(1, Ping())
    wide.stand()
    assert wide.lanes() == {WIDE}, "they seemed twice as fast"


# ── links that cannot be made ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stands", [True, False])
def test_descriptors_run_out_and_links_have_fewer_lanes(stands: bool) -> None:
    """While others vote already, and whether or not the other links could be made."""
    group = three()
    group.run()
    assert group.lanes() == {WIDE}
    failed = group.a_link()
    if stands:
        group.stand(failed)
    group.vote(1)
    group.send(1, LinkDown(failed, EXHAUSTED))
    group.stand()
    group.stand()
    assert group.lanes() == {LEAST}
    assert group.blameless()
    assert not group.take(Abort)
    start = group.start()
    assert (start.tag, start.lanes) == (1, tuple(range(LEAST)))
    group.finish(start)
    for _ in range(LOOKS):
        assert group.run().lanes == tuple(range(LEAST)), "it is not tried again at once"


def test_both_ends_of_all_links_run_out() -> None:
    group = three()
    group.run()
    for connection, links in group.links.copy().items():
        for number in links:
            group.send(connection, LinkDown(number, EXHAUSTED))
    assert group.blameless()
    group.stand()
    group.stand()
    assert group.lanes() == {LEAST}
    assert group.run().lanes == tuple(range(LEAST))


def test_a_link_of_many_that_never_stands_has_fewer_lanes() -> None:
    """The other end accepts nothing any more, which the one that dials cannot tell from a long way."""
    group = three()
    group.run()
    late = group.a_link()
    group.stand(late)
    group.wait(group.master.limits.link_timeout_s)
    group.stand()
    group.stand()
    assert late not in group.links[1]
    assert group.lanes() == {LEAST}
    assert group.blameless()
    assert group.run().lanes == tuple(range(LEAST))


def test_fewer_that_cannot_be_made_either_are_a_mark_against_their_ends() -> None:
    """Too many lanes are an excuse once."""
    group = three()
    group.run()
    for _ in range(2):
        group.send(1, LinkDown(group.a_link(), EXHAUSTED))
    assert any(link.failures for link in group.master.links.all())


# ── the next master ──────────────────────────────────────────────────────────────────────────────────────────────────

NEXT = {place: peer for place, peer in enumerate(PEERS.values())}


class After(Group):
    """The same three, back at a master that knows nothing but what they report; `lanes` of each link, by its ends."""

    def __init__(self, lanes: dict[frozenset[str], int], asked: int = 0) -> None:
        ring = tuple(PEERS.values())
        stage = Stage(MasterLimits(default_lanes=LEAST, reunion_s=5.0, silence_s=60.0))
        for connection, peer in PEERS.items():
            others = [other for other in ring if other != peer]
            links = tuple(
                LinkReport(number, other, peer < other, lanes[frozenset((peer, other))], ROUND_TRIP_US)
                for other in others
                for number in [2 + ring.index(peer) + ring.index(other)]
            )
            first = resume(peer, global_size=3, lanes=asked, lanes_max=MOST, secret=f"of {peer}")
            stage.send(connection, first, ReportPart(ring=ring, links=links), ReportPart(last=True))
        super().__init__(stage.master, stage.now)
        self.said = stage.told
        for connection, messages in stage.told.items():
            self.told += [(connection, message) for message in messages]
            for message in messages:
                if isinstance(message, Wire):
                    self.links[connection] = {link.number: link for link in message.links}
        assert len(self.master.roster.accepted) == 3


def all_links(lanes: int) -> dict[frozenset[str], int]:
    return {frozenset(pair): lanes for pair in (("anna", "bert"), ("bert", "carl"), ("anna", "carl"))}


def test_the_number_survives_the_master() -> None:
    group = After(all_links(WIDE))
    assert {number for links in group.links.values() for number in links} == {3, 4, 5}, "none is made again"
    assert group.run().lanes == tuple(range(WIDE))


def test_and_it_goes_on_from_there() -> None:
    """More where losses press, and the least is still what the run began with."""
    group = After(all_links(WIDE))
    group.run()
    group.stand()
    assert group.lanes() == {min(MOST, WIDE * FACTOR)}
    for _ in range(LOOKS):  # as fast as before
        group.run()
        group.stand()
    assert group.run().lanes == tuple(range(WIDE))
    group.send(1, LinkDown(group.a_link(), "reset"))
    group.stand()
    assert group.lanes() == {WIDE}, "a link that is made anew has as many"


def test_links_that_the_master_left_half_made_become_alike() -> None:
    """It died while they were made again."""
    half = all_links(WIDE) | {frozenset(("anna", "bert")): LEAST}
    group = After(half)
    group.stand()
    assert group.lanes() == {WIDE}
    assert group.run().lanes == tuple(range(WIDE))


def test_a_number_that_was_asked_for_survives_as_such() -> None:
    group = After(all_links(WIDE), asked=WIDE)
    for _ in range(3):
        assert group.run().lanes == tuple(range(WIDE))
    assert group.lanes() == {WIDE}


def test_links_of_many_that_break_at_once_under_the_next_master_have_fewer() -> None:
    """Its trainer had opened files meanwhile."""
    group = After(all_links(WIDE))
    group.run(flow=Flow())
    for _ in range(2):
        group.send(1, LinkDown(next(reversed(group.links[1])), EXHAUSTED))
    group.stand()
    group.stand()
    assert group.lanes() == {LEAST}
    assert group.blameless()
