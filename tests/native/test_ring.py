"""Rings of native, of reference and of both kinds of peers give the bits of the oracle, whatever is asked of them.

python -m tests.native.test_ring [how many]      cases of the full cross product in random order, by hand; else all
"""

import itertools
import random
import sys
import time
from typing import NamedTuple

import numpy as np
import pytest

from pccl.types import DataType, ReduceOp
from tests.native import oracle
from tests.native.rings import WAIT_S, Rig, Work, copies

COUNTS = (0, 1, 2, 3, 5, 7, 13, 257, 1009, 100_003, (1 << 20) + 1)
SIZES = (2, 3, 4, 5)
LANES = (1, 2, 3, 5, 8)
SEGMENTS = (8, 16, 24, 72, 1000, 4096, 65_536, 512 * 1024)
KINDS = {
    "native": ("native",) * 5,
    "reference": ("reference",) * 5,
    "mixed": ("reference", "native", "native", "native", "native"),
}
SEGMENTS_MAX = {"native": 30_000, "reference": 300, "mixed": 1_000}
"""Per peer and pass over the buffer. Tiny segments of large tensors take long, and find nothing new."""


class Case(NamedTuple):
    """One run of a ring."""

    work: Work
    size: int
    lanes: int
    kinds: str
    in_place: bool
    wild: bool

    @property
    def sensible(self):
        """Not so many segments that it takes seconds."""
        return self.work.count * self.work.dtype.itemsize // self.work.segment_bytes <= SEGMENTS_MAX[self.kinds]


def every_case():
    """The full cross product."""
    for dtype, op, count, segment in itertools.product(DataType, ReduceOp, COUNTS, SEGMENTS):
        for size, lanes, kinds in itertools.product(SIZES, LANES, KINDS):
            for in_place, wild in itertools.product((True, False), (True, False)):
                case = Case(Work(dtype, op, count, segment), size, lanes, kinds, in_place, wild)
                if case.sensible:
                    yield case


class Rigs:
    """Lanes are used again and again, as in life; but not after a case that failed on them, so that no other fails."""

    def __init__(self):
        self._rigs = {}

    def get(self, size, lanes):
        rig = self._rigs.get((size, lanes))
        if rig is not None and rig.spoilt:
            del self._rigs[size, lanes]
            rig.throw_away()
        if (size, lanes) not in self._rigs:
            # Buffers of a few thousand bytes make every transfer stop and go.
            self._rigs[size, lanes] = Rig(size, lanes, buffer_bytes=8192 if lanes in (2, 5) else 0)
        return self._rigs[size, lanes]

    def close(self):
        for rig in self._rigs.values():
            rig.close()


@pytest.fixture(scope="module")
def rigs():
    made = Rigs()
    yield made
    made.close()


def run(case, rigs, seed):
    """Reduce, compare bits with the oracle and numbers with numpy, and put the inputs back."""
    rng, work = np.random.default_rng(seed), case.work
    if case.wild:
        inputs = oracle.wild_inputs(rng, work.dtype, work.count, case.size)
    else:
        inputs = oracle.inputs(rng, work.dtype, work.op, work.count, case.size)
    sends = copies(inputs)
    receives = sends if case.in_place else [np.zeros_like(array) for array in sends]
    rig = rigs.get(case.size, case.lanes)
    runs = rig.start(KINDS[case.kinds][: case.size], work, sends, receives)
    for each in runs:
        assert each.wait(WAIT_S), case
        assert each.cause == "", case
        assert each.broken == ([], []), case
    oracle.assert_equal_bits(receives, oracle.reduced(inputs, work.dtype, work.op), work.dtype)
    if not case.wild:
        oracle.assert_agrees_with_numpy(receives[0], inputs, work.dtype, work.op)
    for each, send, untouched in zip(runs, sends, inputs, strict=True):
        each.restore()
        assert send.tobytes() == untouched.tobytes(), case


def sampled(seed, dtype, op, most=1100):
    """Cases of one type and operation, not the largest."""
    draw = random.Random(seed)
    while True:
        work = Work(dtype, op, draw.choice([count for count in COUNTS if count <= most]), draw.choice(SEGMENTS))
        wild = draw.random() < 0.3
        case = Case(work, draw.choice(SIZES), draw.choice(LANES), draw.choice(list(KINDS)), draw.random() < 0.5, wild)
        if case.sensible:
            yield case


@pytest.mark.parametrize("op", list(ReduceOp), ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", list(DataType), ids=lambda dtype: dtype.name)
def test_sample_of_all(dtype, op, rigs):
    for seed, case in enumerate(itertools.islice(sampled(f"{dtype} {op}", dtype, op), 12)):
        run(case, rigs, seed)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kinds", KINDS)
def test_fewer_elements_than_peers(kinds, size, rigs):
    for count, lanes, in_place in itertools.product(range(6), (1, 3), (True, False)):
        run(Case(Work(DataType.FLOAT, ReduceOp.AVG, count, 8), size, lanes, kinds, in_place, False), rigs, count)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize(
    ("dtype", "op", "size", "lanes"),
    [
        (DataType.FLOAT, ReduceOp.SUM, 2, 1),
        (DataType.BFLOAT16, ReduceOp.AVG, 3, 8),
        (DataType.INT64, ReduceOp.PROD, 4, 3),
        (DataType.UINT8, ReduceOp.MAX, 5, 5),
    ],
    ids=str,
)
def test_large(dtype, op, size, lanes, kinds, rigs):
    segment = 4096 if kinds == "native" else 65_536
    run(Case(Work(dtype, op, (1 << 20) + 1, segment), size, lanes, kinds, True, False), rigs, 0)
    run(Case(Work(dtype, op, 100_003, segment // 8), size, lanes, kinds, False, False), rigs, 1)


def test_bytes_on_the_wire(rigs):
    """2(N-1)/N of the tensor and 40 bytes for each segment, and not one more."""
    for size in SIZES:
        work = Work(DataType.FLOAT, ReduceOp.SUM, size * 1000, 400)
        arrays = oracle.inputs(np.random.default_rng(1), *work[:3], size)
        runs = rigs.get(size, 3).start(KINDS["mixed"][:size], work, arrays, arrays)
        assert all(each.wait() for each in runs)
        assert {each.sent_bytes for each in runs} == {2 * (size - 1) * (1000 * 4 + 10 * 40)}


def main() -> None:
    """The full cross product in random order, or so many cases of it."""
    cases = list(every_case())
    random.Random(0).shuffle(cases)
    wanted = cases[: int(sys.argv[1])] if len(sys.argv) > 1 else cases
    rigs, began = Rigs(), time.monotonic()
    for done, case in enumerate(wanted):
        if done % 1000 == 0:
            print(
                f"{done} of {len(wanted)} cases ({len(cases)} in all) in {time.monotonic() - began:.0f} s", flush=True
            )
        run(case, rigs, done)
    print(f"{len(wanted)} cases, all equal, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
