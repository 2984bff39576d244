"""A peer's process: its core, its connections, its lanes and the person who makes the calls.

Owns what the driver of a real peer owns. A `match` over effects, with no decision about the protocol.
"""

from math import inf
from typing import TYPE_CHECKING, Any

from pccl.core.effects.both import Note
from pccl.core.effects.peer_effects import (
    AbortAttempt,
    AbortTransfer,
    AcceptLane,
    CarryParcels,
    CloseLane,
    CloseMaster,
    CutLane,
    Dial,
    DialMaster,
    ExpectLanes,
    InSync,
    RefuseLane,
    Resolve,
    SendMaster,
    SendParcel,
    StartAttempt,
    StartExchange,
    StartTransfer,
)
from pccl.core.effects.peer_events import (
    Abandon,
    Call,
    Expire,
    FetchShared,
    FromMaster,
    MasterClosed,
    MasterUp,
    PeerEvent,
    Request,
    SyncShared,
)
from pccl.core.fields import Identity, LinkSpec
from pccl.core.messages.to_master import ToMaster
from pccl.core.messages.to_peer import Wire
from pccl.core.peer.peer import Peer, PeerStage
from pccl.core.rights import Rights
from pccl.wire.codec import decode_to_peer, encode
from pccl.wire.framing import TO_PEER_FRAME_MAX, FrameReader, frame
from tests.simulation import exchange, lanes, transfer
from tests.simulation.host import Host
from tests.simulation.lanes import LaneEnd, LaneKey
from tests.simulation.machines import Harms
from tests.simulation.network import Connection
from tests.simulation.trace import tell

if TYPE_CHECKING:
    from tests.simulation.people import Person
    from tests.simulation.plane import Part
    from tests.simulation.theatre import Theatre
    from tests.simulation.transfer import Transfer


class PeerHost(Host):
    """One process, for one membership."""

    hostile = False
    """It keeps no rule: see `hostile.py`."""
    rights = Rights.ALL
    """Of its connections to the master."""

    def __init__(self, theatre: "Theatre", identity: Identity, address: tuple[str, int], distance_s: float) -> None:
        self.core = Peer(identity, theatre.plan.peer_limits)
        super().__init__(theatre.scheduler, self.core, identity.peer[:8])
        self.theatre = theatre
        self.identity = identity
        self.address = address
        self.distance_s = distance_s
        self.crashed = False
        self.harms = Harms(self)
        self.held_up_at = -inf
        """When its first bytes to a master that did not know it were held up."""
        """What was done to it that may cost it its place."""
        self.person: Person | None = None
        self.control: Connection | None = None
        self.lanes: dict[LaneKey, LaneEnd] = {}
        self.offers: dict[int, LaneEnd] = {}
        self.expected: dict[int, bytes] = {}
        """The keys of links on which others dial us."""
        self.early: list[lanes.Early] = []
        """Offers for links whose keys we do not know yet."""
        self.contributions: dict[int, int] = {}
        """What was last sent in a parcel for each tag."""
        self.exchanges: dict[int, Part] = {}
        """Those that wait for parcels, by attempt."""
        self.transfers: dict[int, Transfer] = {}
        """By attempt."""
        self.revision = 0
        self.word = b"fresh %10d" % len(theatre.hosts_by_name)
        """What it holds as its shared state; sixteen bytes, so that it is its own digest."""
        self.torn = False
        """That is a mixture, or was fetched before it joined: it must not be given to anybody."""
        self.synced_word = b""
        """What it held when it was last told to be in step."""
        self.offers_state = False
        """Its last call left a state here that transfers work on: it was not interrupted."""
        self.wired: dict[int, LinkSpec] = {}
        self.dials = 0
        """How often it has dialled a master: only the last dial counts."""
        self.gives_up_next = False
        """It will give up the next connection it makes, and what it sent there arrives late."""
        self._numbers = 0
        self._open: set[int] = set()
        """Calls that were not answered yet."""
        self._expired: set[int] = set()
        """Calls whose time is over."""

    def lies(self) -> bool:
        """Whether it sends its neighbours something else than it sends others, now."""
        return False

    def next_number(self) -> int:
        """A number for a call or an offer, never reused."""
        self._numbers += 1
        return self._numbers

    # ── the master's connection ──────────────────────────────────────────────────────────────────────────────────────

    def connected(self, control: Connection | None) -> None:
        """The control connection stands, or could not be made."""
        if control is None:
            self.post(self.handle, MasterClosed("connection refused"))
            return
        self.attach(control)
        self.post(self._up, control)

    def attach(self, control: Connection) -> None:
        """Hear what arrives on this connection, and on no older one."""
        self.control = control
        reader = FrameReader(TO_PEER_FRAME_MAX)

        def arrived(data: bytes) -> None:
            for body in reader.feed(data):
                self.post(self._received, control, body)

        control.attach(0, arrived, lambda cause: self.post(self._lost_master, control, cause))

    def _up(self, control: Connection) -> None:
        if self.control is control:
            self.handle(MasterUp())

    def _received(self, control: Connection, body: bytes) -> None:
        if self.control is not control:
            return
        message = decode_to_peer(body)
        if isinstance(message, Wire):
            self.wired = {link.number: link for link in message.links}
        self.theatre.audience.tell("peer_receives", self, message)
        self.handle(FromMaster(message))

    def _lost_master(self, control: Connection, cause: str) -> None:
        if self.control is control:
            self.control = None
            self.handle(MasterClosed(cause))

    def miss_greeting(self, control: Connection) -> None:
        """It is time for a master that was dialled to have answered."""
        if self.control is control and not control.greeted and not self.gone:
            control.close(0, "no answer")
            self.post(self._lost_master, control, "no answer")

    def give_up(self, control: Connection) -> None:
        """Its kernel gives up a connection on which nothing passes."""
        if self.control is control and not self.gone:
            control.close(0, "timed out")
            self.post(self._lost_master, control, "timed out")

    def hears_everything(self) -> bool:
        """Nothing that the master said is still on its way."""
        if self.gone or self.frozen or self.harms or not self.idle or self.control is None:
            return False
        if self.core.stage in (PeerStage.RETURNING, PeerStage.JOINING):
            return False  # What it lacks is sent again on this connection, or it starts anew; but not yet.
        return self.control.open(0) and not self.control.severed and not self.control.flying[0]

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, number: int, request: Request) -> None:
        """The person makes a call."""
        self.theatre.audience.tell("call_made", self, number, request)
        self._open.add(number)
        self.handle(Call(number, request))
        if number in self._open and isinstance(request, SyncShared | FetchShared):
            self.offers_state = True  # Not if it was refused at once: another one may be going on.

    def abandon(self, number: int) -> None:
        """The person was interrupted. From now on nothing works on the state that the call left here."""
        self.handle(Abandon(number))
        self.offers_state = False
        transfer.withdraw(self)

    def expire(self, *numbers: int) -> None:
        """The time that the person had for these collectives, which belong together, is over. A call has one limit, be
        it its own or that of all with which it was made."""
        if not self._expired.isdisjoint(numbers):
            return
        self._expired.update(numbers)
        if self._open.issuperset(numbers):
            self.theatre.audience.tell("call_expired", self, numbers)
        self.handle(Expire(numbers))

    def waiting_s(self) -> float:
        """How long the oldest call has waited."""
        return 0.0 if self.person is None else self.person.waiting_s()

    # ── the core ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def before(self, event: PeerEvent, effects: list[Any]) -> None:
        if self.theatre.trace.on:
            self.theatre.trace.line(self.scheduler.now, self.name, tell(event))

    def perform(self, effect: Any) -> None:
        theatre = self.theatre
        if theatre.trace.on:
            theatre.trace.line(self.scheduler.now, self.name, f"    → {tell(effect)}")
        match effect:
            case SendMaster(message, again):
                theatre.audience.tell("peer_sends_again" if again else "peer_sends", self, message)
                self._send(message)
            case Resolve(call, answer):
                self._open.discard(call)
                if isinstance(answer, InSync):
                    self.synced_word = self.word
                theatre.audience.tell("call_resolved", self, call, answer)
                if self.person is not None:
                    self.person.answered(call, answer)
            case Dial():
                lanes.dial(self, effect)
            case ExpectLanes():
                lanes.expect(self, effect)
            case AcceptLane():
                lanes.accept(self, effect)
            case RefuseLane():
                lanes.refuse(self, effect)
            case CloseLane(link, lane):
                lanes.close(self, (link, lane))
            case CutLane(link, lane):
                lanes.cut(self, (link, lane))
            case StartAttempt():
                theatre.plane.start(self, effect)
            case CarryParcels(link, lane):
                self.lanes[link, lane].carries_parcels = True
            case SendParcel():
                exchange.send(self, effect)
            case StartExchange():
                exchange.start(theatre.plane, self, effect)
            case StartTransfer():
                transfer.start(self, effect)
            case AbortTransfer():
                transfer.abort(self, effect)
            case AbortAttempt():
                theatre.plane.abort(self, effect)
            case CloseMaster():
                self.dials += 1
                if self.control is not None:
                    self.control.close(0, "closed by the peer")
                    self.control = None
            case DialMaster(timeout_s):
                self.dials += 1
                theatre.dial_master(self, timeout_s)
            case Note():
                pass
            case _:
                raise AssertionError(f"unknown effect {effect}")

    def parcel_arrived(self, end: LaneEnd, data: bytes) -> None:
        """Somebody's contribution is there."""
        exchange.arrived(end, data)

    def _send(self, message: ToMaster) -> None:
        if self.control is not None:
            self.control.send(0, frame(encode(message)))

    # ── its end ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def crash(self) -> None:
        """The process is gone without a word."""
        if not self.gone:
            self.crashed = True
            self.exit()

    def exit(self) -> None:
        """The process ends, and the kernel closes what it had."""
        if self.gone:
            return
        self.gone = True
        self.theatre.plane.host_gone(self)
        ends = [(end.connection, end.side) for end in (*self.lanes.values(), *self.offers.values())]
        if self.control is not None:
            ends.insert(0, (self.control, 0))
        for connection, side in ends:
            connection.crash(side) if self.crashed else connection.close(side, "connection reset")
        self.theatre.host_ended(self)
