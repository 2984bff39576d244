"""Lanes between peers: dialled, offered, answered, lent and closed as the drivers of real peers do it.

Owns the ends of lanes at each host. Does not know which lanes are wanted, nor what a run does with them.
"""

import hashlib
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from pccl.core.effects.peer_effects import AcceptLane, Dial, ExpectLanes, RefuseLane
from pccl.core.effects.peer_events import LaneClosed, LaneDialled, LaneOffered
from pccl.core.messages.lanes import LaneAnswer, LaneHello
from pccl.types import PeerId
from pccl.wire.codec import decode_between, encode
from tests.simulation.network import Connection
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.plane import Part
    from tests.simulation.transfer import Transfer

LaneKey = tuple[int, int]
"""(link, lane)"""


WAITS_S = 10.0
"""As long as a real listener keeps a connection that has not said who it is."""


class Early(NamedTuple):
    """An offer for a link whose key has not come yet."""

    hello: LaneHello
    connection: Connection
    until: float


def pin_of(peer: PeerId) -> bytes:
    """Stands for the digest of its certificate."""
    return hashlib.sha256(peer.encode()).digest()


def key_of(run: str, number: int) -> bytes:
    """Stands for a key that a master has drawn."""
    return hashlib.sha256(f"{run} {number}".encode()).digest()


class LaneEnd:
    """One end of one lane, from the dial or the offer on."""

    def __init__(self, host: "PeerHost", hello: LaneHello, connection: Connection, side: int) -> None:
        self.host = host
        self.key: LaneKey = (hello.link, hello.lane)
        self.other = PeerId(hello.receiver if side == 0 else hello.sender)
        self.connection = connection
        self.side = side
        self.stands = False
        self.parcels: dict[int, int] = {}
        """What arrived on it as an express lane and may still be needed."""
        self.carries_parcels = False
        self.part: Part | None = None
        """The run that this end is lent to."""
        self.transfer: Transfer | None = None
        """The transfer that it is lent to."""
        self.unread = False
        """Bytes of an attempt that was aborted lie on it. While they do nobody looks at an idle lane, so that its end
        shows only when it is used."""
        self.unheard: set[int] = set()
        """Attempts of pullers whose goodbye lies on it, since nobody served here when it came."""

    def close(self, cause: str) -> None:
        """Close it from here."""
        self.stands = False
        self.connection.close(self.side, cause)


def dial(host: "PeerHost", effect: Dial) -> None:
    """Open one lane."""
    theatre, hello = host.theatre, effect.hello
    target = theatre.reach.find(host.identity.peer, (effect.host, effect.port))
    proved = effect.pin == pin_of(PeerId(hello.receiver)) and effect.key
    if theatre.plan.secured and not host.hostile and not proved:
        raise Violation("lanes are proved", f"{host.name} dials {hello} without its key or with another pin")
    hello = structs.replace(hello, proof=effect.key)
    meant = target is not None and target.identity.peer == hello.receiver and not (host.hostile or target.hostile)
    if target is not None and meant and host.identity.lane_tls != target.identity.lane_tls:
        raise Violation("lanes are alike", f"{host.name} dials {target.name}, which seals its lanes in another way")
    distance = host.distance_s + (target.distance_s if target is not None else 0.0)
    connection = Connection(theatre.network, distance)
    end = LaneEnd(host, hello, connection, 0)
    if end.key in host.lanes:
        raise Violation("one owner", f"{host.name} dials lane {end.key} twice")
    host.lanes[end.key] = end
    connection.attach(0, lambda data: host.post(_answered, end, data), lambda cause: host.post(_ended, end, cause))
    if target is None:
        # A refusing machine says so at once, a packet filter says nothing.
        silent = theatre.random.random() < theatre.plan.black_holes
        near = theatre.random.random() < theatre.plan.refused_at_once
        refused_s = theatre.random.uniform(0.0, 0.001) if near else theatre.network.delay(distance)
        wait_s = effect.timeout_s if silent else refused_s
        theatre.scheduler.after(wait_s, host.post, _give_up, end, "timed out" if silent else "connection refused")
        return
    theatre.scheduler.after(effect.timeout_s, host.post, _give_up, end, "timed out")
    connection.attach(1, lambda data: target.post(offered, target, connection, data), lambda cause: None)
    connection.send(0, encode(hello))


def _give_up(end: LaneEnd, cause: str) -> None:
    if not end.stands and end.host.lanes.get(end.key) is end:
        del end.host.lanes[end.key]
        end.close(cause)
        end.host.handle(LaneClosed(*end.key, cause))


def _answered(end: LaneEnd, data: bytes) -> None:
    if end.stands:
        _arrived(end, data)
        return
    if end.host.lanes.get(end.key) is not end:
        return
    answer = decode_between(data)
    assert isinstance(answer, LaneAnswer), "what is no answer is the business of `wire`"
    if answer.accepted:
        end.stands = True
        end.host.handle(LaneDialled(*end.key, round(2e6 * end.connection.distance_s)))
    else:
        _give_up(end, answer.reason)


def offered(host: "PeerHost", connection: Connection, data: bytes) -> None:
    """Somebody dialled this process and said hello."""
    hello = decode_between(data)
    assert isinstance(hello, LaneHello), "what is no hello is the business of `wire`"
    if host.theatre.plan.secured and not host.hostile:
        key = host.expected.get(hello.link)
        if key is None and hello.proof:
            host.early.append(Early(hello, connection, host.scheduler.now + WAITS_S))
            return
        if key != hello.proof:
            connection.close(1, "no proof")
            return
    _offer(host, hello, connection)


def expect(host: "PeerHost", effect: ExpectLanes) -> None:
    """The key of a link is known, or of no more use; offers that waited for it go on."""
    if not effect.key:
        del host.expected[effect.link]
        return
    host.expected[effect.link] = effect.key
    waiting, host.early = host.early, []
    for early in waiting:
        if early.until < host.scheduler.now:
            early.connection.close(1, "nothing complete")
        else:
            host.post(offered, host, early.connection, encode(early.hello))


def _offer(host: "PeerHost", hello: LaneHello, connection: Connection) -> None:
    end = LaneEnd(host, hello, connection, 1)
    connection.attach(1, lambda data: host.post(_arrived, end, data), lambda cause: host.post(_ended, end, cause))
    number = host.next_number()
    host.offers[number] = end
    host.handle(LaneOffered(number, hello))


def _arrived(end: LaneEnd, data: bytes) -> None:
    """Bytes on a lane that stands; only those of parcels are simulated."""
    if end.host.lanes.get(end.key) is end and end.carries_parcels:
        end.host.parcel_arrived(end, data)


def accept(host: "PeerHost", effect: AcceptLane) -> None:
    """Say yes to an offer."""
    end = host.offers.pop(effect.offer)
    if host.hostile and end.key in host.lanes:
        end.close("refused")  # It dials under a number that it made up, of which its core knows nothing.
        return
    if end.key != (effect.link, effect.lane) or end.key in host.lanes:
        raise Violation("one owner", f"{host.name} accepts {end.key} as lane {(effect.link, effect.lane)}")
    host.lanes[end.key] = end
    end.stands = True
    end.connection.send(1, encode(LaneAnswer(True)))
    if not end.connection.open(1):
        host.theatre.scheduler.after(0.0, host.post, _ended, end, "closed before it was accepted")


def refuse(host: "PeerHost", effect: RefuseLane) -> None:
    """Say no to an offer."""
    end = host.offers.pop(effect.offer)
    end.connection.send(1, encode(LaneAnswer(False, effect.reason)))
    end.close("refused")


def close(host: "PeerHost", key: LaneKey) -> None:
    """Close a lane, if it is there."""
    end = host.lanes.get(key)
    if end is not None:
        owner = end.part or end.transfer
        if owner is not None:
            raise Violation("one owner", f"{host.name} closes lane {key} while attempt {owner.effect.attempt} has it")
        del host.lanes[key]
        end.close("closed")


def cut(host: "PeerHost", key: LaneKey) -> None:
    """Break a lane that is lent, from here, unless it broke by itself before."""
    end = host.lanes.get(key)
    if end is not None:
        end.connection.close(end.side, "cut off")
        _ended(end, "its other end is out of the run")


def _ended(end: LaneEnd, cause: str) -> None:
    """The other end closed the lane, or it broke."""
    host = end.host
    if host.lanes.get(end.key) is not end:
        return
    if end.part is not None:
        host.theatre.plane.lane_broke(end, cause)
    elif end.transfer is not None:
        end.transfer.lane_broke(end, cause)
    elif not end.stands:
        _give_up(end, cause)
    elif not end.unread:
        del host.lanes[end.key]
        end.stands = False
        host.handle(LaneClosed(*end.key, cause))


def returned(end: LaneEnd, unread: bool) -> None:
    """A run has let go of this end; what happened to it meanwhile is noticed now."""
    end.part, end.unread = None, unread
    if not end.connection.open(end.side):
        end.host.theatre.scheduler.after(0.0, end.host.post, _ended, end, "closed while it was lent")
