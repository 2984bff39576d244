"""A peer's ends of its links: which lanes stand, which are lent to an attempt, which are still being made.

The master's `Wire` is the truth about which links there shall be; this module dials, accepts and closes until that is
so, and reports each link up or down once. A lane has one owner at a time: it is idle here or lent to one attempt.
A lane whose link goes away while it is lent is closed when it is given back, never under the data plane's hands.
(protocol.md, Links)
"""

from collections.abc import Iterable

from msgspec import Struct

from pccl.core.effects.peer_effects import AcceptLane, CarryParcels, CloseLane, CutLane, Dial, ExpectLanes, RefuseLane
from pccl.core.effects.peer_events import LaneClosed, LaneDialled, LaneEvent, LaneOffered
from pccl.core.fields import LinkSpec
from pccl.core.limits import PeerLimits
from pccl.core.messages.lanes import LaneHello
from pccl.core.messages.report import LinkReport
from pccl.core.messages.to_master import LinkDown, LinkUp
from pccl.core.peer.outbox import Outbox
from pccl.core.text import Violation, clip
from pccl.types import PeerId, short

LaneId = tuple[int, int]
"""(link, lane): the same at both ends."""


ASKED_LINKS_MAX = 8
"""So many links of as many lanes as this peer asks for are always allowed: two neighbours, and a few holders."""


class LinkEnd:
    """Our end of one link."""

    def __init__(self, spec: LinkSpec) -> None:
        self.spec = spec
        self.standing: dict[int, int] = {}
        """The lanes that stand, and how long a packet takes there and back on each, 0 if unknown."""

    @property
    def numbers(self) -> range:
        """The numbers of its lanes; the last one is the express lane."""
        return range(self.spec.lanes + 1)

    @property
    def express(self) -> LaneId:
        """The lane for parcels."""
        return self.spec.number, self.spec.lanes

    @property
    def complete(self) -> bool:
        """Every lane stands."""
        return len(self.standing) == len(self.numbers)


class EarlyOffer(Struct, frozen=True):
    """An offer for a link of which we have received nothing yet."""

    hello: LaneHello
    until: float


class Links:
    """All our ends."""

    def __init__(self, me: PeerId, limits: PeerLimits, outbox: Outbox) -> None:
        self.asked = 0
        """Lanes per neighbour that we ask for; 0 if that is up to the group."""
        self.run = ""
        """The run that we are part of; lanes of other runs are refused."""
        self._me = me
        self._limits = limits
        self._outbox = outbox
        self._ends: dict[int, LinkEnd] = {}
        self._lent: dict[LaneId, int] = {}
        """Lent lanes and the attempt that has them."""
        self._lent_towards: dict[LaneId, PeerId] = {}
        """The peer at the other end of each of them; their link may be forgotten before they come back."""
        self._early: dict[int, EarlyOffer] = {}
        self.newest = 0
        """The highest link number we were told of; a higher one in an offer is news that has not reached us yet."""

    # ── what the master wants ────────────────────────────────────────────────────────────────────────────────────────

    def wire(self, specs: tuple[LinkSpec, ...]) -> None:
        """Make what is missing, close what is not listed."""
        wanted = [spec.number for spec in specs]
        lanes = sum(spec.lanes + 1 for spec in specs)
        if lanes > max(self._limits.lanes_max, ASKED_LINKS_MAX * (self.asked + 1)):
            raise Violation(f"it asks for {lanes} lanes, more than lanes_max ({self._limits.lanes_max}) allows")
        if len({spec.number for spec in specs}) < len(specs) or any(spec.peer == self._me for spec in specs):
            raise Violation("it asks for a link twice, or for one to ourselves")
        for number in [number for number in self._ends if number not in wanted]:
            self._discard(number)
        for spec in [spec for spec in specs if spec.number > self.newest]:
            self._ends[spec.number] = LinkEnd(spec)
            if spec.dial:
                self._dial(self._ends[spec.number])
            elif spec.key:
                self._outbox.add(ExpectLanes(spec.number, spec.key))
        # A listed link that we neither have nor find new is one that broke here: our report crossed this message.
        self.newest = max([self.newest, *wanted])
        early, self._early = self._early, {}
        for offer, each in early.items():
            self._consider(offer, each)

    def _dial(self, end: LinkEnd) -> None:
        spec = end.spec
        for lane in end.numbers:
            hello = LaneHello(self.run, self._me, spec.peer, spec.number, lane)
            place = (spec.host, spec.port, self._limits.dial_timeout_s)
            self._outbox.add(Dial(hello, *place, spec.pin, spec.key))

    def _discard(self, number: int) -> None:
        end = self._ends.pop(number)
        if end.spec.key and not end.spec.dial:
            self._outbox.add(ExpectLanes(number, b""))
        for lane in end.numbers:
            if (number, lane) not in self._lent:
                self._outbox.add(CloseLane(number, lane))

    def close_all(self) -> None:
        """We are out of the run."""
        for number in list(self._ends):
            self._discard(number)
        for offer in self._early:
            self._outbox.add(RefuseLane(offer, f"{short(self._me)} has left the run"))
        self._early = {}

    def forget_run(self) -> None:
        """A candidate has lost its master: the next one counts links from one again."""
        self.close_all()
        self.run, self.newest = "", 0

    # ── what happens to lanes ────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: LaneEvent, now: float) -> None:
        """Something happened to one."""
        match event:
            case LaneOffered(offer=offer, hello=hello):
                self._consider(offer, EarlyOffer(hello, now + self._limits.early_offer_s))
            case LaneDialled(link=link, lane=lane, round_trip_us=round_trip_us):
                self.dialled(link, lane, round_trip_us)
            case LaneClosed(link=link, cause=cause):
                self.broke(link, cause)

    def _consider(self, offer: int, early: EarlyOffer) -> None:
        """Another peer dialled us: accept what we expect, keep what may be early, refuse the rest."""
        hello = early.hello
        end = self._ends.get(hello.link)
        reason = self._objection(hello, end)
        if end is None and not reason:
            self._keep(offer, early)
        elif end is None or reason:
            self._outbox.add(RefuseLane(offer, reason))
        else:
            self._outbox.add(AcceptLane(offer, hello.link, hello.lane))
            self._stand(end, hello.lane, 0)

    def _keep(self, offer: int, early: EarlyOffer) -> None:
        if len(self._early) >= self._limits.early_offers_max:
            oldest = next(iter(self._early))
            del self._early[oldest]
            self._outbox.add(RefuseLane(oldest, f"too many lanes are offered to {short(self._me)} too early"))
        self._early[offer] = early

    def _objection(self, hello: LaneHello, end: LinkEnd | None) -> str:
        """Why this lane is not wanted; empty if it is, or if we may not have been told of its link yet."""
        if hello.receiver != self._me:
            return f"this is {short(self._me)}, not {short(hello.receiver)}"
        if end is None and hello.link > self.newest:
            return ""
        if self.run and hello.run != self.run:
            return f"{short(self._me)} takes part in another run"
        if end is None:
            return f"{short(self._me)} knows no link {hello.link} any more"
        if (
            end.spec.dial
            or end.spec.peer != hello.sender
            or hello.lane not in end.numbers
            or hello.lane in end.standing
        ):
            return f"link {hello.link} has no room for lane {hello.lane} of {short(hello.sender)}"
        return ""

    def dialled(self, link: int, lane: int, round_trip_us: int) -> None:
        """A lane that we dialled stands; it is closed if its link is gone."""
        end = self._ends.get(link)
        if end is None:
            self._outbox.add(CloseLane(link, lane))
        else:
            self._stand(end, lane, round_trip_us)

    def _stand(self, end: LinkEnd, lane: int, round_trip_us: int) -> None:
        end.standing[lane] = round_trip_us
        if (end.spec.number, lane) == end.express:
            self._outbox.add(CarryParcels(*end.express))
        if end.complete:
            self._outbox.send(LinkUp(end.spec.number, min(end.standing.values())))

    def broke(self, link: int, cause: str) -> None:
        """A lane could not be made or broke: a link is whole or not there, so all of it goes."""
        end = self._ends.get(link)
        if end is None:
            return
        self._discard(link)
        self._outbox.send(LinkDown(link, clip(f"{cause} (neighbour {short(end.spec.peer)})")))

    def report(self) -> list[LinkReport]:
        """The links that stand at our end."""
        return [
            LinkReport(end.spec.number, end.spec.peer, end.spec.dial, end.spec.lanes, min(end.standing.values()))
            for end in self._ends.values()
            if end.complete
        ]

    # ── parcels ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def express(self, peers: Iterable[PeerId]) -> tuple[LaneId, ...] | None:
        """The express lane to each of these peers; None if a link to one of them does not stand."""
        found = {end.spec.peer: end.express for end in self._ends.values() if end.complete}
        lanes = [found.get(peer) for peer in peers]
        standing = tuple(lane for lane in lanes if lane is not None)
        return standing if len(standing) == len(lanes) else None

    # ── lending ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def lend(self, peer: PeerId, lanes: tuple[int, ...], attempt: int) -> tuple[LaneId, ...] | None:
        """Lend these lanes of the link to a neighbour to an attempt; None if one of them does not stand or is lent."""
        for number, end in self._ends.items():
            if end.spec.peer == peer and end.complete:
                ids = tuple((number, lane) for lane in lanes)
                if all(lane in end.standing and self._lent.get((number, lane), attempt) == attempt for lane in lanes):
                    self._lent.update(dict.fromkeys(ids, attempt))
                    self._lent_towards.update(dict.fromkeys(ids, peer))
                    return ids
        return None

    def give_back(self, attempt: int, broken: tuple[LaneId, ...], cause: str) -> None:
        """An attempt is over: its lanes are idle again, or closed if they broke or their link is gone."""
        for lane_id in [lane_id for lane_id, owner in self._lent.items() if owner == attempt]:
            del self._lent[lane_id]
            del self._lent_towards[lane_id]
            if lane_id[0] not in self._ends:
                self._outbox.add(CloseLane(*lane_id))
        for link, _ in broken:
            self.broke(link, cause or "a lane did not end on a segment boundary")

    def cut_off(self, gone: set[PeerId]) -> None:
        """These are in our group no more. A process that was stopped and kicked keeps its connections open and
        sends nothing: an attempt that waits on one of them would wait for ever."""
        for lane_id in [lane_id for lane_id, peer in self._lent_towards.items() if peer in gone]:
            self._outbox.add(CutLane(*lane_id))

    # ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def pass_time(self, now: float) -> None:
        """Refuse the early offers that stayed unexplained."""
        for offer in [offer for offer, early in self._early.items() if early.until <= now]:
            hello = self._early.pop(offer).hello
            self._outbox.add(RefuseLane(offer, f"{short(self._me)} was never told of link {hello.link}"))

    def next_deadline(self) -> float | None:
        """When `pass_time` has something to do."""
        return min((early.until for early in self._early.values()), default=None)
