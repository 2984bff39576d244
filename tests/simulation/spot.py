"""`python -m tests.simulation.spot`: hours of training on spot instances, in virtual time, with the real cores.

Owns the run of peers that are taken away and replaced, its table, and what a run that restarts from checkpoints would
have made of the same hours. The steps of training, its all-reduce and the pull of the state take the time that they are
told to take; all else (votes, rings, links, elections) happens as in every simulated run, and all checkers look on.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from msgspec import Struct, structs

from pccl.core.effects.peer_events import UpdateTopology, WaitAccepted
from pccl.core.limits import MasterLimits
from tests.simulation.peer_host import PeerHost
from tests.simulation.people import Person, Script, Think, _ask, _collectives, _learn, _renew, _sync
from tests.simulation.plan import Plan, Style, by_hand
from tests.simulation.plane import Plane
from tests.simulation.restarts import Restarts
from tests.simulation.spot_plot import Curve, draw_plot
from tests.simulation.theatre import Theatre
from tests.simulation.trace import Trace

HOUR_S = 3600.0

GATHER_S = 600.0
"""By then all peers must have found together."""

UNEVEN = 0.02
"""No two machines compute equally fast: a step takes so much longer or shorter than stated."""

FRESH = b"fresh weights   "

INTERVALS_MIN = (5.0, 10.0, 30.0)
"""Minutes between two checkpoints of the runs that it is compared with; the second is drawn."""


class Spot(Struct, frozen=True, kw_only=True):
    """What is asked for."""

    peers: int = 50
    hours: float = 8.0
    losses_per_hour: int = 2
    compute_s: float = 30.0
    reduce_s: float = 10.0
    pull_s: float = 60.0
    """A newcomer pulls the shared state for so long, and all others wait for it."""
    replace_s: float = 180.0
    """Until a new machine is there in place of one that was taken away."""
    distance_s: float = 0.04
    """From anybody to the middle of the network, so twice as much to anybody else."""
    seed: int = 1

    @property
    def step_s(self) -> float:
        """A step without any overhead."""
        return self.compute_s + self.reduce_s

    @property
    def seconds(self) -> float:
        return self.hours * HOUR_S

    def plan(self) -> Plan:
        """Nothing happens by itself."""
        return structs.replace(
            by_hand(),
            peers=self.peers,
            peers_max=2 * self.peers,
            tags=1,
            short_tags=1,
            style=Style.ASK_FIRST,
            syncs=True,
            strays=0.0,
            distance_s=self.distance_s,
            jitter_s=0.002,
            # Whoever waits for the others' bytes waits for the longer of the two.
            run_s=max(self.reduce_s, self.pull_s),
            lane_lost_by_abort=0.5,
            master_limits=MasterLimits(),  # the defaults
        )

    def losses(self) -> list[float]:
        """When machines are taken away: so many in every hour, at random moments of it."""
        random = Random(f"losses/{self.seed}")
        hours = range(int(self.hours))
        drawn = [HOUR_S * (hour + random.random()) for hour in hours for _ in range(self.losses_per_hour)]
        return sorted(drawn)


class SpotPlane(Plane):
    """Bytes take as long as was stated."""

    spot: Spot

    def run_s(self) -> float:
        return self.spot.reduce_s

    def pull_s(self) -> float:
        return self.spot.pull_s


class SpotTheatre(Theatre):
    """The run."""

    def __init__(self, spot: Spot) -> None:
        super().__init__(spot.plan(), Random(spot.seed), Trace(None))
        self.spot = spot
        self.plane = SpotPlane(self)
        self.plane.spot = spot
        self.began_at: float | None = None
        self.taken = 0
        self.lost = 0
        """Ended although nobody had taken them away."""
        self.steps: list[float] = []
        """When each step ended, wherever it ended first."""
        self.sizes: list[tuple[float, int]] = []
        """How many were in the run, whenever that changed."""

    def hire(self, host: PeerHost, script: Callable[[Person], Script] | None = None) -> None:
        host.word = FRESH  # All begin with the weights that the seed of the model gives.
        super().hire(host, script or work)

    def play(self) -> None:
        """From the moment at which all are there. Raises `Violation`."""
        self._sample()
        for _ in range(self.spot.peers):
            self.enter()
        if not self.scheduler.run(GATHER_S, lambda: self.began_at is not None):
            raise TimeoutError(f"the peers did not find together in {GATHER_S:g} s: {self.explain()}")
        assert self.began_at is not None
        for seconds in self.spot.losses():
            self.scheduler.at(self.began_at + seconds, self._take_away)
        self.scheduler.run(self.began_at + self.spot.seconds, lambda: False)
        self._note_size()
        self.lost = len(self.hosts_by_name) - self.taken - len(self.peers)
        self.acting = False
        self._farewell()
        self.audience.tell("finished")

    @property
    def elapsed_s(self) -> float:
        return self.scheduler.now - (self.began_at or 0.0)

    def begin(self) -> None:
        """All are there: the clock begins to run."""
        if self.began_at is None:
            self.began_at = self.scheduler.now
            self._note_size()

    def stepped(self, person: Person) -> None:
        """Somebody has done a step. One that ends while all say goodbye comes too late."""
        if self.acting and person.host.revision > len(self.steps):
            self.steps.append(self.elapsed_s)
            self._note_size()

    def _note_size(self) -> None:
        size = sum(1 for _ in self.ledger.accepted())
        if not self.sizes or self.sizes[-1][1] != size:
            self.sizes.append((self.elapsed_s, size))

    def _take_away(self) -> None:
        host = self.random.choice(list(self.peers.values()))
        host.harms.append("crash")
        self.faults_done += 1
        self.taken += 1
        host.crash()
        self._note_size()
        self.scheduler.after(self.spot.replace_s, self.enter)


def work(person: Person) -> Script:
    """Gather, then step after step as the README has it: sync the shared state, compute, reduce, let in who waits."""
    theatre = person.theatre
    assert isinstance(theatre, SpotTheatre)
    yield from _ask(WaitAccepted())
    while theatre.began_at is None and len(person.host.core.ring) < theatre.spot.peers:
        yield from _ask(UpdateTopology())
    theatre.begin()
    while True:
        yield from _sync(person)
        yield Think(theatre.spot.compute_s * theatre.random.uniform(1.0 - UNEVEN, 1.0))
        yield from _collectives(person)
        _learn(person)
        theatre.stepped(person)
        person.steps += 1
        yield from _renew(person, False)


# ── the story told ───────────────────────────────────────────────────────────────────────────────────────────────────


def table(spot: Spot, theatre: SpotTheatre, restarts: dict[float, Restarts]) -> list[str]:
    """Rows of Markdown."""
    taken = len(spot.losses())
    rows = [
        "| | restarts | steps done | share of time spent training |",
        "| --- | --- | --- | --- |",
        f"| peers that go on ({taken} taken away and replaced) | 0 | {len(theatre.steps):,} "
        f"| {_share(spot, len(theatre.steps))} |",
    ]
    for minutes, run in restarts.items():
        rows.append(
            f"| restarts, checkpoints every {minutes:g} min | {run.restarts} | {run.steps:,} "
            f"| {_share(spot, run.steps)} |"
        )
    return rows


def _share(spot: Spot, steps: int) -> str:
    return f"{100 * steps * spot.step_s / spot.seconds:.1f} %"


def curves(spot: Spot, theatre: SpotTheatre, restarts: Restarts) -> list[Curve]:
    """What the plot shows above: steps that count, against hours."""
    ideal = [(0.0, 0.0), (spot.hours, spot.seconds / spot.step_s)]
    ours = [(at / HOUR_S, float(number)) for number, at in enumerate(theatre.steps, 1)]
    return [
        Curve("no losses, no overhead", "ideal", ideal),
        Curve("peers that go on", "ours", [(0.0, 0.0), *ours]),
        Curve("restarts from checkpoints", "other", [(at / HOUR_S, steps) for at, steps in restarts.curve]),
    ]


def main() -> int:
    """Play it, tell it, draw it."""
    spot, chosen = _parse()
    restarts = {
        minutes: Restarts.play(spot.losses(), spot.seconds, spot.step_s, (60.0 * minutes, chosen.restart))
        for minutes in INTERVALS_MIN
    }
    begun = time.monotonic()
    theatre = SpotTheatre(spot)
    theatre.play()
    print("\n".join(table(spot, theatre, restarts)))
    print(
        f"\n{theatre.taken} peers taken away and replaced, {theatre.lost} lost otherwise, none restarted; "
        f"{theatre.scheduler.steps:,} events in {time.monotonic() - begun:.0f} s, all checkers content"
    )
    if chosen.plot is not None:
        sizes = [(at / HOUR_S, float(size)) for at, size in theatre.sizes]
        lines = curves(spot, theatre, restarts[INTERVALS_MIN[1]])
        chosen.plot.write_text(draw_plot(lines, Curve("peers in the run", "ours", sizes), spot.hours))
        print(f"drawn: {chosen.plot}")
    return 1 if theatre.lost else 0


def _parse() -> tuple[Spot, argparse.Namespace]:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.spot", description=__doc__.splitlines()[0])
    usual = Spot()
    wishes: list[tuple[str, Callable[[str], object], str]] = [
        ("peers", int, "machines"),
        ("hours", float, "how long"),
        ("losses_per_hour", int, "machines taken away"),
        ("compute_s", float, "seconds of computing in a step"),
        ("reduce_s", float, "seconds of its all-reduce"),
        ("pull_s", float, "seconds for a newcomer to pull the state"),
        ("replace_s", float, "seconds until a machine is replaced"),
        ("seed", int, "of the losses and all else"),
    ]
    for name, kind, words in wishes:
        option = f"--{name.removesuffix('_s').replace('_', '-')}"
        default = getattr(usual, name)
        parser.add_argument(option, dest=name, type=kind, default=default, help=f"{words} ({default:g})")
    parser.add_argument(
        "--restart", type=float, default=300.0, help="seconds that each restart of the other run takes (%(default)g)"
    )
    parser.add_argument("--plot", type=Path, help="where to draw it (SVG)")
    chosen = parser.parse_args()
    return Spot(**{name: getattr(chosen, name) for name, _, _ in wishes}), chosen


if __name__ == "__main__":
    sys.exit(main())
