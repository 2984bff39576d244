"""Plays seeds, one or many, and says how a failure can be played again."""

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

from msgspec import Struct

from tests.simulation.plan import draw, draw_hostile, with_parties
from tests.simulation.theatre import Theatre
from tests.simulation.trace import Trace
from tests.simulation.violation import Violation

SEEDS_FILE = Path(__file__).parent / "seeds.txt"

CHUNK = 25
"""Seeds per task: a few seconds of work, so that both cores are busy to the end."""


class Verdict(Struct, frozen=True):
    """How a seed or an aimed schedule went; `failure` is empty if well."""

    name: str
    checker: str
    """The one that noticed; empty if all is well, or if it was none: a core that raises is a finding, too."""
    failure: str
    digest: str
    events: int

    def __str__(self) -> str:
        replay = "tests.simulation.aimed --schedule" if "/" in self.name else "tests.simulation --seed"
        return f"{self.name}: {self.failure}\n  replay: python -m {replay} {self.name} --trace"


def play(
    seed: int, show: Callable[[str], object] | None = None, hostile: bool = False, parties: bool = False
) -> Verdict:
    """Play one seed; with enemies, or with machines of several peers, in any case, if that is wanted."""
    random = Random(seed)
    trace = Trace(show)
    plan = draw_hostile(random) if hostile else draw(random)
    theatre = Theatre(with_parties(plan, random) if parties else plan, random, trace)
    if show is not None:
        show(f"seed {seed}: {theatre.plan}")
    name = f"{seed}{' --hostile' if hostile else ''}{' --parties' if parties else ''}"
    return verdict_of(name, theatre, theatre.play)


def verdict_of(name: str, theatre: Theatre, play: Callable[[], object]) -> Verdict:
    """Play, and say how it went."""
    checker = failure = ""
    try:
        play()
    except Violation as violation:
        checker, failure = violation.checker, str(violation)
    except Exception as error:
        # A core that raises is a finding like any other; the trace of the error tells where.
        failure = "".join(traceback.format_exception(error)[-4:])
    return Verdict(name, checker, failure, theatre.trace.digest(), theatre.scheduler.steps)


def play_all(seeds: Iterable[int], jobs: int, hostile: bool = False, parties: bool = False) -> Iterator[Verdict]:
    """Play many seeds on several cores, in order."""
    play_some = partial(_play_some, hostile, parties)
    if jobs == 1:
        yield from play_some(seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for verdicts in pool.map(play_some, _chunks(seeds)):
            yield from verdicts


def _play_some(hostile: bool, parties: bool, seeds: Iterable[int]) -> list[Verdict]:
    return [play(seed, hostile=hostile, parties=parties) for seed in seeds]


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(seeds)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def kept_seeds() -> list[int]:
    """Seeds that found something once."""
    lines = (line.partition("#")[0].strip() for line in SEEDS_FILE.read_text().splitlines())
    return [int(line) for line in lines if line]


def summary(failures: list[Verdict]) -> str:
    """Failures by checker."""
    counts = Counter(verdict.checker or "exception" for verdict in failures)
    return ", ".join(f"{checker}: {count}" for checker, count in counts.most_common())
