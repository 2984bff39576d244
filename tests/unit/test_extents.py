"""Where the tensors of collectives lie: those that share memory are found, and no others."""

import itertools
import random

import numpy as np
import pytest

from pccl import UsageError
from pccl.dataplane.offers import Offers, _meet
from pccl.dataplane.tensors.buffers import Buffers, Extent, tensor


def drawn(draw, count):
    """Some, a few of them empty."""
    extents = []
    for _ in range(draw.randint(0, count)):
        begin = draw.randint(1, 40)
        extents.append(Extent(draw.choice(["", "a", "b"]), begin, begin + draw.choice([0, 1, 3, 9])))
    return tuple(extents)


@pytest.mark.parametrize("seed", range(300))
def test_a_sweep_finds_what_a_comparison_of_all_pairs_finds(seed):
    draw = random.Random(seed)
    ours, theirs = drawn(draw, 6), drawn(draw, 6)
    naive = any(
        one.meets(other)
        for one, other in itertools.product(ours, theirs)
        if one.begin < one.end and other.begin < other.end
    )
    assert _meet(ours, theirs) == naive


def behind(reads=(), writes=()):
    """Buffers that are copies of tensors elsewhere."""
    copy = tensor(np.zeros(4, np.float32), "x", writable=True)
    return Buffers(copy, copy, reads=tuple(reads), writes=tuple(writes))


def test_tensors_behind_copies_are_compared_too():
    offers = Offers()
    first, second, other = Extent("gpu:0", 100, 200), Extent("gpu:0", 150, 250), Extent("gpu:1", 100, 200)
    offers.offer(1, behind(reads=[first], writes=[other]))
    offers.offer(2, behind(reads=[second]))
    for wrong in (behind(writes=[second]), behind(reads=[other]), behind(writes=[other])):
        with pytest.raises(UsageError, match=r"tag 3 would work on memory that the collective with tag [12] "):
            offers.offer(3, wrong)
    offers.withdraw(1)
    offers.offer(3, behind(writes=[other]))


def test_memory_behind_a_copy_may_be_the_hosts():
    offers, array = Offers(), np.zeros(10, np.float32)
    home = tensor(array, "x", writable=True)
    offers.offer(1, behind(writes=[home.extent]))
    with pytest.raises(UsageError, match="tag 2 would work on memory"):
        offers.offer(2, Buffers(home, home))
