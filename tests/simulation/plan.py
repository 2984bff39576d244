"""What one seed decides: every probability and size of a run is drawn from it, so that runs differ in kind.

A run with few faults of one sort finds other mistakes than one with all of them at once, so most faults are absent
from most runs.
"""

from enum import Enum
from random import Random

from msgspec import Struct, structs

from pccl.core.limits import MasterLimits, PeerLimits
from tests.simulation import pipes
from tests.simulation.network import TCP_GIVES_UP_S
from tests.simulation.pipes import Pipe

PEERS_MAX = 16

FAULTS: dict[str, float] = {
    "crash": 1.0,
    "crash_between_effects": 1.0,
    "freeze": 0.7,
    "slow": 0.5,
    "cut_control": 0.7,
    "lose_control": 0.5,
    "cut_lane": 1.0,
    "lose_lane": 0.3,
    "block_pair": 0.7,
    "goodbye": 0.5,
    "join": 2.0,
    "pause_master": 0.3,
    "crash_master": 0.4,
    "part_from_master": 0.5,
    "part_peers": 0.4,
}
"""How often each fault strikes where it is present at all, relative to the others."""


class Style(Enum):
    """What the people of a run do, the same for all of them: PCCL's documented loops."""

    UPDATE = "update_topology in every step"
    ASK_FIRST = "are_peers_pending in every step, update_topology if so"
    OVERLAP = "are_peers_pending while the collectives run, update_topology if so"


class Plan(Struct, frozen=True, kw_only=True):
    """One run."""

    peers: int
    peers_max: int
    groups: int
    parties: float
    """Probability that a machine which comes has several peers, each in another group; if it is 1, all of these
    come, and at once."""
    lanes: tuple[int, ...]
    """Asked for by the peers of each group; 0 leaves it to the master."""
    tags: int
    short_tags: int
    """0: the even tags are those of tensors that are short enough to travel with the votes; 1: the odd ones."""
    style: Style
    syncs: bool
    """A shared state is synced in every step."""
    divergence: float
    """Probability per step that a peer computes something else than the others."""
    checkpoints: float
    """Probability that a peer comes with the state of an earlier run."""
    timeouts: float
    """Probability that a call of a collective has only a little time for it to start."""
    visitors: int
    """Peers that fetch the shared state before they join."""
    secured: bool
    """Links have keys, and peers pins: a lane is offered to a core only if its hello proves the key."""
    unlike: float
    """Probability that a peer of such a run leaves its lanes in the clear, and others do not."""
    observers: int
    """Programs that ask the master for its status, again and again."""
    operators: int
    """People who put peers out by hand; some of them have no right to."""
    strays: float
    """Probability per step that a person does something else than the others."""
    distance_s: float
    """Largest one-way delay between a peer and the middle of the network."""
    jitter_s: float
    think_s: float
    long_thought: float
    """Probability that a thought takes much longer than every limit."""
    run_s: float
    run_failure: float
    pipe: Pipe | None = None
    """What limits the bytes between peers, as their kernels tell; None if they do not tell."""
    threads: int = 1
    """The most that a peer has for a collective; where it is more than one, tensors are long."""
    wrong_results: float
    """Probability that a peer ends a run with another result than the others: its memory is bad, or a neighbour sent
    it something else."""
    lane_lost_by_abort: float
    nat: float
    apart: float
    """Probability that of two peers one cannot dial the other, or neither can."""
    black_holes: float
    """Probability that a dial which is not let through gets no answer instead of a refusal."""
    refused_at_once: float
    """Probability that a refusal comes from nearby, long before the other end could answer anything."""
    hostile: int
    """Peers that keep no rule."""
    insiders: int
    """Peers that keep the form of every rule, and do harm within it."""
    rejoin: float
    faults: dict[str, float]
    fault_every_s: float
    master_crashes: bool
    """It crashes in the end, for good."""
    safety_s: float
    master_limits: MasterLimits
    peer_limits: PeerLimits

    @property
    def enemies(self) -> int:
        """Of both kinds."""
        return self.hostile + self.insiders

    @property
    def wait_bound_s(self) -> float:
        """A wait that no fault prolongs ends within this: the slowest way in which one fault is noticed and repaired.

        Silence limits count from the last sign of life and are checked at intervals, hence twice; a link is tried
        from both ends; what the protocol does not notice the kernels do.
        """
        silence = 2 * max(self.master_limits.silence_s, self.peer_limits.master_silence_s)
        links = 4 * self.master_limits.link_timeout_s + 2 * self.master_limits.redial_s
        return max(silence + links, TCP_GIVES_UP_S) + 20 * self.distance_s + self.run_s + 10.0


def draw(random: Random) -> Plan:
    """The plan of a seed."""
    plan = _settled(random) if random.random() < 0.15 else _troubled(random)
    # Drawn aside, so that seeds without visitors and interrupts stay the runs that they were.
    aside = Random(random.getstate()[1][0])
    plan = structs.replace(plan, visitors=aside.choice((0, 0, 1, 2, 4)) if plan.syncs else 0)
    plan = structs.replace(plan, timeouts=Random(random.getstate()[1][0] + 2).choice((0.0, 0.0, 0.2, 0.6)))
    plan = structs.replace(plan, observers=Random(random.getstate()[1][0] + 3).choice((0, 0, 0, 1, 3)))
    plan = structs.replace(plan, wrong_results=Random(random.getstate()[1][0] + 4).choice((0.0, 0.0, 0.0, 0.02, 0.1)))
    plan = structs.replace(plan, operators=Random(random.getstate()[1][0] + 6).choice((0, 0, 0, 0, 1, 2)))
    if Random(random.getstate()[1][0] + 7).random() < 0.2:
        plan = structs.replace(plan, master_limits=structs.replace(plan.master_limits, vote_timeout_s=30.0))
    if not plan.hostile:
        plan = _with_insiders(plan, Random(random.getstate()[1][0] + 8))
    # Where pairs cannot reach each other for long, a run stands still until one of them is put out.
    lasting = plan.nat or plan.apart or _LASTING & plan.faults.keys()
    limits = structs.replace(plan.master_limits, undecided_s=plan.master_limits.silence_s if lasting else 0.0)
    plan = structs.replace(plan, master_limits=limits)
    plan = structs.replace(plan, pipe=pipes.draw(Random(random.getstate()[1][0] + 14)))
    if plan.pipe is not None:
        # Long enough to see what comes of a number, and that it comes to rest.
        plan = structs.replace(plan, run_s=max(plan.run_s, pipes.WORK_S), safety_s=max(plan.safety_s, 100.0))
        if Random(random.getstate()[1][0] + 15).random() < 0.5:
            plan = _calm(plan)
    plan = structs.replace(plan, threads=Random(random.getstate()[1][0] + 16).choice((1, 1, 1, 2, 8)))
    plan = structs.replace(plan, secured=Random(random.getstate()[1][0] + 9).random() < 0.5)
    if plan.secured:
        plan = structs.replace(plan, unlike=Random(random.getstate()[1][0] + 10).choice((0.0, 0.0, 0.0, 0.1, 0.4)))
    if plan.groups > 1:
        plan = structs.replace(plan, parties=Random(random.getstate()[1][0] + 12).choice((0.0, 0.0, 0.0, 0.3, 0.8)))
    if plan.strays and plan.faults and aside.random() < 0.35:
        # Whoever interrupts a sync may vote once more than the others, so this is for people who get out of step.
        plan = structs.replace(plan, faults={**plan.faults, "interrupt": 1.5})
    # Aside once more, for the same reason.
    aside = Random(random.getstate()[1][1])
    if {"cut_control", "crash_master"} & plan.faults.keys() and aside.random() < 0.3:
        return structs.replace(plan, faults={**plan.faults, "late_bytes": 1.5})
    return plan


def draw_hostile(random: Random) -> Plan:
    """The plan of the same seed, with at least one enemy: of those who keep no rule, or of those who have a token."""
    plan = draw(random)
    if plan.enemies:
        return plan
    aside = Random(random.getstate()[1][0] + 11)
    if aside.random() < 0.4:
        return structs.replace(plan, insiders=aside.choice((1, 1, 2, 3)))
    # A hostile candidate must be seen to hold nobody up, as in `_troubled`.
    return structs.replace(plan, hostile=aside.choice((1, 1, 2, 3)), safety_s=aside.choice((60.0, 150.0, 400.0)))


def with_parties(plan: Plan, random: Random) -> Plan:
    """The same, where most machines have several peers."""
    aside = Random(random.getstate()[1][0] + 13)
    groups = max(plan.groups, aside.choice((2, 2, 3)))
    lanes = (*plan.lanes, *(0 for _ in range(groups - plan.groups)))
    peers = max(1, plan.peers // 2)
    return structs.replace(plan, groups=groups, lanes=lanes, peers=peers, parties=aside.choice((0.3, 0.8, 0.95)))


def _calm(plan: Plan) -> Plan:
    """Little else happens than collectives: what comes of the number of lanes shows over many of them."""
    return structs.replace(
        plan,
        peers=max(2, min(plan.peers, 4)),
        peers_max=max(2, min(plan.peers_max, 5)),
        groups=1,
        lanes=(0,),
        tags=1,
        short_tags=1,
        faults={},
        hostile=0,
        insiders=0,
        visitors=0,
        divergence=0.0,
        timeouts=0.0,
        strays=0.0,
        wrong_results=0.0,
        run_failure=0.0,
        long_thought=0.0,
        think_s=min(plan.think_s, 0.5),
        safety_s=200.0,
    )


_LASTING = {"block_pair", "part_peers", "lose_lane"}
"""Faults by which two peers may not reach each other for long."""


def _with_insiders(plan: Plan, random: Random) -> Plan:
    insiders = random.choice((0, 0, 0, 0, 1, 1, 2))
    if not insiders or random.random() < 0.4:
        return structs.replace(plan, insiders=insiders)
    # What they do to links shows best where all others can reach each other.
    faults = {name: weight for name, weight in plan.faults.items() if name not in _LASTING}
    safety_s = max(plan.safety_s, 3 * plan.master_limits.silence_s)
    return structs.replace(plan, insiders=insiders, nat=0.0, apart=0.0, faults=faults, safety_s=safety_s)


def _settled(random: Random) -> Plan:
    """Many peers of one group of which some can never reach each other, while little else goes wrong."""
    peers = random.choice((5, 6, 7, 8, 10))
    return structs.replace(
        _troubled(random),
        peers=peers,
        peers_max=peers + random.choice((1, 2, 4)),
        groups=1,
        nat=random.choice((0.0, 0.2, 0.3)),
        apart=random.choice((0.1, 0.2, 0.3)),
        black_holes=random.choice((0.0, 0.5)),
        hostile=0,
        # Even delays: where the same thing comes first again and again, no luck helps out.
        distance_s=random.choice((0.005, 0.15)),
        jitter_s=random.choice((0.0001, 0.05)),
        faults=random.choice(({}, {"crash": 1.0, "join": 2.0})),
        fault_every_s=10.0,
        safety_s=random.choice((20.0, 60.0)),
    )


def _troubled(random: Random) -> Plan:
    """Anything."""
    peers_max = random.choice((2, 3, 3, 4, 4, 5, 6, 8, 12, PEERS_MAX))
    groups = random.choice((1, 1, 1, 2, 3))
    present = {name: weight for name, weight in FAULTS.items() if random.random() < 0.4}
    quiet = random.random() < 0.1
    hostile = random.choice((0, 0, 0, 0, 0, 1, 1, 2))
    if hostile and random.random() < 0.3:
        # What a hostile peer does alone shows best where nothing else goes wrong.
        quiet = True
    return Plan(
        peers=random.randint(1, peers_max),
        peers_max=peers_max,
        groups=groups,
        parties=0.0,
        lanes=tuple(random.choice((0, 0, 1, 2, 3)) for _ in range(groups)),
        tags=random.choice((1, 1, 2, 3, 6)),
        short_tags=random.choice((0, 1)),
        style=random.choice(list(Style)),
        syncs=random.random() < 0.5,
        divergence=random.choice((0.0, 0.0, 0.2)),
        checkpoints=random.choice((0.0, 0.3)),
        timeouts=0.0,
        visitors=0,
        secured=False,
        unlike=0.0,
        observers=0,
        operators=0,
        strays=random.choice((0.0, 0.0, 0.0, 0.1)),
        distance_s=random.choice((0.0002, 0.005, 0.05, 0.15)),
        jitter_s=random.choice((0.0001, 0.005, 0.05)),
        think_s=random.choice((0.5, 2.0, 5.0)),
        long_thought=random.choice((0.0, 0.0, 0.02)),
        run_s=random.choice((0.05, 0.5, 3.0)),
        run_failure=random.choice((0.0, 0.0, 0.02)),
        wrong_results=0.0,
        lane_lost_by_abort=random.choice((0.0, 0.3, 1.0)),
        nat=random.choice((0.0, 0.0, 0.2, 0.5)),
        apart=0.0,
        black_holes=random.choice((0.0, 0.5, 1.0)),
        refused_at_once=random.choice((0.0, 0.5, 1.0)),
        hostile=hostile,
        insiders=0,
        rejoin=random.choice((0.0, 0.5, 1.0)),
        faults={} if quiet else {**present, "join": FAULTS["join"]},
        fault_every_s=random.choice((0.3, 1.0, 3.0, 10.0)),
        # Another number was drawn after this one once; it still is, so that seeds keep their plans.
        master_crashes=(random.random(), random.random())[0] < 0.05,
        # A hostile candidate must be seen to hold nobody up, which takes longer than the longest honest wait.
        safety_s=random.choice((60.0, 150.0, 400.0) if hostile else (20.0, 60.0, 150.0)),
        master_limits=_master_limits(random),
        peer_limits=PeerLimits(
            master_silence_s=random.choice((40.0, 60.0)), master_timeout_s=random.choice((120.0, 200.0))
        ),
    )


def by_hand() -> Plan:
    """The plan of a scenario: ten milliseconds from anybody to anybody, and nothing happens by itself."""
    return Plan(
        peers=0,
        peers_max=PEERS_MAX,
        groups=1,
        parties=0.0,
        lanes=(0,),
        tags=0,
        short_tags=0,
        style=Style.UPDATE,
        syncs=False,
        divergence=0.0,
        checkpoints=0.0,
        timeouts=0.0,
        visitors=0,
        secured=False,
        unlike=0.0,
        observers=0,
        operators=0,
        strays=1.0,
        distance_s=0.0,
        jitter_s=0.0,
        think_s=0.0,
        long_thought=0.0,
        run_s=0.0,
        run_failure=0.0,
        wrong_results=0.0,
        lane_lost_by_abort=0.0,
        nat=0.0,
        apart=0.0,
        black_holes=0.0,
        refused_at_once=0.0,
        hostile=0,
        insiders=0,
        rejoin=0.0,
        faults={},
        fault_every_s=1.0,
        master_crashes=False,
        safety_s=0.0,
        master_limits=MasterLimits(default_lanes=1, mesh_peers_max=0),
        peer_limits=PeerLimits(),
    )


def _master_limits(random: Random) -> MasterLimits:
    return MasterLimits(
        silence_s=random.choice((15.0, 30.0, 60.0)),
        default_lanes=random.choice((1, 2, 4)),
        mesh_peers_max=random.choice((0, 3, 8, 8)),
    )
