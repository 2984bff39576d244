"""What goes wrong: each fault strikes one thing at random and writes down whom it may cost its place."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pccl.types import PeerId
from tests.simulation import machines
from tests.simulation.hostile import HostileHost
from tests.simulation.plane import NO_PROGRESS_S

if TYPE_CHECKING:
    from tests.simulation.lanes import LaneEnd
    from tests.simulation.network import Connection
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.theatre import Theatre


HARMLESS_S = 5.0
"""A peer that cannot be reached for less than this keeps its place, whatever happens, unless the master is lost."""


class Havoc:
    """Strikes at random moments while it is on."""

    def __init__(self, theatre: "Theatre") -> None:
        self.on = True
        self._theatre = theatre
        self._random = theatre.random
        self._kinds = list(theatre.plan.faults)
        self._weights = list(theatre.plan.faults.values())
        self.parted: dict[PeerId, None] = {}
        """Peers between which and the master nothing passes."""

    def start(self) -> None:
        """Plan the first strike."""
        if self._kinds:
            self._plan()

    def heal(self) -> None:
        """No more faults. Those that last come to their end, but for unreachable pairs that a ring can go around."""
        self.on = False
        self._heal_reach()
        for host in list(self._theatre.peers.values()):
            if isinstance(host, HostileHost):
                host.healed()
                continue
            host.dies_after = None
            host.slowness_s = 0.0
            if not host.frozen_for_good:
                host.thaw()
        for peer in list(self.parted):
            self._unite(peer)
        self._theatre.master.dies_after = None
        self._theatre.master.thaw()
        self._theatre.restart_master()

    def _heal_reach(self) -> None:
        """What cannot be dialled stays so in the groups that have a ring around it, whoever else is lost or let in."""
        accepted = {known.peer for known in self._theatre.ledger.accepted()}
        for group in range(self._theatre.plan.groups):
            peers = [host for host in self._theatre.peers.values() if not host.identity.visits]
            hosts = [host for host in peers if host.identity.group == group]
            sound = [host.identity.peer for host in hosts if not host.harms]
            staying = [peer for peer in sound if peer in accepted] or sound
            everybody = [host.identity.peer for host in hosts if not host.hostile]
            if self._theatre.reach.ring_is_sure(staying, everybody):
                self._last_blow(staying, everybody)
            else:
                self._theatre.reach.lift(everybody)

    def _last_blow(self, staying: list[PeerId], everybody: list[PeerId]) -> None:
        """One more peer dies, of those who stood between two that cannot reach each other: a new ring must be found."""
        told = [known.topology for known in self._theatre.ledger.accepted() if known.topology is not None]
        for ring in dict.fromkeys(topology.ring for topology in told):
            for rank, victim in enumerate(ring):
                before, after = PeerId(ring[rank - 1]), PeerId(ring[(rank + 1) % len(ring)])
                if (
                    victim in staying
                    and not machines.mates(self._theatre.peers[PeerId(victim)])
                    and self._theatre.reach.are_strangers(before, after)
                ):
                    staying, everybody = ([peer for peer in peers if peer != victim] for peers in (staying, everybody))
                    if self._theatre.reach.ring_is_sure(staying, everybody):
                        self._theatre.peers[PeerId(victim)].crash()
                    return

    def _plan(self) -> None:
        every_s = self._theatre.plan.fault_every_s
        self._theatre.scheduler.after(self._random.expovariate(1.0 / every_s), self._strike)

    def _strike(self) -> None:
        if not self.on or self._theatre.master_for_good:
            return
        kind = self._random.choices(self._kinds, self._weights)[0]
        strike: Callable[[], str] = getattr(self, f"_{kind}")
        what = strike()
        if what:
            self._theatre.faults_done += 1
            if self._theatre.trace.on:
                self._theatre.trace.line(self._theatre.scheduler.now, "FAULT", f"{kind}: {what}")
        self._plan()

    # ── processes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _victim(self) -> "PeerHost | None":
        alive = [host for host in self._theatre.peers.values() if not host.gone]
        return self._random.choice(alive) if alive else None

    def _crash(self) -> str:
        host = self._victim()
        if host is None:
            return ""
        host.harms.append("crash")
        together = machines.mates(host)
        host.crash()
        if together and self._random.random() < 0.5:
            for mate in together:
                mate.crash()  # The whole machine is gone.
        return host.name

    def _crash_between_effects(self) -> str:
        host = self._victim()
        if host is None or host.dies_after is not None:
            return ""
        host.harms.append("crash")
        host.dies_after = self._random.randrange(6)
        return f"{host.name} after {host.dies_after} effects"

    def _freeze(self) -> str:
        host = self._victim()
        if host is None or host.frozen:
            return ""
        host.harms.append("freeze")
        host.freeze()
        seconds = self._random.choice((0.5, 5.0, 30.0, None))
        if seconds is None:
            host.frozen_for_good = True
            return f"{host.name} for good"
        self._theatre.scheduler.after(seconds, host.thaw)
        return f"{host.name} for {seconds} s"

    def _slow(self) -> str:
        """Slow, but far from silent: a fault that must cost nobody its place."""
        host = self._victim()
        if host is None:
            return ""
        host.slowness_s = self._random.choice((0.001, 0.02, 0.1))
        return f"{host.name} takes {host.slowness_s} s for each event"

    def _goodbye(self) -> str:
        host = self._victim()
        if host is None or host.person is None or host.person.leaving:
            return ""
        host.person.leave()
        return host.name

    def _interrupt(self) -> str:
        """Ctrl-C, and the same call once more: costs nobody its place."""
        host = self._victim()
        return "" if host is None or host.person is None or not host.person.interrupt() else host.name

    def _join(self) -> str:
        return self._theatre.enter()

    def _pause_master(self) -> str:
        """The master computes something else for a while; rarely for longer than the peers' patience."""
        theatre, too_long = self._theatre, self._random.random() < 0.3
        seconds = (self._random.uniform(0.0, 0.5) + too_long) * theatre.plan.peer_limits.master_silence_s
        for known in theatre.ledger.known.values() if too_long else ():
            host = theatre.host_of(known)
            if host is not None and not (host.core.accepted and theatre.ledger.linked(known)):
                host.harms.append("nobody could tell that it was there when it lost the master")
        theatre.master_paused = True
        theatre.master.freeze()
        theatre.scheduler.after(seconds, theatre.master.thaw)
        return f"for {seconds:.1f} s"

    def _crash_master(self) -> str:
        """Between any two effects, or with all that is on its way; the next one comes sooner or later, perhaps too
        late."""
        master = self._theatre.master
        if master.gone or master.dies_after is not None:
            return ""
        how = self._random.choice(("process", "effects", "machine"))
        if how == "process":
            master.crash()
        elif how == "machine":
            master.lose_power()
        else:
            master.dies_after = self._random.randrange(12)
        return how

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _cut_control(self, host: "PeerHost | None" = None) -> str:
        host = host or self._victim()
        if host is None or host.control is None:
            return ""
        known = self._theatre.ledger.find(host.identity.peer)
        alone = len(list(self._theatre.ledger.accepted())) == 1
        seen = known is not None and (alone or self._theatre.ledger.linked(known) or not known.doubted)
        if not (seen and host.core.accepted):
            host.harms.append("cut control connection")
        host.control.cut("reset by the network")
        return host.name

    def _late_bytes(self) -> str:
        """A peer loses its connection, sends the first message of the next one, gives that one up too and dials again.
        The network delivers what was sent on the connection that was given up after it has delivered newer messages."""
        host = self._victim()
        if host is None or host.hostile or host.gives_up_next or host.identity.visits:
            return ""
        host.gives_up_next = True
        if host.core.accepted:
            return self._cut_control(host)
        if host.control is not None:
            host.control.cut("reset by the network")
        return host.name

    def delay(self, host: "PeerHost", connection: "Connection") -> None:
        """Play `_late_bytes` on this connection, which has just been made."""
        host.gives_up_next = False
        if self._theatre.ledger.find(host.identity.peer) is None:
            host.held_up_at = self._theatre.scheduler.now
        connection.hold((1,))
        patience_s = self._random.uniform(0.0, 0.3)
        self._theatre.scheduler.after(patience_s, host.give_up, connection)
        self._theatre.scheduler.after(patience_s + self._random.uniform(0.03, 1.0), connection.release)

    def _lose_control(self) -> str:
        host = self._victim()
        if host is None or host.control is None:
            return ""
        host.harms.append("half-open control connection")
        towards = self._random.choice(((0,), (1,), (0, 1)))
        host.control.vanish(towards)
        return f"{host.name} towards {towards}"

    def _lane(self) -> "LaneEnd | None":
        ends = [end for host in self._theatre.peers.values() if not host.gone for end in host.lanes.values()]
        if not ends:
            return None
        end = self._random.choice(ends)
        self._theatre.reach.trouble(end.host.identity.peer, end.other)
        return end

    def _cut_lane(self) -> str:
        end = self._lane()
        if end is None:
            return ""
        end.connection.cut("reset by the network")
        return f"{end.key} of {end.host.name}{' while lent' if end.part else ''}"

    def _lose_lane(self) -> str:
        end = self._lane()
        if end is None:
            return ""
        end.connection.vanish((0, 1))
        for host in self._theatre.peers.values():
            for other in host.lanes.values():
                if other.connection is end.connection:
                    self._theatre.plane.stall(other)
        return f"{end.key} of {end.host.name}, noticed after {NO_PROGRESS_S} s of use"

    def _part_from_master(self) -> str:
        """Nothing passes between a peer and the master for a while, in one direction or both; then it all does."""
        host = self._victim()
        if host is None or host.identity.peer in self.parted:
            return ""
        seconds = self._random.choice((0.5, 3.0, 20.0, 60.0))
        towards = self._random.choice(((0,), (1,), (0, 1)))
        peer = host.identity.peer
        # A peer that a restarted master has not heard of yet has no place there: no limit covers a part of the network
        # that fails just then, and newcomers may begin before it is back.
        unknown = host.core.accepted and self._theatre.ledger.find(peer) is None
        if seconds > HARMLESS_S or self._theatre.master.gone or unknown:
            host.harms.append("out of the master's reach")
        self.parted[peer] = None
        if host.control is not None:
            host.control.hold(towards)
        self._theatre.scheduler.after(seconds, self._unite, peer)
        return f"{host.name} for {seconds} s towards {towards}"

    def _unite(self, peer: PeerId) -> None:
        host = self._theatre.peers.get(peer)
        self.parted.pop(peer, None)
        if host is not None and host.control is not None:
            host.control.release()

    def _part_peers(self) -> str:
        """Nothing passes between two peers: their lanes pass no bytes, and neither can dial the other."""
        one, other = self._victim(), self._victim()
        if one is None or other is None or one is other:
            return ""
        reach, ends = self._theatre.reach, (one.identity.peer, other.identity.peer)
        reach.part(*ends, True)
        reach.trouble(*ends)
        for host, there in ((one, ends[1]), (other, ends[0])):
            for end in [end for end in host.lanes.values() if end.other == there]:
                end.connection.vanish((0, 1))
                self._theatre.plane.stall(end)
        seconds = self._random.choice((1.0, 10.0, 60.0))
        self._theatre.scheduler.after(seconds, reach.unite, *ends)
        return f"{one.name} and {other.name} for {seconds} s"

    def _block_pair(self) -> str:
        one, other = self._victim(), self._victim()
        if one is None or other is None or one is other:
            return ""
        both_ways = self._random.random() < 0.5
        self._theatre.reach.part(one.identity.peer, other.identity.peer, both_ways)
        return f"{one.name} to {other.name}{' and back' if both_ways else ''}"
