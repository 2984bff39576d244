"""Schedules that aim at the hard places of recovery: `python -m tests.simulation.aimed --sample 200` plays some.

A small run of two or three peers is played again and again, each time with the same faults at another step of it.
Random faults seldom strike twice within the few milliseconds between a peer's report and its answer; these always do. A
schedule is named by its family, the run, the step and a variation, such as `late/trio/120/1`, and is played alone with
`--schedule late/trio/120/1 --trace`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from random import Random

from msgspec import structs

from pccl.core.peer.stages import PeerStage
from tests.simulation import machines
from tests.simulation.network import Connection
from tests.simulation.peer_host import PeerHost
from tests.simulation.plan import Plan, by_hand
from tests.simulation.runner import Verdict, verdict_of
from tests.simulation.theatre import Theatre
from tests.simulation.trace import Trace

RESTART_S = 0.3
"""Until another master is there."""
LATE_S = 1.5
"""A peer that comes back later than the others, and yet in time."""
CALM_S = 8.0

Script = Generator[Callable[[], bool], None, None]
"""What goes wrong: it waits for each of the conditions that it yields."""


def _plan(peers: int, **settings: object) -> Plan:
    return structs.replace(
        by_hand(),
        peers=peers,
        peers_max=peers,
        tags=2,
        think_s=0.3,
        run_s=0.2,
        strays=0.0,
        distance_s=0.02,
        safety_s=CALM_S,
        **settings,
    )


RUNS: dict[str, Plan] = {
    "pair": _plan(2),
    "sync": _plan(2, syncs=True, divergence=0.7),
    "trio": _plan(3, syncs=True, divergence=0.3),
    "slow": structs.replace(_plan(3, syncs=True, divergence=0.5), run_s=3.0, safety_s=20.0),
    "party": structs.replace(_plan(2), groups=2, lanes=(0, 0), parties=1.0, peers_max=4),
    "wide": structs.replace(_plan(3), tags=4, lanes=(4,), run_s=4.0, safety_s=20.0),
}


class Stage:
    """A run, and what can be done to it."""

    def __init__(self, run: str, variation: int, trace: Trace) -> None:
        self.random = Random(variation)
        self.theatre = Theatre(RUNS[run], Random(run), trace)
        self.scheduler = self.theatre.scheduler
        self.variation = variation

    def play(self, script: Script) -> None:
        """Play it all; the script goes on as soon as what it waits for has happened."""
        advance = self.scheduler.advance
        holds = next(script)

        def watched() -> bool:
            nonlocal holds
            happened = advance()
            while self.theatre.acting and holds():
                holds = next(script, _never)
            return happened

        self.scheduler.advance = watched  # type: ignore[method-assign]
        self.theatre.play()

    # ── conditions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self, number: int) -> Callable[[], bool]:
        """So much has happened, and all are accepted."""
        return lambda: self.scheduler.steps >= number and self._all_in()

    def _all_in(self) -> bool:
        hosts = self.theatre.peers.values()
        plan = self.theatre.plan
        return len(hosts) == plan.peers * (plan.groups if plan.parties else 1) and all(
            host.core.accepted for host in hosts
        )

    def after(self, steps: int) -> Callable[[], bool]:
        """So much more has happened."""
        number = self.scheduler.steps + steps
        return lambda: self.scheduler.steps >= number

    def reported(self, host: PeerHost) -> Callable[[], bool]:
        """The master has all that this peer reports, and still waits for others."""

        def holds() -> bool:
            known = self.theatre.ledger.find(host.identity.peer)
            return known is not None and known.told and known.topology is None

        return holds

    def unheard(self, host: PeerHost) -> Callable[[], bool]:
        """The master has taken this peer back, which does not know it yet."""

        def holds() -> bool:
            known = self.theatre.ledger.find(host.identity.peer)
            return known is not None and known.returned and host.core.stage is PeerStage.RETURNING

        return holds

    def transfers(self, nth: int) -> Callable[[], bool]:
        """So many steps have passed in which a transfer ran."""
        passed = 0

        def holds() -> bool:
            nonlocal passed
            passed += any(host.transfers for host in self.theatre.peers.values())
            return passed >= nth

        return holds

    # ── faults ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def host(self, place: int) -> PeerHost:
        """One of the peers, counted around."""
        hosts = list(self.theatre.peers.values())
        return hosts[place % len(hosts)]

    def cut(self, host: PeerHost) -> None:
        """A peer's connection to the master breaks."""
        self.theatre.faults_done += 1
        if host.control is not None:
            host.control.cut("reset by the network")

    def late(self, host: PeerHost) -> None:
        """The same, and what it sends on the next one arrives late."""
        host.gives_up_next = True
        self.cut(host)

    def restart(self, after_s: float = RESTART_S) -> None:
        """The master dies, and another one comes."""
        self.theatre.faults_done += 1
        self.theatre.master.crash()
        self.scheduler.after(after_s, self.theatre.restart_master)

    def part(self, host: PeerHost, seconds: float = LATE_S) -> None:
        """A peer cannot reach the master for a while."""
        self.theatre.havoc.parted[host.identity.peer] = None
        self.scheduler.after(seconds, self.theatre.havoc.parted.pop, host.identity.peer, None)

    def sever(self, host: PeerHost) -> None:
        """A link of this peer breaks."""
        self.theatre.faults_done += 1
        for connection in _link(host):
            connection.cut("reset by the network")
        self.theatre.reach.trouble(*self.theatre.peers)

    def kill(self, host: PeerHost) -> None:
        """A peer dies."""
        self.theatre.faults_done += 1
        host.harms.append("crash")
        host.crash()


def _never() -> bool:
    return False


def _link(host: PeerHost) -> list[Connection]:
    first = next(iter(host.lanes), None)
    return [] if first is None else [end.connection for key, end in host.lanes.items() if key[0] == first[0]]


# ── families ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _late(stage: Stage, step: int) -> Script:
    """A connection breaks, or the master is restarted; the next connection is given up, and its bytes arrive late."""
    yield stage.step(step)
    host = stage.host(step)
    if stage.variation == 0:
        stage.late(host)
    else:
        host.gives_up_next = True
        stage.restart()


def _again(stage: Stage, step: int) -> Script:
    """A restart; and a break when a peer has reported, one when it was taken back unheard, or another restart."""
    yield stage.step(step)
    host = stage.host(step)
    if stage.variation == 0:
        stage.part(stage.host(step + 1))
    stage.restart()
    yield stage.reported(host) if stage.variation == 0 else stage.unheard(host)
    if stage.variation == 2:
        stage.restart()
    stage.cut(host)


def _correct(stage: Stage, step: int) -> Script:
    """A peer has reported while another is missing; its link breaks, and its connection does before it could say so; or
    its connection breaks after it has sent more, or has more to send."""
    yield stage.step(step)
    host = stage.host(step)
    stage.part(stage.host(step + 1), 2.0)
    stage.restart()
    yield stage.reported(host)
    if stage.variation == 2:
        yield stage.after(1 + step % 40)
        stage.cut(host)
        return
    if stage.variation == 0:
        stage.cut(host)
        yield lambda: host.core.stage is PeerStage.AWAY
    stage.sever(host)


def _transfer(stage: Stage, step: int) -> Script:
    """A restart while a transfer runs, and a peer that comes late, so that the transfer ends unreported."""
    yield stage.transfers(step)
    if stage.variation < 2:
        stage.part(stage.host(stage.variation))
    stage.restart()
    if stage.variation == 2:
        host = stage.host(step)
        yield stage.reported(host)
        stage.cut(host)


def _silent(stage: Stage, step: int) -> Script:
    """All are without a master for a while, in which what runs ends and more is called; or one is missing."""
    yield stage.step(step)
    if stage.variation == 1:
        stage.part(stage.host(step), 3.0)
    stage.restart(RESTART_S if stage.variation else 2.0)


def _party(stage: Stage, step: int) -> Script:
    """A peer of a machine of two dies, or says goodbye, with the other or alone; or the master does, and one of them is
    lost meanwhile, or comes back late."""
    yield stage.step(step)
    host = stage.host(step)
    (mate,) = machines.mates(host)
    if stage.variation in (1, 2) and host.person and mate.person:
        host.person.leave()
        yield stage.after(1 + step % 30)
        if stage.variation == 1:
            mate.person.leave()
            return
    elif stage.variation == 3:
        stage.part(mate, 3.0 if step % 2 else LATE_S)
    elif stage.variation == 4:
        stage.cut(mate)
        yield stage.after(1 + step % 10)
    if stage.variation in (2, 3, 5):
        stage.restart()
    if stage.variation in (0, 4, 5):
        stage.kill(host)


def _mixed(stage: Stage, step: int) -> Script:
    """One to three faults of any kind, a few steps apart."""
    random = Random(f"{step} {stage.variation}")
    yield stage.step(random.randrange(20, 400))
    for _ in range(random.randint(1, 3)):
        if not stage.theatre.peers:
            return
        host, kind = stage.host(random.randrange(8)), random.randrange(6)
        if kind == 0:
            stage.cut(host)
        elif kind == 1:
            stage.late(host)
        elif kind == 2:
            stage.sever(host)
        elif kind == 3 and len(stage.theatre.peers) > 2:
            stage.kill(host)
        elif kind == 4 and not stage.theatre.master.gone:
            stage.theatre.master.dies_after = random.randrange(12)
            yield lambda: stage.theatre.master.gone
            stage.scheduler.after(RESTART_S, stage.theatre.restart_master)
        elif not stage.theatre.master.gone:
            stage.restart()
        yield stage.after(random.randint(1, 50))


FAMILIES: dict[str, tuple[Callable[[Stage, int], Script], tuple[str, ...], int, tuple[int, int, int]]] = {
    "late": (_late, ("pair", "sync", "trio"), 2, (60, 600, 1)),
    "again": (_again, ("pair", "sync", "trio"), 3, (60, 600, 1)),
    "correct": (_correct, ("pair", "trio", "wide"), 3, (60, 600, 2)),
    "transfer": (_transfer, ("sync", "trio", "slow"), 3, (1, 50, 1)),
    "silent": (_silent, ("pair", "trio", "wide"), 2, (60, 600, 2)),
    "party": (_party, ("party",), 6, (60, 600, 1)),
    "mixed": (_mixed, ("pair", "sync", "trio"), 3, (0, 350, 1)),
}
"""By name: the script, the runs it is played in, its variations, and the steps (from, to, every)."""

STEPS = {"pair": 350, "sync": 440, "trio": 590, "slow": 450, "wide": 530, "party": 530}
"""Of each run, when nothing goes wrong, until it ends."""


def names(family: str) -> Iterator[str]:
    """All schedules of a family."""
    _, runs, variations, steps = FAMILIES[family]
    for run in runs:
        for step in range(steps[0], min(steps[1], STEPS[run]), steps[2]):
            yield from (f"{family}/{run}/{step}/{variation}" for variation in range(variations))


def sample(count: int, seed: int, families: tuple[str, ...] = tuple(FAMILIES)) -> list[str]:
    """So many schedules, drawn from all families alike; all there are if that is fewer."""
    random, chosen = Random(seed), []
    for family in families:
        there = list(names(family))
        chosen += random.sample(there, min(len(there), max(1, count // len(families))))
    return chosen


def play(name: str, show: Callable[[str], object] | None = None) -> Verdict:
    """Play one schedule."""
    family, run, step, variation = name.split("/")
    stage = Stage(run, int(variation), Trace(show))
    script = FAMILIES[family][0](stage, int(step))
    return verdict_of(name, stage.theatre, lambda: stage.play(script))


def main() -> int:
    """Parse the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.aimed", description=__doc__)
    parser.add_argument("--schedule", help="play this one alone")
    parser.add_argument("--trace", action="store_true", help="tell what happens, line by line")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="play these families only")
    parser.add_argument("--sample", type=int, default=0, help="play about so many of them; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="for the sample")
    parser.add_argument("--jobs", type=int, default=2, help="processes to use")
    arguments = parser.parse_args()
    if arguments.schedule:
        verdict = play(arguments.schedule, print if arguments.trace else None)
        print(verdict if verdict.failure else f"{verdict.name}: {verdict.events} events, all well")
        return bool(verdict.failure)
    families = tuple(arguments.family or FAMILIES)
    chosen = sample(arguments.sample or sys.maxsize, arguments.seed, families)
    began, failed = time.monotonic(), 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for verdict in pool.map(play, chosen, chunksize=8):
            failed += bool(verdict.failure)
            if verdict.failure and failed <= 10:
                print(verdict, flush=True)
    print(f"{len(chosen)} schedules, {time.monotonic() - began:.0f} s; {failed} failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
