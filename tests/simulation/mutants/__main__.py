"""`python -m tests.simulation.mutants [NAME ...]` hunts mutants and prints a table."""

import sys

from tests.simulation.mutants import MUTANTS, hunt


def main() -> int:
    """Hunt all mutants and print a table."""
    alive = 0
    for name in sys.argv[1:] or MUTANTS:
        plays, verdict = hunt(name)
        alive += verdict is None
        caught = f"[{verdict.checker}] after {plays}: {verdict.name}" if verdict else f"NOT CAUGHT in {plays}"
        print(f"{name:<36} {caught}", flush=True)
    return alive


if __name__ == "__main__":
    sys.exit(main())
