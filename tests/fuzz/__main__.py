"""Plays random and spoiled bytes into everything that reads bytes: nothing ends, nothing grows.

    python -m tests.fuzz [--cases 20000] [--seconds 600] [--seed 1]

Ends after so many cases or seconds, whichever comes first, with a line of what was played. A case that breaks a promise
ends it with the number that plays it again (`--seed N --first CASE --cases 1`).
"""

import argparse
import random
import resource
import sys
import time
import traceback

from tests.fuzz.targets import FAST, SLOW, Target

SLOW_EVERY = 50
"""One case in so many is played at real sockets, which takes as long as many others."""

WARM_CASES = 2000
GROWTH_MAX = 64 << 20
"""Bytes of memory that this process may take more at its end than after the first cases: what an allocator keeps."""


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def played(target: Target, seed: int, case: int) -> bool:
    """One case; what chance draws follows from its number alone, but for targets that remember."""
    try:
        target(random.Random(f"{seed} {case}"))
    except Exception:
        traceback.print_exc()
        print(f"case {case} of seed {seed} broke {getattr(target, '__name__', type(target).__name__)}", file=sys.stderr)
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    fast, slow = [make() for make in FAST], [make() for make in SLOW]
    began, before, case = time.monotonic(), 0, given.first
    while case < given.first + given.cases and time.monotonic() - began < given.seconds:
        turn = case // SLOW_EVERY
        target = slow[turn % len(slow)] if case % SLOW_EVERY == 0 else fast[case % len(fast)]
        if not played(target, given.seed, case):
            return 1
        case += 1
        if case - given.first == WARM_CASES:
            before = resident_bytes()
    seconds, count = time.monotonic() - began, case - given.first
    grown = resident_bytes() - before if before else 0
    print(
        f"{count:,} cases in {seconds:.0f} s, {count / seconds:,.0f} a second; memory grew by {grown / 2**20:.1f} MiB"
    )
    return 1 if grown > GROWTH_MAX else 0


if __name__ == "__main__":
    sys.exit(main())
