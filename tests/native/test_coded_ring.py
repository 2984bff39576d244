"""Coded all-reduces: rings of native, of reference and of both kinds of peers give the bits of the oracle, and lose the
same, whatever is asked of them.

python -m tests.native.test_coded_ring [how many]      random cases of the full cross product, by hand
"""

import itertools
import random
import sys
from typing import NamedTuple

import numpy as np
import pytest

from pccl.codec import CODES, OPERATIONS, SOURCES, Codec
from pccl.types import CollectiveKind, DataType, ReduceOp
from tests.native import oracle
from tests.native.rings import WAIT_S, Work, copies
from tests.native.test_aborts import abort_at
from tests.native.test_ring import KINDS, LANES, Rigs

COUNTS = (0, 1, 2, 3, 5, 13, 255, 256, 257, 509, 1009, 4099, 20_011, (1 << 20) + 1)
SIZES = (2, 3, 4, 5)
SEGMENTS = (8, 1000, 1024, 4096, 65_536, 256 * 1024)
BLOCKS = (256, 512, 4096)


class Case(NamedTuple):
    """One run of a ring."""

    codec: Codec
    dtype: DataType
    op: ReduceOp
    count: int
    segment_bytes: int
    size: int
    lanes: int
    kinds: str
    in_place: bool
    feedback: bool
    wild: bool

    @property
    def work(self):
        return Work(self.dtype, self.op, self.count, self.segment_bytes, CollectiveKind.ALL_REDUCE, 0, str(self.codec))


def draw_case(draw, name, dtype, most=5000):
    codec = Codec(name, draw.choice(BLOCKS), draw.random() < 0.3, draw.randrange(1000))
    op = draw.choice(OPERATIONS)
    count = draw.choice([count for count in COUNTS if count <= most])
    sums = op in (ReduceOp.SUM, ReduceOp.AVG)
    return Case(
        codec,
        dtype,
        op,
        count,
        draw.choice(SEGMENTS),
        draw.choice(SIZES),
        draw.choice(LANES),
        draw.choice(list(KINDS)),
        draw.random() < 0.5,
        sums and draw.random() < 0.5,
        draw.random() < 0.2,
    )


@pytest.fixture(scope="module")
def rigs():
    made = Rigs()
    yield made
    made.close()


class Played(NamedTuple):
    """A run that has ended on all peers, and is not settled."""

    attempt: int
    runs: list
    inputs: list
    sends: list
    receives: list
    carried: list
    lost: list


def play(case, rigs, seed):
    rng, work = np.random.default_rng(seed), case.work
    make = oracle.wild_inputs if case.wild else lambda *given: oracle.inputs(given[0], given[1], work.op, *given[2:])
    inputs = make(rng, work.dtype, work.count, case.size)
    sends = copies(inputs)
    receives = sends if case.in_place else [np.zeros_like(array) for array in sends]
    real = np.float64 if work.dtype is DataType.DOUBLE else np.float32
    carried = [rng.standard_normal(case.count).astype(real) / 8 for _ in range(case.size)]
    lost = [np.full(case.count, 99, real) for _ in range(case.size)]
    rig = rigs.get(case.size, case.lanes)
    residuals = (carried, lost) if case.feedback else ()
    runs = rig.start(KINDS[case.kinds][: case.size], work, sends, receives, *residuals)
    for each in runs:
        assert each.wait(WAIT_S), case
        assert each.cause == "", case
        assert each.broken == ([], []), case
    assert len({each.digest for each in runs}) == 1, case
    return Played(rig.attempt, runs, inputs, sends, receives, carried, lost)


def run(case, rigs, seed):
    """Reduce, commit, and compare every bit with the oracle."""
    played = play(case, rigs, seed)
    for each in played.runs:
        each.commit()
    with np.errstate(all="ignore"):
        wanted = oracle.coded(played.inputs, case.work, played.attempt, played.carried if case.feedback else None)
    for receive in played.receives:
        assert receive.tobytes() == wanted.result.tobytes(), case
    if case.feedback:
        for got, expected in zip(played.lost, wanted.lost, strict=True):
            assert got.tobytes() == expected.tobytes(), case
    if not case.in_place:
        assert_untouched(played, case)


def run_in_vain(case, rigs, seed):
    """Reduce, and put the inputs back."""
    played = play(case, rigs, seed)
    for each in played.runs:
        each.restore()
    assert_untouched(played, case)


def assert_untouched(played, case):
    for send, given in zip(played.sends, played.inputs, strict=True):
        assert send.tobytes() == given.tobytes(), case


def possible(name, dtype):
    return not Codec(name).refusal(dtype, ReduceOp.SUM)


@pytest.mark.parametrize("dtype", SOURCES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", CODES)
def test_sample_of_all(name, dtype, rigs):
    if not possible(name, dtype):
        pytest.skip("it would save nothing, and is refused")
    draw = random.Random(f"{name} {dtype}")
    for seed in range(14):
        case = draw_case(draw, name, dtype)
        run(case, rigs, seed)
        if seed % 3 == 0:
            run_in_vain(case, rigs, seed)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("feedback", [True, False])
def test_nothing_is_written_before_the_commit(in_place, feedback, rigs):
    """Of the native plane: neither the input nor the output, whatever becomes of the run."""
    case = Case(
        Codec("int8"), DataType.BFLOAT16, ReduceOp.AVG, 100_003, 4096, 3, 3, "native", in_place, feedback, False
    )
    ended = play(case, rigs, 7)
    given = [array.tobytes() for array in ended.inputs if in_place] or [bytes(2 * case.count)] * case.size
    assert [array.tobytes() for array in ended.receives] == given
    for each in ended.runs:
        each.restore()
        each.commit()  # as nobody would: and still it brings nothing back of what does not stand
    assert [array.tobytes() for array in ended.receives] == given
    assert_untouched(ended, case)
    run(case, rigs, 7)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("name", ["int8", "int4", "minmax16"])
def test_fewer_elements_than_peers(name, kinds, rigs):
    for count, size, in_place in itertools.product(range(6), SIZES, (True, False)):
        case = Case(Codec(name), DataType.FLOAT, ReduceOp.AVG, count, 8, size, 3, kinds, in_place, True, False)
        run(case, rigs, count)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize(
    ("name", "dtype", "size", "lanes"),
    [
        ("int8", DataType.FLOAT, 2, 1),
        ("int4", DataType.BFLOAT16, 3, 8),
        ("e3m0", DataType.DOUBLE, 4, 3),
        ("minmax8", DataType.FLOAT16, 5, 5),
        ("zeropoint8", DataType.FLOAT, 4, 2),
    ],
    ids=str,
)
def test_large(name, dtype, size, lanes, kinds, rigs):
    count = (1 << 20) + 1 if kinds == "native" else 200_003
    segment = 4096 if kinds == "native" else 262_144
    case = Case(Codec(name), dtype, ReduceOp.AVG, count, segment, size, lanes, kinds, True, True, False)
    run(case, rigs, 0)


@pytest.mark.parametrize("name", CODES)
def test_segments_and_lanes_change_nothing(name, rigs):
    """However a chunk is cut and carried, its blocks are the same."""
    inputs = oracle.inputs(np.random.default_rng(1), DataType.FLOAT, ReduceOp.SUM, 10_007, 3)
    results = set()
    for segment, lanes in ((8, 1), (1000, 5), (3000, 8), (1 << 20, 2)):
        work = Work(DataType.FLOAT, ReduceOp.SUM, 10_007, segment, codec=str(Codec(name)))
        receives = [np.zeros_like(array) for array in inputs]
        runs = rigs.get(3, lanes).start(("native",) * 3, work, inputs, receives)
        assert all(each.wait() and not each.cause for each in runs)
        for each in runs:
            each.commit()
        results |= {receive.tobytes() for receive in receives}
    assert len(results) == 1


@pytest.mark.parametrize("name", CODES)
def test_bytes_on_the_wire(name, rigs):
    """2(N-1)/N of the coded tensor and 40 bytes for each segment, and not one more."""
    codec, size, block = Codec(name), 3, 256
    work = Work(DataType.FLOAT, ReduceOp.SUM, size * 8 * block, 2 * block * 4, codec=str(codec))
    arrays = oracle.inputs(np.random.default_rng(1), *work[:3], size)
    runs = rigs.get(size, 3).start(KINDS["mixed"][:size], work, arrays, arrays)
    assert all(each.wait() for each in runs)
    per_segment = codec.coded_bytes(2 * block, DataType.FLOAT) + 40
    assert {each.sent_bytes for each in runs} == {2 * (size - 1) * 4 * per_segment}


def test_what_all_have_lost_is_what_the_result_lacks(rigs):
    """The sum of all residuals and the result together are the exact sum: nothing is lost unseen."""
    for op, name in itertools.product((ReduceOp.SUM, ReduceOp.AVG), CODES):
        work = Work(DataType.DOUBLE, op, 5_003, 4096, codec=str(Codec(name)))
        inputs = oracle.inputs(np.random.default_rng(2), *work[:3], 4)
        receives = [np.zeros_like(array) for array in inputs]
        carried = [np.full(work.count, 0.25) for _ in inputs]
        lost = [np.zeros(work.count) for _ in inputs]
        runs = rigs.get(4, 2).start(("native",) * 4, work, inputs, receives, carried, lost)
        assert all(each.wait() and not each.cause for each in runs)
        for each in runs:
            each.commit()
        share = 4 if op is ReduceOp.AVG else 1
        got = receives[0] * share + np.sum(lost, axis=0)
        np.testing.assert_allclose(got, np.sum(inputs, axis=0) + 4 * 0.25, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_aborts_at_any_moment(seed, kinds, rigs):
    """Inputs are as they were, and what a native peer received has gone nowhere. The next attempt on the same lanes is
    right; what is carried is only read."""
    draw = random.Random(seed)
    count = 500_009 if kinds == "native" else 30_011
    work = Work(DataType.FLOAT, ReduceOp.AVG, count, 16_384, codec=str(Codec("int8", stochastic=True)))
    inputs = oracle.inputs(np.random.default_rng(seed), *work[:3], 3)
    carried = [array / 16 for array in inputs]
    untouched = copies(carried)
    rig = rigs.get(3, 3)
    for number in range(6):
        sends = copies(inputs)
        receives = sends if number % 2 else [np.zeros_like(array) for array in inputs]
        lost = [np.zeros_like(array) for array in inputs]
        runs = rig.start(KINDS[kinds][:3], work, sends, receives, carried, lost)
        abort_at(("us", draw.randrange(8_000)), runs, draw.sample(range(3), 3))
        for each, send, given in zip(runs, sends, inputs, strict=True):
            each.restore()
            assert send.tobytes() == given.tobytes()
        if kinds == "native" and number % 2 == 0:
            assert not any(array.any() for array in receives)
        rig.repair(runs)
        sends = copies(inputs)
        runs = rig.start(KINDS[kinds][:3], work, sends, sends, carried, lost)
        assert all(each.wait() and not each.cause for each in runs)
        for each in runs:
            each.commit()
        wanted = oracle.coded(inputs, work, rig.attempt, carried)
        assert {send.tobytes() for send in sends} == {wanted.result.tobytes()}
        assert [each.tobytes() for each in lost] == [each.tobytes() for each in wanted.lost]
        assert [each.tobytes() for each in carried] == [each.tobytes() for each in untouched]
        rig.repair(runs)


@pytest.mark.parametrize("kinds", KINDS)
def test_a_case_that_fails_spoils_no_other(kinds, rigs):
    """It may leave peers that wait for the others, and lanes in the middle of a segment."""
    work = Work(DataType.FLOAT, ReduceOp.SUM, 10_007, 4096, codec=str(Codec("int8")))
    arrays = oracle.inputs(np.random.default_rng(1), *work[:3], 3)
    with pytest.raises(KeyError, match="no such kind"):
        rigs.get(3, 3).start((*KINDS[kinds][:2], "no such kind"), work, arrays, copies(arrays))
    run(Case(Codec("int8"), DataType.FLOAT, ReduceOp.SUM, 257, 1024, 3, 3, kinds, True, False, False), rigs, 0)


def main() -> None:
    """So many random cases."""
    rigs, draw = Rigs(), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    pairs = [(name, dtype) for name, dtype in itertools.product(CODES, SOURCES) if possible(name, dtype)]
    for seed in range(int(sys.argv[1])):
        run(draw_case(draw, *draw.choice(pairs), most=1 << 16), rigs, seed)
    print(f"{sys.argv[1]} cases, all equal")


if __name__ == "__main__":
    main()
