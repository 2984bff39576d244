"""A lane has one owner at a time, and both of its ends agree on which."""

from typing import TYPE_CHECKING

from pccl.core.effects.master import MasterEvent, Received
from pccl.core.effects.peer_effects import StartExchange
from pccl.core.messages.to_master import LinkUp, ToMaster
from pccl.core.messages.to_peer import ToPeer, Wire
from pccl.types import PeerId
from tests.simulation.checkers.base import Checker
from tests.simulation.ledger import Known

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.plane import Part
    from tests.simulation.theatre import Theatre


class OneOwner(Checker):
    """Lanes are lent only while they stand, to one run at a time, and the neighbours lend the same ones."""

    name = "one owner"

    def run_started(self, part: "Part") -> None:
        effect, host = part.effect, part.host
        if isinstance(effect, StartExchange):
            return  # It borrows nothing.
        for key in (*effect.to_next, *effect.from_prev):
            end = host.lanes.get(key)
            if end is None or not end.stands:
                raise self.fail(f"{host.name} lends lane {key} to attempt {effect.attempt}, but it does not stand")
            owner = end.part or end.transfer
            if owner is not None:
                raise self.fail(f"{host.name} lends lane {key} to attempts {owner.effect.attempt} and {effect.attempt}")
        if len(set(effect.to_next)) != len(effect.to_next):
            raise self.fail(f"{host.name} lends a lane twice to attempt {effect.attempt}")
        if (effect.size == 2) != (effect.to_next == effect.from_prev):
            raise self.fail(
                f"{host.name} runs attempt {effect.attempt} of {effect.size} on {effect.to_next} {effect.from_prev}"
            )
        self._compare_neighbours(part)

    def _compare_neighbours(self, part: "Part") -> None:
        parts, size, rank = part.run.parts, part.effect.size, part.effect.rank
        following, previous = parts.get((rank + 1) % size), parts.get((rank - 1) % size)
        if following is not None and following.effect.from_prev != part.effect.to_next:
            raise self.fail(f"{part.host.name} and {following.host.name} use different lanes in {part.effect.attempt}")
        if previous is not None and previous.effect.to_next != part.effect.from_prev:
            raise self.fail(f"{part.host.name} and {previous.host.name} use different lanes in {part.effect.attempt}")
        attempt = self.ledger.attempts[part.effect.attempt]
        ring = attempt.participants
        if len(ring) != size and not attempt.cut_short:
            raise self.fail(f"attempt {part.effect.attempt} has {len(ring)} participants, {part.host.name} says {size}")
        for key, rank_beside in ((part.effect.to_next, rank + 1), (part.effect.from_prev, rank - 1)):
            beside = parts.get(rank_beside % size)
            for end in (part.host.lanes[lane] for lane in key):
                if beside is not None and end.other != beside.host.identity.peer:
                    raise self.fail(f"{part.host.name} sends attempt {part.effect.attempt} to {end.other[:8]}")


class HonestLinks(Checker):
    """A peer reports a link up only when all of its lanes stand at its end."""

    name = "honest links"

    def peer_sends(self, host: "PeerHost", message: ToMaster) -> None:
        if not isinstance(message, LinkUp):
            return
        spec = host.wired.get(message.link)
        if spec is None:
            return
        for lane in range(spec.lanes + 1):
            end = host.lanes.get((message.link, lane))
            if end is None or not end.stands:
                raise self.fail(f"{host.name} reports link {message.link} up, but lane {lane} does not stand")


class LinksComeAbout(Checker):
    """Two peers of which one can dial the other have their link soon: a dial from the wrong end costs one failure."""

    name = "links come about"

    def __init__(self, theatre: "Theatre") -> None:
        super().__init__(theatre)
        plan = theatre.plan
        self._bound_s = 2 * plan.peer_limits.dial_timeout_s + 20 * (plan.distance_s + plan.jitter_s)
        self._rest_s = 2 * plan.master_limits.redial_s
        self._wanted: dict[frozenset[str], tuple[float, float, int]] = {}
        """Since when a pair is to have a link that does not stand, until when it was told so, and the faults before."""

    def master_sends(self, known: Known, message: ToPeer) -> None:
        if not isinstance(message, Wire):
            return
        now, faults = self.theatre.scheduler.now, self.theatre.faults_done
        for link in known.links.values():
            ends = frozenset((known.peer, link.peer))
            if ends in self._wanted:
                since, _, before = self._wanted[ends]
                self._wanted[ends] = (since, now, before)
        for link in message.links:
            ends = frozenset((known.peer, link.peer))
            if link.number in known.up:
                self._wanted.pop(ends, None)
                continue
            since, told, before = self._wanted.get(ends, (now, now, faults))
            if now - told > self._rest_s or before != faults or not self._sound(ends):
                since = now
            if now - since > self._bound_s:
                raise self.fail(f"{self._names(ends)} can dial each other but have no link after {now - since:.0f} s")
            self._wanted[ends] = (since, now, faults)

    def master_handled(self, event: MasterEvent) -> None:
        if isinstance(event, Received) and isinstance(event.message, LinkUp) and event.connection in self.ledger.known:
            known = self.ledger.known[event.connection]
            link = known.links.get(event.message.link)
            other = self.ledger.find(PeerId(link.peer)) if link is not None else None
            if link is not None and other is not None and link.number in other.up:
                self._wanted.pop(frozenset((known.peer, other.peer)), None)

    def _sound(self, ends: frozenset[str]) -> bool:
        """Nothing but the way between them could keep these two apart."""
        reach, hosts = self.theatre.reach, [self.theatre.peers.get(PeerId(peer)) for peer in ends]
        if self.theatre.master.frozen or reach.are_strangers(*map(PeerId, ends)):
            return False
        return all(host and not (host.harms or host.slowness_s or reach.troubled(host)) for host in hosts)

    def _names(self, ends: frozenset[str]) -> str:
        return " and ".join(sorted(peer[:8] for peer in ends))
