"""Broadcast, all-gather and reduce-scatter on the engine of the all-reduce: native, reference and mixed rings."""

import asyncio
import itertools
import random

import numpy as np
import pytest

from pccl.core.effects.peer_events import AttemptEnded
from pccl.dataplane.native import NativePlane
from pccl.dataplane.reference import ReferencePlane
from pccl.dataplane.ring.arithmetic import STORED
from pccl.dataplane.ring.segments import Route, chunk, output_count
from pccl.dataplane.tensors.buffers import Buffers, buffers
from pccl.types import CollectiveKind, DataType, ReduceOp
from tests.native import oracle
from tests.native.rings import TAG, WAIT_S, Rig, Work, copies, tensor
from tests.native.test_aborts import abort_at, assert_soon

KINDS = list(CollectiveKind)
SIZES = range(2, 9)
COUNTS = (0, 1, 2, 3, 5, 7, 13, 257, 1009)
MIXES = {
    "native": ("native",) * 8,
    "reference": ("reference",) * 8,
    "mixed": ("native", "reference", "native", "native", "reference", "native", "native", "native"),
}
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
every_mix = pytest.mark.parametrize("mix", MIXES)


def play(rig, mix, work, inputs, in_place):
    """One attempt, its results compared with the oracle; afterwards the inputs are put back, and compared too."""
    sends = copies(inputs)
    receives = sends if in_place else [work.output(rig.size, rank) for rank in range(rig.size)]
    runs = rig.start(MIXES[mix][: rig.size], work, sends, receives)
    for run in runs:
        assert run.wait(WAIT_S), work
        assert (run.cause, run.broken) == ("", ([], [])), work
    for got, wanted in zip(receives, oracle.results(inputs, work), strict=True):
        oracle.assert_equal_bits([got], wanted, work.dtype)
    assert len({run.digest for run in runs}) == 1, "equal results have equal digests"
    assert bool(runs[0].digest) == (work.count > 0 and work.kind is not CollectiveKind.REDUCE_SCATTER)
    if not in_place:
        assert_untouched(sends, inputs)
    for run in runs:
        run.restore()
    assert_untouched(sends, inputs)
    return runs


def assert_untouched(sends, inputs):
    for send, untouched in zip(sends, inputs, strict=True):
        assert send.tobytes() == untouched.tobytes()


@every_mix
@every_kind
@pytest.mark.parametrize("size", SIZES)
def test_every_peer_gets_its_part(size, kind, mix):
    draw = random.Random(f"{size} {kind}")
    for lanes in (1, 3):
        rig = Rig(size, lanes, buffer_bytes=8192 if lanes == 3 else 0)
        for count, segment in itertools.product(COUNTS, (8, 72, 4096)):
            dtype, op = draw.choice(list(DataType)), draw.choice(list(ReduceOp))
            work = Work(dtype, op, count, segment, kind, draw.randrange(size))
            if count * dtype.itemsize // segment > (1_000 if mix == "native" else 100):
                continue
            inputs = oracle.inputs(np.random.default_rng(count), dtype, op, count, size)
            fits = kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST)
            play(rig, mix, work, inputs, fits and draw.random() < 0.5)
        rig.close()


@every_kind
@pytest.mark.parametrize("size", [2, 3, 5])
def test_large(size, kind):
    rig = Rig(size, 4)
    for op, segment, mix in [(ReduceOp.AVG, 4096, "native"), (ReduceOp.SUM, 65_536, "mixed")]:
        work = Work(DataType.FLOAT, op, 300_007, segment, kind, size - 1)
        inputs = oracle.inputs(np.random.default_rng(size), *work[:3], size)
        runs = play(rig, mix, work, inputs, kind is CollectiveKind.BROADCAST)
        # N - 1 shares of the whole leave all peers together, and those of an all-reduce twice.
        whole = work.count * 4 * {CollectiveKind.ALL_REDUCE: 2, CollectiveKind.ALL_GATHER: size}.get(kind, 1)
        headers = sum(run.sent_bytes for run in runs) - (size - 1) * whole
        assert 0 < headers <= (size - 1) * 40 * 2 * (whole // segment + size)
    rig.close()


def test_reduce_scatter_agrees_with_numpy():
    work = Work(DataType.DOUBLE, ReduceOp.SUM, 1_003, 400, CollectiveKind.REDUCE_SCATTER)
    inputs = oracle.inputs(np.random.default_rng(4), *work[:3], 4)
    whole = np.concatenate(oracle.results(inputs, work))
    oracle.assert_agrees_with_numpy(whole, inputs, work.dtype, work.op)


@every_kind
@pytest.mark.parametrize("mix", MIXES)
def test_abort_at_any_moment(kind, mix):
    draw = random.Random(f"{kind} {mix}")
    size, slow = draw.randrange(2, 5), mix != "native"
    rig = Rig(size, 2)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 50_003 if slow else 500_009, 8_192, kind, size - 1)
    inputs = oracle.inputs(np.random.default_rng(1), *work[:3], size)
    took = []
    for _ in range(10):
        in_place = kind is CollectiveKind.BROADCAST
        sends = copies(inputs)
        receives = sends if in_place else [work.output(size, rank) for rank in range(size)]
        runs = rig.start(MIXES[mix][:size], work, sends, receives)
        took += abort_at(("us", draw.randrange(20_000)), runs, draw.sample(range(size), size))
        assert {run.cause for run in runs} <= {"", "aborted"}
        for run in runs:
            run.restore()
        assert_untouched(sends, inputs)
        rig.repair(runs)
        # What is left in clean lanes is drained, also by peers that a broadcast leaves with nothing to receive.
        runs = play(rig, mix, work, inputs, in_place)
        rig.repair(runs)
    assert_soon(took)
    rig.close()


# ── the cut ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@every_kind
def test_what_arrives_in_a_hop_is_what_the_previous_peer_sends_and_leaves_in_the_next(kind):
    for size, root in itertools.product(SIZES, range(8)):
        routes = [Route(kind, 20, 4, size, rank, root % size, 8) for rank in range(size)]
        for rank, route in enumerate(routes):
            for hop in range(route.hops):
                assert route.chunk_received(hop) == routes[rank - 1].chunk_sent(hop)
                if route.chunk_received(hop) is not None and hop + 1 < route.hops:
                    assert route.chunk_sent(hop + 1) == route.chunk_received(hop)


def test_chunks_cover_all_elements_once():
    for count, chunks in itertools.product(range(20), range(1, 9)):
        cut = [chunk(count, chunks, index) for index in range(chunks)]
        assert [element for part in cut for element in part] == list(range(count))
        assert max(map(len, cut)) - min(map(len, cut)) <= 1
        assert [output_count(CollectiveKind.REDUCE_SCATTER, count, chunks, rank) for rank in range(chunks)] == [
            len(part) for part in cut
        ]


# ── behind the face that the shell uses ──────────────────────────────────────────────────────────────────────────────


async def settled(planes, rig, work, offers):
    """Run once and commit; what each plane says became of its call."""
    loop, ends = asyncio.get_running_loop(), []
    rig.attempt += 1
    for rank, (plane, offer) in enumerate(zip(planes, offers, strict=True)):
        plane.offers.offer(TAG, offer)
        queue: asyncio.Queue[AttemptEnded] = asyncio.Queue()
        ends.append(queue)
        plane.start(
            rig.effect(rank, work),
            *rig.sides(rank),
            lambda event, queue=queue: loop.call_soon_threadsafe(queue.put_nowait, event),
        )
    events = [await asyncio.wait_for(queue.get(), WAIT_S) for queue in ends]
    made = [plane.offers.settle(TAG, True) for plane in planes]
    for plane in planes:
        plane.close()
    return events, made


@pytest.mark.parametrize("count", [0, 1, 1_001])
@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER], ids=lambda kind: kind.name)
def test_room_for_the_result_is_made_at_the_start(kind, count):
    work = Work(DataType.INT32, ReduceOp.SUM, count, 160, kind)
    inputs = oracle.inputs(np.random.default_rng(2), *work[:3], 3)
    rig = Rig(3, 2)

    async def run():
        planes = [NativePlane(30.0), ReferencePlane(30.0), NativePlane(30.0)]
        return await settled(planes, rig, work, [Buffers(tensor(array, work.dtype), None) for array in inputs])

    events, made = asyncio.run(run())
    assert [event.cause for event in events] == [""] * 3
    for each, wanted in zip(made, oracle.results(inputs, work), strict=True):
        assert each.output.count == len(wanted)
        got = np.frombuffer(each.output.owner, STORED[work.dtype], each.output.count)
        assert got.tobytes() == wanted.tobytes()
    rig.close()


@pytest.mark.parametrize("plane", [NativePlane, ReferencePlane])
def test_a_result_of_another_length_than_its_room_is_refused(plane):
    array = np.zeros(10, np.float32)
    work = Work(DataType.FLOAT, ReduceOp.SUM, 10, 8, CollectiveKind.ALL_GATHER)
    rig = Rig(2, 1)

    async def run():
        return await settled([plane(30.0)], rig, work, [buffers(array, np.zeros(10, np.float32))])

    (event,), _ = asyncio.run(run())
    assert event.cause == "recv holds 10 elements, and the result 20"
    rig.close()
