"""One run: master, peers, people, faults and checkers together, from the first peer to the last goodbye.

Owns the order of a run. First safety under faults; then the faults stop, and everybody must complete three more steps;
then all leave, and nothing may be left behind.
"""

import re
from collections.abc import Callable
from math import inf
from random import Random

from msgspec import structs

from pccl.core.fields import Identity, Label
from pccl.core.rights import Rights
from pccl.types import PeerId
from tests.simulation import callers, checkers, lanes, machines, pipes
from tests.simulation.faults import Havoc
from tests.simulation.habits import draw_name, draw_seesaw
from tests.simulation.hostile import HOSTILE_MAX, HostileHost
from tests.simulation.insider import ENTRANCES_MAX as INSIDERS_MAX
from tests.simulation.insider import Insider
from tests.simulation.ledger import Known, Ledger
from tests.simulation.machines import Place, Rank
from tests.simulation.master_host import NOTICED_S, MasterHost
from tests.simulation.network import TCP_GIVES_UP_S, Connection, Network
from tests.simulation.peer_host import PeerHost
from tests.simulation.people import LONG_THOUGHT_S, Person, Script, train, visit
from tests.simulation.plan import Plan
from tests.simulation.plane import Plane
from tests.simulation.reach import Reach
from tests.simulation.scheduler import Scheduler
from tests.simulation.trace import Trace
from tests.simulation.violation import Violation

SAMPLE_S = 2.5
"""How often the checkers look at those who wait: half of what they let pass."""

STEPS_AFTER_HEALING = 3
STEPS_MAX = 4_000
"""Events of a safety phase: about 40 ms of computing. A run of many peers ends earlier, not slower."""

RESETS = 0.3
"""How often a connection ends in a reset when a process is killed, where anything goes wrong by itself."""

_WORD = re.compile(r"[\w-]+")


class Theatre:
    """One run."""

    def __init__(
        self, plan: Plan, random: Random, trace: Trace, onlookers: tuple[type[checkers.Checker], ...] = ()
    ) -> None:
        self.plan = plan
        self.random = random
        self.trace = trace
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, random, plan.jitter_s, RESETS if plan.faults else 0.0)
        self.reach = Reach()
        self.ledger = Ledger()
        self.plane = Plane(self)
        self.audience = checkers.Audience([checker(self) for checker in (*checkers.ALL, *onlookers)])
        self._connections = 0
        self.machines = 0  # with several peers, that have come
        self.masters_made = 0
        self.master = self._make_master()
        """The one that runs, or the last that did."""
        self.master_for_good = False
        """There will be no other master."""
        self.power_lost_at = -inf
        """When the machine of a master was last gone without a word."""
        self.master_crashes: list[float] = []
        self.begun_anew = False
        """A run has begun while somebody of an earlier one was out of reach."""
        self.conspiracy = plan.hostile > 1 and Random(random.getstate()[1][0] + 1).random() < 0.5
        """The hostile peers come first, and tell the master of a run that never was. Drawn aside, as in `plan.draw`."""
        self.master_paused = False
        """A master has stood still."""
        self.peers: dict[PeerId, PeerHost] = {}
        """Processes that run, by identity."""
        self.hosts_by_name: dict[str, PeerHost] = {}
        self._controls: dict[int, tuple[PeerHost, Connection]] = {}
        """Control connections by number, and who dialled them."""
        self._numbers: dict[Connection, int] = {}
        self.rights: dict[int, Rights] = {}
        """Of control connections that have not all of them."""
        self.observers: set[int] = set()
        """Connections of those who only ask."""
        self.faults_done = 0
        self.computing_s = 0.0
        """Time in which at least one person computed."""
        self.acting = True
        """People may stray, think long and come back."""
        self.havoc = Havoc(self)
        self._thinking = 0
        self._thinking_since = 0.0
        self._goals: dict[PeerId, int] = {}

    # ── acts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def play(self) -> None:
        """Safety, progress, farewell. Raises `Violation`."""
        self._sample()
        for _ in range(self.plan.peers):
            self.scheduler.after(self.random.uniform(0.0, 2.0), self.enter)
        for _ in range(self.plan.visitors):
            self.scheduler.after(self.random.uniform(2.0, self.plan.safety_s), self._enter_visitor)
        for _ in range(self.plan.hostile):
            delay_s = self.random.choice((0.0, 2.0, 30.0)) * self.random.random()
            self.scheduler.after(0.0 if self.conspiracy else delay_s, self._enter_hostile)
        for number in range(self.plan.insiders):
            delay_s = Random(self.random.getstate()[1][0] + number).choice((0.0, 0.0, 3.0, 30.0))
            self.scheduler.after(delay_s, self._enter_insider)
        for number in range(self.plan.operators):
            self.scheduler.after(5.0 * (1 + number), callers.operate, self, Random(number))
        for number in range(self.plan.observers):
            self.scheduler.after(0.5 * number, callers.observe, self, Random(number))
        self.havoc.start()
        self.scheduler.run(self.plan.safety_s, lambda: self.scheduler.steps > STEPS_MAX)
        if self.plan.master_crashes:
            self.master_for_good = True
            self.master.dies_after = self.random.randrange(4)
            self.scheduler.run(self.scheduler.now + 5.0, lambda: self.master.gone)
            self.master.crash()
        self._enter_late()
        self._line("HEAL", "no more faults")
        self.acting = False
        self.havoc.heal()
        if not self.master_for_good:
            self._demand_progress()
        self._farewell()
        self.audience.tell("finished")

    def _demand_progress(self) -> None:
        self.faults_done += 1
        people = [host.person for host in self.peers.values() if host.person is not None]
        self._goals = {person.host.identity.peer: person.steps + STEPS_AFTER_HEALING for person in people}
        bound_s = 2 * self.wait_bound_s() + TCP_GIVES_UP_S + LONG_THOUGHT_S
        if not self.scheduler.run(self.scheduler.now + bound_s, self._progressed):
            late = [host.name for host in self.peers.values() if not self._reached_goal(host)]
            raise Violation("progress", f"{', '.join(late)} made no progress in {bound_s:.0f} s; {self.explain()}")

    def _progressed(self) -> bool:
        return all(self._reached_goal(host) for host in self.peers.values())

    def _reached_goal(self, host: PeerHost) -> bool:
        person = host.person
        if host.gone or host.frozen_for_good or host.hostile or person is None or machines.half(host):
            return True
        return person.steps >= self._goals.get(host.identity.peer, 0)

    def _farewell(self) -> None:
        for host in list(self.peers.values()):
            if host.frozen_for_good or host.hostile:
                host.crash()
            elif host.person is not None and (not self.master_for_good or self.random.random() < 0.5):
                self.scheduler.after(self.random.uniform(0.0, 3.0), host.person.leave)
        bound_s = self.wait_bound_s() + LONG_THOUGHT_S
        if not self.scheduler.run(self.scheduler.now + bound_s, lambda: not self.peers):
            names = ", ".join(host.name for host in self.peers.values())
            raise Violation("farewell", f"{names} did not get away in {bound_s:.0f} s; {self.explain()}")
        # Long enough for the master to hear of everybody, also over connections that lose bytes.
        self.scheduler.run(self.scheduler.now + TCP_GIVES_UP_S + 5.0, lambda: False)
        if not self.master.gone and self.explain():
            raise Violation("farewell", f"everybody has left, and the master says {self.explain()}")

    # ── entrances and exits ──────────────────────────────────────────────────────────────────────────────────────────

    def enter(self, address: Place | None = None, word: bytes | None = None, rank: Rank | None = None) -> str:
        """A new peer joins, perhaps where another was, with what it fetched, or of a machine; its name, or nothing if
        the run is full."""
        if len(self.peers) >= self.plan.peers_max or not self.acting or self.master_for_good:
            return ""
        if self.plan.parties and word is None and rank is None and self.random.random() < self.plan.parties:
            return machines.bring(self)
        identity, address = self._identity("p", address)
        identity = rank.fill(identity, self.plan) if rank else identity
        joined = self.place(PeerHost(self, identity, address, self._distance()))
        joined.word, joined.torn = word or joined.word, word is not None
        self.hire(joined)
        self._set_apart(identity.peer)
        return joined.name

    def _enter_visitor(self) -> None:
        """Somebody comes for the shared state, and may come again to stay."""
        if self.acting and not self.master.gone:
            identity, address = self._identity("v", None)
            identity = structs.replace(identity, visits=True)
            self.hire(self.place(PeerHost(self, identity, address, self._distance())), visit)
            self._set_apart(identity.peer)

    def _set_apart(self, peer: PeerId) -> None:
        """A newcomer may be behind NAT, and unable to reach some of the others."""
        if self.random.random() < self.plan.nat:
            self.reach.behind_nat.add(peer)
        for other in self.peers:
            if self.random.random() < self.plan.apart:
                caller, target = self.random.sample((peer, other), 2)
                self.reach.part(caller, target, self.random.random() < 0.5)
            self.reach.note_trouble(peer, other)

    def _enter_late(self) -> None:
        """Whoever comes at the last moment is a candidate after it, and must be let in or refused like others."""
        if self.random.random() < 0.5:
            self.enter()
        if self.plan.hostile and not self.master_for_good:
            late = HostileHost(self, *self._identity("h", None), self._distance())
            late.habits, late.slowness_s = draw_seesaw(self.random), 0.0
            self.place(late)

    def _enter_hostile(self) -> None:
        """A hostile peer comes, or comes back under another name."""
        entrances = sum(host.hostile for host in self.hosts_by_name.values())
        if self.acting and not self.master_for_good and entrances < HOSTILE_MAX:
            self.place(HostileHost(self, *self._identity("h", None), self._distance()))

    def _enter_insider(self, address: tuple[str, int] | None = None) -> None:
        """The same of one that keeps the form."""
        entrances = sum(isinstance(host, Insider) for host in self.hosts_by_name.values())
        if self.acting and not self.master_for_good and entrances < INSIDERS_MAX:
            self.place(Insider(self, *self._identity("h", address), self._distance()))

    def _identity(self, kind: str, address: tuple[str, int] | None) -> tuple[Identity, tuple[str, int]]:
        number = len(self.hosts_by_name) + 1
        peer = PeerId(f"{self.random.randrange(256):02x}-{kind}{number:04d}" + "0" * 24)
        group = self.random.randrange(self.plan.groups)
        host, port = address or (f"10.0.{number // 256}.{number % 256}", 40_000)
        announced = host if self.random.random() < 0.5 else ""
        label = Label(draw_name(kind, number), "sim", number, "0", f"of{number}")
        me = Identity(peer, group, announced, port, self.plan.lanes[group], secret=f"of {peer}", label=label)
        identity = machines.with_threads(pipes.with_lanes_max(me, self.plan.pipe), self.plan.threads)
        if self.plan.secured:
            sealed = "off" if Random(peer).random() < self.plan.unlike else "on"
            identity = structs.replace(identity, pin=lanes.pin_of(peer), lane_tls=sealed)
        return (machines.claim(self, identity) if kind == "h" else identity), (host, port)

    def _distance(self) -> float:
        return self.random.uniform(0.0, self.plan.distance_s)

    def hire(self, host: PeerHost, script: Callable[[Person], Script] = train) -> None:
        """Somebody trains at this peer."""
        host.person = Person(host, script)
        self.scheduler.after(self.random.uniform(0.0, 0.05), host.post, host.person.start)

    def place(self, host: PeerHost) -> PeerHost:
        """Start a peer's process, which dials the master."""
        self.peers[host.identity.peer] = self.hosts_by_name[host.name] = host
        self.reach.listen(host)
        self.dial_master(host, 2.0)
        return host

    def dial_master(self, host: PeerHost, timeout_s: float) -> None:
        """A peer dials the master."""
        way_s = self.network.delay(2 * host.distance_s)
        if host.identity.peer in self.havoc.parted or (self.master.gone and self.random.random() < 0.3):
            way_s = timeout_s  # Nobody answers, not even with a refusal.
        self.scheduler.after(way_s, self._connect, host, host.dials, timeout_s)

    def _connect(self, host: PeerHost, dial: int, timeout_s: float) -> None:
        if host.gone or host.dials != dial:
            return
        master = self.master
        if master.gone or host.identity.peer in self.havoc.parted:
            host.connected(None)
            return
        connection = Connection(self.network, host.distance_s)
        number = self._numbers[connection] = master.connected(connection, host.address[0])
        self._controls[number] = host, connection
        self.rights[number] = host.rights
        host.connected(connection)
        if host.gives_up_next:
            self.havoc.delay(host, connection)
        # The kernel answers for a master that stands still; its preamble comes only when it runs.
        master.post(self.scheduler.after, host.distance_s, connection.greet)
        self.scheduler.after(timeout_s, host.miss_greeting, connection)

    def rights_of(self, connection: int) -> Rights:
        """What a control connection may do."""
        return self.rights.get(connection, Rights.ALL)

    def next_connection(self) -> int:
        """A number for a control connection, whoever is the master."""
        self._connections += 1
        return self._connections

    def _make_master(self) -> MasterHost:
        master = MasterHost(self, self.masters_made)
        self.masters_made += 1
        self.ledger.known = master.known
        return master

    def run_begins(self) -> None:
        """A master has let newcomers in, and had nobody on its roster."""
        left = [host for host in self.peers.values() if host.core.accepted and not host.hostile]
        # No limit covers a first message to a restarted master that is held up, while newcomers wait there.
        held_up_since = self.scheduler.now - self.plan.master_limits.newborn_s
        sound = [host.name for host in left if not host.harms and host.held_up_at < held_up_since]
        if sound and not self._excuses_two_runs():
            raise Violation("nothing is lost", f"newcomers begin another run, and {', '.join(sound)} live")
        self.begun_anew = self.begun_anew or bool(left)

    def _excuses_two_runs(self) -> bool:
        """Newcomers who find no run begin one; and those whom a master has lost, all at once, or who noticed late that
        its machine was gone, come back after that. A hostile peer just begins."""
        if self.plan.enemies or self.begun_anew or self.scheduler.now - self.power_lost_at < 2 * NOTICED_S:
            return True
        return all(host.harms for host in self.peers.values() if host.core.accepted)

    def master_gone(self, master: MasterHost) -> None:
        """A master has crashed."""
        self._line(master.name, "the process has crashed")
        master.known.clear()
        self.ledger.forget_outcomes()
        self.master_crashes.append(self.scheduler.now)
        for host in self.peers.values():
            if host.frozen or host.identity.peer in self.havoc.parted:
                host.harms.append("out of reach when the master crashed")
        if self.havoc.on and self.plan.faults:
            self.scheduler.after(self.random.choice((0.05, 0.5, 2.0, 8.0, 20.0)), self.restart_master)

    def restart_master(self) -> None:
        """Another master where one was lost, with nothing but what peers tell it."""
        if not self.master.gone or self.master_for_good:
            return
        self.master = self._make_master()
        self._line(self.master.name, "another one starts")
        self.faults_done += 1

    def host_of(self, known: Known) -> PeerHost | None:
        """Who really is at the other end of a control connection, as long as that process runs."""
        host = self.process_of(known)
        return None if host is None or host.gone else host

    def process_of(self, known: Known) -> PeerHost | None:
        """Who dialled a control connection, gone or not; None for a copy, of which there is no process."""
        host, _ = self._controls.get(known.connection, (None, None))
        return host

    def number_of(self, host: PeerHost) -> int | None:
        """The number of the control connection that a peer uses."""
        return None if host.control is None else self._numbers.get(host.control)

    def given_up(self, known: Known) -> bool:
        """Whether the process at the other end listens to a later control connection, or to none."""
        host, control = self._controls[known.connection]
        return host.control is not control

    def host_ended(self, host: PeerHost) -> None:
        """A process has ended; its owner may start another one."""
        self._line(host.name, "the process has crashed" if host.crashed else "the process has ended")
        del self.peers[host.identity.peer]
        if host.person is not None:
            host.person.gone()
        if host.hostile:
            if isinstance(host, Insider):
                self.scheduler.after(self.random.uniform(0.0, 20.0), self._enter_insider, host.address)
            else:
                self.scheduler.after(self.random.uniform(0.0, 20.0), self._enter_hostile)
        elif self.acting and self.random.random() < self.plan.rejoin:
            address = host.address if self.random.random() < 0.5 else None
            word, rank = host.word if host.identity.visits else None, machines.rank_of(host)
            self.scheduler.after(self.random.uniform(0.0, 10.0), self.enter, address, word, rank)

    # ── the people ───────────────────────────────────────────────────────────────────────────────────────────────────

    def thinkers(self, change: int) -> None:
        """Somebody begins or ends to compute."""
        if self._thinking:
            self.computing_s += self.scheduler.now - self._thinking_since
        self._thinking += change
        self._thinking_since = self.scheduler.now

    # ── the checkers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _sample(self) -> None:
        self.thinkers(0)
        self.audience.tell("sampled")
        self.scheduler.after(SAMPLE_S, self._sample)

    def wait_bound_s(self) -> float:
        """The plan's, and the time that peers look for another master."""
        return self.plan.wait_bound_s + (self.plan.peer_limits.master_timeout_s if self.master_crashes else 0.0)

    def explain(self) -> tuple[str, ...]:
        """What the master says it waits for."""
        return self.master.core.explain()

    def named_in(self, text: str) -> set[PeerId]:
        """The peers that a sentence names."""
        return {self.hosts_by_name[word].identity.peer for word in _WORD.findall(text) if word in self.hosts_by_name}

    def standing_faults(self) -> int:
        """Faults that last: each may prolong a wait as often as a fresh one. Pairs that cannot dial each other are
        none: a ring goes around them, or they cost a peer its place, which is counted when it happens."""
        return sum(host.frozen for host in self.peers.values())

    def _line(self, who: str, text: str) -> None:
        if self.trace.on:
            self.trace.line(self.scheduler.now, who, text)
