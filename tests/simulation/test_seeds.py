"""Many seeds, the seeds that found something once, and the promise that a seed always means the same run."""

import os
import subprocess
import sys

import pytest

from tests.simulation.runner import kept_seeds, play

SEEDS = range(0, 2_000 // (10 if os.environ.get("PCCL_TEST_SMALL") else 1), 25)
"""Where each part begins: a few seconds of work, so that no test is long on any machine."""


@pytest.mark.parametrize("first", SEEDS)
def test_seeds(first: int) -> None:
    failures = [verdict for verdict in map(play, range(first, first + SEEDS.step)) if verdict.failure]
    assert not failures, "\n".join(map(str, failures[:5]))


@pytest.mark.parametrize("first", range(0, SEEDS.stop // 20, SEEDS.step))
def test_hostile_seeds(first: int) -> None:
    """A sample of `make hostile`."""
    failures = [verdict for seed in range(first, first + SEEDS.step) if (verdict := play(seed, hostile=True)).failure]
    assert not failures, "\n".join(map(str, failures[:5]))


@pytest.mark.parametrize("seed", [531, 5696])
def test_kept_hostile_seed(seed: int) -> None:
    """531, the protocol's: a member was put out for keeping one waiting that was put out for its silence in the same
    moment. 5696, the simulator's: a hostile peer dialled under a number of which its core knew nothing."""
    verdict = play(seed, hostile=True)
    assert not verdict.failure, str(verdict)


@pytest.mark.parametrize("seed", kept_seeds())
def test_kept_seed(seed: int) -> None:
    verdict = play(seed)
    assert not verdict.failure, str(verdict)


@pytest.mark.parametrize("seed", ["4", "106", "232"])
def test_a_seed_is_one_run_whatever_the_hash_seed(seed: str) -> None:
    """A run of several groups, one with hostile peers, and one of peers that cannot reach each other."""
    assert len({_digest(seed, hash_seed) for hash_seed in ("1", "2", "3")}) == 1


def _digest(seed: str, hash_seed: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--seed", seed, "--digest"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
