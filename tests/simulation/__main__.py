"""`python -m tests.simulation --seeds 2000 --jobs 2` plays many seeds, `--seed 7 --trace` one of them, line by line."""

import argparse
import sys
import time
from collections.abc import Callable

from tests.simulation.runner import Verdict, kept_seeds, play, play_all, summary

FAILURES_SHOWN = 10


def main() -> int:
    """Parse the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Simulate master and peers.")
    parser.add_argument("--seed", type=int, help="play this seed alone")
    parser.add_argument("--trace", action="store_true", help="tell what happens, line by line")
    parser.add_argument("--digest", action="store_true", help="print only the hash of the trace")
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes to use")
    parser.add_argument(
        "--hostile", action="store_true", help="every seed has enemies: hostile peers, or token holders"
    )
    parser.add_argument("--parties", action="store_true", help="most machines have several peers, each a party")
    parser.add_argument("--rewrite", action="store_true", help="write what the scenarios do now into their files")
    arguments = parser.parse_args()
    if arguments.rewrite:
        from tests.simulation.scenario import rewrite_all

        rewrite_all()
        return 0
    if arguments.seed is not None:
        show = print if arguments.trace else (lambda line: None) if arguments.digest else None
        return _one(arguments.seed, show, arguments.digest, arguments.hostile, arguments.parties)
    return _many(
        range(arguments.first, arguments.first + arguments.seeds), arguments.jobs, arguments.hostile, arguments.parties
    )


def _one(seed: int, show: Callable[[str], object] | None, digest: bool, hostile: bool, parties: bool) -> int:
    verdict = play(seed, show, hostile, parties)
    print(
        verdict.digest if digest else verdict if verdict.failure else f"seed {seed}: {verdict.events} events, all well"
    )
    return bool(verdict.failure)


def _many(seeds: range, jobs: int, hostile: bool, parties: bool) -> int:
    begun = time.monotonic()
    failures: list[Verdict] = []
    events = 0
    for verdict in play_all([*(() if hostile or parties else kept_seeds()), *seeds], jobs, hostile, parties):
        events += verdict.events
        if verdict.failure:
            failures.append(verdict)
            if len(failures) <= FAILURES_SHOWN:
                print(verdict, flush=True)
    seconds = time.monotonic() - begun
    print(f"{len(seeds)} seeds, {events} events, {seconds:.0f} s; {len(failures)} failed {summary(failures)}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
