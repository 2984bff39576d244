"""A lane has one owner at a time, and both of its ends agree on which."""

from typing import TYPE_CHECKING

from pccl.core.messages import LinkUp, ToMaster
from tests.simulation.checkers.base import Checker

if TYPE_CHECKING:
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.plane import Part


class OneOwner(Checker):
    """Lanes are lent only while they stand, to one run at a time, and the neighbours lend the same ones."""

    name = "one owner"

    def run_started(self, part: "Part") -> None:
        effect, host = part.effect, part.host
        for key in (*effect.to_next, *effect.from_prev):
            end = host.lanes.get(key)
            if end is None or not end.stands:
                raise self.fail(f"{host.name} lends lane {key} to attempt {effect.attempt}, but it does not stand")
            if end.part is not None:
                raise self.fail(
                    f"{host.name} lends lane {key} to attempts {end.part.effect.attempt} and {effect.attempt}"
                )
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
        ring = self.ledger.attempts[part.effect.attempt].participants
        if len(ring) != size:
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
        for lane in range(spec.lanes):
            end = host.lanes.get((message.link, lane))
            if end is None or not end.stands:
                raise self.fail(f"{host.name} reports link {message.link} up, but lane {lane} does not stand")
