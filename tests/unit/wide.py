"""Three peers and their master, of which the first all-reduces lose so much that their links get more lanes."""

from collections.abc import Iterable

from pccl.core.effects.both import Tick
from pccl.core.effects.master import Received, Send
from pccl.core.fields import CollectiveSpec, Flow, Identity, LinkSpec
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.messages.both import Ping, Pong
from pccl.core.messages.observers import AskStatus
from pccl.core.messages.report import LinkReport, ReportPart
from pccl.core.messages.to_master import Done, Initiate, Join, LinkUp, ToMaster, VoteTopology
from pccl.core.messages.to_peer import Kick, Start, ToPeer, Wire
from pccl.core.rules.lanes import FACTOR
from pccl.core.status import Status
from pccl.types import DataType, PeerId, ReduceOp
from pccl.wire.codec import decode_to_observer, encode
from tests.unit.scripted_master import Stage, resume

OBSERVER = 99
PEERS = {1: PeerId("anna"), 2: PeerId("bert"), 3: PeerId("carl")}
LEAST, MOST = 4, 64
WIDE = LEAST * FACTOR
LARGE = CollectiveSpec(1 << 26, DataType.FLOAT, ReduceOp.SUM)
ROUND_TRIP_US = 40_000
RUN_S = 10.0
PRESSED = Flow(64 << 20, 1 << 16, 40_000, 40_000, 0, ROUND_TRIP_US, ROUND_TRIP_US)
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

    def status(self) -> Status:
        """What an observer is told."""
        asked = self.master.handle(Received(OBSERVER, AskStatus(), unix_s=1e9), self.now)
        (told,) = [effect.message for effect in asked if isinstance(effect, Send)]
        assert isinstance(told, Status)
        return decode_to_observer(encode(told))

    def lanes_told(self) -> list[tuple[int, int, str]]:
        """Of lanes, in it."""
        return [(each.group, each.lanes, each.reason) for each in self.status().lanes]

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
