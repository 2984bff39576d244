"""What goes wrong: each fault strikes one thing at random and writes down whom it may cost its place."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.plane import NO_PROGRESS_S

if TYPE_CHECKING:
    from tests.simulation.lanes import LaneEnd
    from tests.simulation.peer_host import PeerHost
    from tests.simulation.theatre import Theatre


class Havoc:
    """Strikes at random moments while it is on."""

    def __init__(self, theatre: "Theatre") -> None:
        self.on = True
        self._theatre = theatre
        self._random = theatre.random
        self._kinds = list(theatre.plan.faults)
        self._weights = list(theatre.plan.faults.values())

    def start(self) -> None:
        """Plan the first strike."""
        if self._kinds:
            self._plan()

    def heal(self) -> None:
        """No more faults, and those that last come to their end."""
        self.on = False
        self._theatre.reach.heal()
        for host in list(self._theatre.peers.values()):
            host.dies_after = None
            host.slowness_s = 0.0
            if not host.frozen_for_good:
                host.thaw()
        self._theatre.master.thaw()

    def _plan(self) -> None:
        every_s = self._theatre.plan.fault_every_s
        self._theatre.scheduler.after(self._random.expovariate(1.0 / every_s), self._strike)

    def _strike(self) -> None:
        if not self.on or self._theatre.master.gone:
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
        host.crash()
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

    def _join(self) -> str:
        return self._theatre.enter()

    def _pause_master(self) -> str:
        """The master computes something else for a while; too short for the peers' patience."""
        seconds = self._random.uniform(0.0, 0.5) * self._theatre.plan.peer_limits.master_silence_s
        self._theatre.master.freeze()
        self._theatre.scheduler.after(seconds, self._theatre.master.thaw)
        return f"for {seconds:.1f} s"

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _cut_control(self) -> str:
        host = self._victim()
        if host is None or host.control is None:
            return ""
        host.harms.append("cut control connection")
        host.control.cut("reset by the network")
        return host.name

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

    def _block_pair(self) -> str:
        one, other = self._victim(), self._victim()
        if one is None or other is None or one is other:
            return ""
        ways = [(one, other)] if self._random.random() < 0.5 else [(one, other), (other, one)]
        for caller, target in ways:
            self._theatre.reach.block(caller.identity.peer, target.identity.peer)
        return f"{one.name} to {other.name}{' and back' if len(ways) == 2 else ''}"
