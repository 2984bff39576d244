"""Collectives on tensors of a device: values, streams, memory, and what is refused before any vote."""

import gc
import itertools
import weakref

import pytest
import torch

from pccl import (
    CollectiveAborted,
    DataType,
    ErrorFeedback,
    PCCLError,
    QuantizationAlgorithm,
    QuantizationOptions,
    ReduceDescriptor,
    ReduceOp,
    ReduceOpDescriptor,
    ReduceOperandDescriptor,
    Result,
    UsageError,
)
from pccl.dataplane.tensors import mover
from tests.device.conftest import succeed, together
from tests.e2e.test_api import connect_two

MIB = 1 << 20


def sums(pair, tensors, **how):
    """All-reduce one tensor of each peer in place."""
    return succeed([lambda c=c, t=t: c.all_reduce(t, **how) for c, t in zip(pair, tensors, strict=True)])


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "max", "min"])
def test_cpu_and_device_peers_end_with_the_same_bits(pair, device, op):
    dtypes = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16]
    wide = [] if device.kind == "mps" else [torch.uint16, torch.uint32, torch.uint64, torch.float64]  # it has none
    for dtype in [*dtypes, torch.float32, *wide]:
        generator = torch.Generator().manual_seed(7)
        values = [(torch.rand(1003, generator=generator) * 5 + 1).to(dtype) for _ in range(2)]
        expected = [value.clone() for value in values]
        sums(pair, expected, op=op)
        mixed = [values[0].clone(), values[1].to(device.first)]
        sums(pair, mixed, op=op)
        assert torch.equal(mixed[1].cpu().view(torch.uint8), expected[1].view(torch.uint8)), dtype
        assert torch.equal(mixed[0].view(torch.uint8), expected[0].view(torch.uint8)), dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("codec", ["int8", "int4", "e3m0", "minmax8", "minmax16", "zeropoint8", "zeropoint16"])
def test_codes_are_the_same_wherever_the_tensors_lie(pair, device, codec, dtype):
    """For every operation that codes serve: products are refused."""
    if dtype is torch.float64 and device.kind == "mps":
        pytest.skip("it has none")
    if codec.endswith("16") and dtype.itemsize == 2:
        pytest.skip("elements must be longer than their codes")
    length = 70_001 if dtype is torch.float32 else 5_003
    values = [torch.randn(length, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (1, 2)]
    for op in ("sum", "avg", "max", "min"):
        expected = [value.clone() for value in values]
        sums(pair, expected, op=op, quantize=codec)
        mixed = [values[0].to(device.first), values[1].clone()]
        sums(pair, mixed, op=op, quantize=codec)
        assert torch.equal(mixed[0].cpu().view(torch.uint8), expected[0].view(torch.uint8)), op
        assert torch.equal(mixed[1].view(torch.uint8), expected[1].view(torch.uint8)), op


def test_error_feedback_is_the_same_wherever_the_tensors_lie(pair, device):
    values = [torch.randn(70_001, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    results = []
    for place in ("cpu", device.first):
        feedback = [ErrorFeedback("int4") for _ in range(2)]
        for _ in range(3):
            tensors = [value.to(place, copy=True) for value in values]
            sides = zip(pair, tensors, feedback, strict=True)
            succeed([lambda c=c, t=t, f=f: c.all_reduce(t, quantize=f) for c, t, f in sides])
        results.append(tensors[0].cpu())
    assert torch.equal(*results)


def test_the_reference_data_plane_too(master, device):
    pair = connect_two(master, data_plane="reference")
    tensors = [torch.full((1000,), rank + 1.0, device=device.first) for rank in range(2)]
    sums(pair, tensors)
    assert tensors[0].cpu().eq(3).all()
    for each in pair:
        each.close()


def test_inference_tensors_and_launches_from_a_backward_pass(pair, device, backward):
    with torch.inference_mode():
        frozen = [torch.ones(10, device=device.first) for _ in range(2)]
    sums(pair, frozen)
    assert frozen[0].cpu().eq(2).all()
    weights = torch.nn.Parameter(torch.ones(1000, device=device.first))
    launched = []
    weights.register_post_accumulate_grad_hook(
        lambda each: launched.append(pair[0].all_reduce(each.grad, async_op=True))
    )
    (weights * 3).sum().backward()
    pair[1].all_reduce(torch.ones(1000))
    launched[0].wait()
    assert weights.grad.cpu().eq(4).all()


@pytest.mark.parametrize("count", [1, 1000, 3_000_001])
def test_either_side_may_lie_anywhere(pair, device, count):
    places = ("cpu", device.first, device.second)
    for here, there in itertools.product(places, places):
        sends = [torch.full((count,), float(rank + 1), device=here) for rank in range(2)]
        receives = [torch.zeros(count, device=there) for _ in range(2)]
        sides = zip(pair, sends, receives, strict=True)
        succeed([lambda c=c, s=s, r=r: c.all_reduce(s, r) for c, s, r in sides])
        assert torch.equal(receives[0].cpu(), torch.full((count,), 3.0)), (here, there)
        assert sends[0].cpu()[0] == 1


def test_parameters_scalars_strides_and_nothing(pair, device):
    parameters = [torch.nn.Parameter(torch.full((2, 3), 1.0, device=device.first)) for _ in range(2)]
    sums(pair, parameters)
    assert parameters[0].tolist() == [[2, 2, 2], [2, 2, 2]]
    scalars = [torch.tensor(4.0, device=device.first) for _ in range(2)]
    sums(pair, scalars)
    assert scalars[1].item() == 8
    bases = [torch.arange(12.0, device=device.first).reshape(3, 4) for _ in range(2)]
    sums(pair, [base.t() for base in bases])
    assert torch.equal(bases[0].cpu(), 2 * torch.arange(12.0).reshape(3, 4))
    sums(pair, [base[:, ::2] for base in bases])
    assert bases[1].cpu()[1].tolist() == [16, 10, 24, 14]
    sums(pair, [torch.empty(0, device=device.first) for _ in range(2)])


def test_many_tensors_of_all_places_in_one_call(pair, device):
    def make(rank):
        there = [torch.full((50 + n,), float(rank + n), device=device.first) for n in range(200)]
        return [
            *there,
            torch.full((4,), 1.0 + rank),
            torch.full((3,), 2 + rank, dtype=torch.int64, device=device.second),
        ]

    mine, theirs = make(0), make(1)
    succeed([lambda: pair[0].all_reduce_many(mine), lambda: pair[1].all_reduce_many(theirs)])
    for both in (mine, theirs):
        assert all(torch.equal(both[n].cpu(), torch.full((50 + n,), 2.0 * n + 1)) for n in range(200))
        assert both[200].tolist() == [3, 3, 3, 3]
        assert both[201].tolist() == [5, 5, 5]


def test_sixteen_at_a_time(pair, device):
    tensors = [[torch.full((30_000,), float(tag), device=device.first) for tag in range(16)] for _ in range(2)]
    works = [
        [c.all_reduce(each, tag=tag, async_op=True) for tag, each in enumerate(own)]
        for c, own in zip(pair, tensors, strict=True)
    ]
    for work in (*works[0], *works[1]):
        work.wait()
    assert all(own[tag].cpu().eq(2 * tag).all() for own in tensors for tag in range(16))


def test_kinds_that_gain_nothing_by_it_are_never_pinned(pair, ours, monkeypatch):
    monkeypatch.setattr(mover, "NEVER_PINNED", (torch.device(ours.first).type,))
    monkeypatch.setattr(mover, "_movers", {})
    before = ours.count("pinned")
    tensors = [torch.full((1 << 20,), float(number + 1)).to(ours.first) for number in range(2)]
    sums(pair, tensors)
    assert all(bool((each.cpu() == 3.0).all()) for each in tensors)
    assert ours.count("pinned") == before


@pytest.mark.parametrize("switch", ["no_pinning", "pinned_is_ours"])
def test_devices_without_usable_pinned_memory(pair, ours, switch):
    ours.switch(**{switch: 1})
    tensors = [torch.ones(1000, device=ours.first) for _ in range(2)]
    sums(pair, tensors)
    assert tensors[0].cpu().eq(2).all()


# ── results of other collectives ─────────────────────────────────────────────────────────────────────────────────────


def test_shares_lie_where_the_input_does(pair, device):
    tensors = [torch.full((2, 5), rank + 1.0, device=device.first) for rank in range(2)]
    gathered = succeed([lambda n=n: pair[n].all_gather(tensors[n]) for n in range(2)])
    for each in gathered:
        assert each.output.device == device.first
        assert each.output.shape == (2, 2, 5)
        assert sorted(each.output.cpu()[:, 0, 0].tolist()) == [1, 2]
    scattered = succeed([lambda n=n: pair[n].reduce_scatter(tensors[n]) for n in range(2)])
    for each in scattered:
        assert each.output.device == device.first
        assert each.output.tolist() == [3] * 5
    broadcast = [lambda n=n: pair[n].broadcast(tensors[n], pair[0].peer_id) for n in range(2)]
    succeed(broadcast)
    assert tensors[1].cpu().eq(1).all()


def test_descriptors_of_pccl_take_what_all_reduce_takes(pair, device):
    def describe(rank):
        tensors = [torch.full((10,), rank + 1.0, device=where) for where in ("cpu", device.first, device.second)]
        none = QuantizationOptions(DataType.FLOAT, QuantizationAlgorithm.NONE)
        operand = ReduceOperandDescriptor(DataType.FLOAT)
        return tensors, [
            ReduceOpDescriptor.from_torch(each, each, ReduceDescriptor(10, ReduceOp.SUM, tag, operand, none))
            for tag, each in enumerate(tensors)
        ]

    mine, theirs = describe(0), describe(1)
    succeed([lambda n=n: pair[n].all_reduce_multiple_with_retry((mine, theirs)[n][1]) for n in range(2)])
    assert [each.cpu().tolist() for each in mine[0]] == [[3.0] * 10] * 3


# ── what is refused before the vote ──────────────────────────────────────────────────────────────────────────────────


def test_an_expanded_view_is_refused(pair, device):
    one, _ = pair
    expanded = torch.ones(1, device=device.first).expand(8)
    with pytest.raises(UsageError, match=r"all_reduce: send.*share memory.*contiguous"):
        one.all_reduce(expanded)
    with pytest.raises(UsageError, match=r"tensors\[1\].*share memory"):
        one.all_reduce_many([torch.ones(2, device=device.first), expanded])
    with pytest.raises(UsageError, match=r"all_reduce: recv.*share memory"):
        one.all_reduce(torch.ones(8), expanded)


def test_two_collectives_never_share_a_tensor(pair, device):
    one, other = pair
    shared, rest = torch.ones(100, device=device.first), torch.ones(100, device=device.first)
    work = one.all_reduce(shared, tag=1, async_op=True)
    for again in (
        lambda: one.all_reduce(shared[50:], op="max", tag=2),
        lambda: one.all_reduce_many([rest, shared], tag=2),
        lambda: one.all_reduce(rest, shared, tag=2),
        lambda: one.all_reduce(shared, rest, tag=2),
    ):
        with pytest.raises(UsageError, match="tag 2 would work on memory that the collective with tag 1"):
            again()
    side_by_side = one.all_reduce(rest, tag=2, async_op=True)
    for tag in (1, 2):
        other.all_reduce(torch.ones(100), tag=tag)
    work.wait()
    side_by_side.wait()
    assert shared.cpu().eq(2).all()
    succeed([lambda: one.all_reduce(shared), lambda: other.all_reduce(torch.ones(100))])


def test_two_collectives_may_read_one_tensor(pair, device):
    source, results = torch.ones(100, device=device.first), torch.zeros(2, 100, device=device.first)
    works = [pair[0].all_reduce(source, results[tag], tag=tag, async_op=True) for tag in range(2)]
    for tag in range(2):
        pair[1].all_reduce(torch.ones(100), tag=tag)
    for work in works:
        work.wait()
    assert results.cpu().eq(2).all()


def test_many_of_the_host_in_flight_are_protected_too(pair):
    one, other = pair
    shared, rest = torch.ones(100), torch.ones(100)
    work = one.all_reduce_many([shared, rest], tag=1, async_op=True)
    with pytest.raises(UsageError, match="tag 2 would work on memory"):
        one.all_reduce(rest, tag=2)
    other.all_reduce_many([torch.ones(100), torch.ones(100)], tag=1)
    work.wait()


def test_views_that_overlap_are_refused_in_one_call(pair, device):
    base = torch.ones(100, device=device.first)
    with pytest.raises(UsageError, match="number 1 shares memory with number 0"):
        pair[0].all_reduce_many([base[:60], base[40:]])
    with pytest.raises(UsageError, match="send and recv overlap"):
        pair[0].all_reduce(base[:60], base[40:])
    both = [torch.ones(100, device=device.first), torch.ones(100, device=device.first)]
    halves = [[each[:50], each[50:]] for each in both]
    succeed([lambda n=n: pair[n].all_reduce_many(halves[n]) for n in range(2)])
    assert both[0].cpu().eq(2).all()


# ── failures of the device ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [100, 1_000_000])
def test_staging_that_fails_ends_the_collective_for_everybody(pair, ours, count):
    mine, theirs = torch.ones(count, device=ours.first), torch.ones(count)
    ours.switch(fail_copies_out=1)
    told = together([lambda: pair[0].all_reduce(mine), lambda: pair[1].all_reduce(theirs)])
    for each in told:
        assert isinstance(each, CollectiveAborted)
        assert "told to fail" in str(each)
    assert theirs.eq(1).all()
    sums(pair, [mine, theirs])
    assert mine.cpu().eq(2).all()


def test_staging_that_failed_is_tried_again_with_retry(pair, ours):
    mine, theirs = [torch.ones(n, device=ours.first) for n in (5, 600_000)], [torch.ones(n) for n in (5, 600_000)]
    ours.switch(fail_copies_out=1)
    infos = succeed([lambda n=n: pair[n].all_reduce_many((mine, theirs)[n], retry=True) for n in range(2)])
    assert [info.attempts for info in infos] == [2, 2]
    assert mine[1].cpu().eq(2).all()
    assert theirs[0].eq(2).all()


def test_a_device_that_always_fails_ends_even_a_patient_call(pair, ours):
    mine, theirs = torch.ones(100, device=ours.first), torch.ones(100)
    ours.switch(fail_copies_out=1_000_000)
    told = together([lambda: pair[0].all_reduce(mine, retry=True), lambda: pair[1].all_reduce(theirs, retry=True)])
    assert all(isinstance(each, CollectiveAborted) for each in told)
    assert isinstance(told[0].__cause__, RuntimeError)
    assert theirs.eq(1).all()


def test_a_result_that_cannot_be_delivered_is_one_kind_of_error(pair, ours):
    mine, theirs = torch.ones(100, device=ours.first), torch.ones(100)
    ours.switch(fail_copies_in=1)
    told = together([lambda: pair[0].all_reduce(mine), lambda: pair[1].all_reduce(theirs)])
    assert type(told[0]) is PCCLError
    assert "committed" in str(told[0])
    assert "sync_shared_state" in str(told[0])
    assert theirs.eq(2).all()
    ours.switch(fail_copies_in=1)
    handle = pair[0].all_reduce_async(mine)
    pair[1].all_reduce(theirs)
    success, result, _ = handle.wait()
    assert (success, result) == (False, Result.INTERNAL_ERROR)


# ── memory and waits ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_five_hundred_tensors_wait_twice_for_the_device(pair, ours):
    tensors = [torch.full((100,), float(n), device=ours.first) for n in range(500)]
    theirs = [torch.full((100,), float(n)) for n in range(500)]
    for _ in range(2):
        ours.settle()
        before = ours.counts()
        succeed([lambda: pair[0].all_reduce_many(tensors), lambda: pair[1].all_reduce_many(theirs)])
        after = ours.counts()
        # One for the copies in each direction; one more if the caller's stream, which is idle, has not yet said so.
        assert after["waits"] - before["waits"] in (2, 3)
        assert after["bytes_out"] - before["bytes_out"] == after["bytes_in"] - before["bytes_in"] == 200_000
    assert tensors[100].cpu().eq(400).all()


def test_pinned_memory_is_bounded(pair, ours):
    before = ours.count("pinned")
    tensors = [[torch.ones(12 * MIB, device=ours.first) for _ in range(3)] for _ in range(2)]
    works = [c.all_reduce_many(own, async_op=True) for c, own in zip(pair, tensors, strict=True)]
    for work in works:
        work.wait()
    assert tensors[0][2].cpu().eq(2).all()
    assert ours.count("pinned_peak") - before <= 2 * 64 * MIB
    kept = sum(stretch.nbytes for stretch in pair[0]._staging._free)
    assert kept <= 2 * 3 * 12 * MIB * 4 + 4 * MIB, "twice the tensors, in whole pages"


def test_what_has_ended_keeps_nothing(pair, device):
    tensors = [torch.ones(1000, device=device.first) for _ in range(2)]
    kept = weakref.ref(tensors[0])
    works = [c.all_reduce(t, async_op=True) for c, t in zip(pair, tensors, strict=True)]
    for work in works:
        work.wait()
    tensors.clear()
    gc.collect()
    assert kept() is None
    assert works[0].wait().local_world_size == 2
