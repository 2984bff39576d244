"""Parcels on express lanes, and the exchanges that reduce what came in them.

Owns what each end of an express lane has received. Does not know which parcels are wanted, or when: an exchange that
waits for one which never comes says nothing until it is aborted or has waited too long, exactly as a real one.
"""

from typing import TYPE_CHECKING

from pccl.core.effects.peer_effects import SendParcel, StartExchange
from tests.simulation.lanes import LaneEnd
from tests.simulation.plane import NO_PROGRESS_S, Part, Plane
from tests.simulation.violation import Violation

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost


def send(host: "PeerHost", effect: SendParcel) -> None:
    """A contribution leaves to everybody, as a number that stands for a tensor."""
    value = host.contributions[effect.tag] = host.theatre.random.randrange(1, 1_000_000)
    host.theatre.plane.sent[host.identity.peer, effect.parcel] = value
    for key in effect.lanes:
        end = host.lanes.get(key)
        if end is not None and end.stands:
            end.connection.send(end.side, f"{effect.parcel} {effect.oldest} {value}".encode())


def arrived(end: LaneEnd, data: bytes) -> None:
    """A parcel is there."""
    parcel, oldest, value = (int(word) for word in data.split())
    end.parcels = {number: kept for number, kept in end.parcels.items() if number >= oldest}
    end.parcels[parcel] = value
    for part in list(end.host.exchanges.values()):
        _try_success(part)


def start(plane: Plane, host: "PeerHost", effect: StartExchange) -> None:
    """Reduce what has come as soon as all of it has."""
    part = plane.take_part(host, effect, len(effect.parcels), host.contributions[effect.tag])
    host.exchanges[effect.attempt] = part
    host.theatre.scheduler.after(NO_PROGRESS_S, _give_up, part)
    _try_success(part)


def _give_up(part: Part) -> None:
    """A parcel did not come. Where its lane stands and its sender runs, it never will: it should not be waited for."""
    host, effect = part.host, part.effect
    assert isinstance(effect, StartExchange)
    if part.ended or host.gone:
        return
    for key, number in effect.parcels:
        end = host.lanes.get(key) if key is not None else None
        if end is not None and number not in end.parcels and _passes(end) and not host.frozen:
            raise Violation("parcels come", f"{host.name} waits for parcel {number} of {end.other[:8]} in vain")
    host.theatre.plane.end(part, "a parcel did not come", ())


def _passes(end: LaneEnd) -> bool:
    sender = end.host.theatre.peers.get(end.other)
    alive = sender is not None and not (sender.gone or sender.frozen or sender.hostile)
    return (
        alive and end.connection.open(end.side) and not end.connection.vanished and not end.connection.flying[end.side]
    )


def _try_success(part: Part) -> None:
    host, effect = part.host, part.effect
    assert isinstance(effect, StartExchange)
    if part.ended:
        del host.exchanges[effect.attempt]
        return
    values = [part.value]
    for key, number in effect.parcels:
        if key is not None:
            end = host.lanes.get(key)
            if end is None or number not in end.parcels:
                return
            values.append(end.parcels[number])
    host.theatre.plane.give(part, sum(values))
    part.succeeded = True
    del host.exchanges[effect.attempt]
    host.theatre.plane.end(part, "", ())
