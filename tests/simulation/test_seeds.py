"""Many seeds, the seeds that found something once, and the promise that a seed always means the same run."""

import os
import subprocess
import sys

import pytest

from tests.simulation.runner import kept_seeds, play, play_all

SEEDS = 2_000
JOBS = 2


@pytest.mark.timeout(300)
def test_seeds() -> None:
    failures = [verdict for verdict in play_all(range(SEEDS), JOBS) if verdict.failure]
    assert not failures, "\n".join(map(str, failures[:5]))


@pytest.mark.parametrize("seed", kept_seeds())
def test_kept_seed(seed: int) -> None:
    verdict = play(seed)
    assert not verdict.failure, str(verdict)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", ["4", "106", "232"])
def test_a_seed_is_one_run_whatever_the_hash_seed(seed: str) -> None:
    """A run of several groups, one with hostile peers, and one of peers that cannot reach each other."""
    assert len({_digest(seed, hash_seed) for hash_seed in ("1", "2", "3")}) == 1


def _digest(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--seed", seed, "--digest"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
