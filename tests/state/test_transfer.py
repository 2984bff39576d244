"""Transfers over real lanes between holders and a requester that do what they should."""

import time

import numpy as np
import pytest
from msgspec import structs

from pccl.dataplane.state.digests import CHUNK_BYTES, DIGEST_BYTES, chunks, digest
from pccl.dataplane.state.manifest import Chunk, Described, Entry, Holding, Manifest, difference
from pccl.dataplane.state.serving import ASKED_MAX, REQUEST_BYTES
from pccl.dataplane.state.transfer import Header, Kind
from pccl.dataplane.tensors.buffers import Tensor
from pccl.types import DataType
from tests.state.puppet import Puppet
from tests.state.rig import Content, blank, copied, equal, goal, holding, random_content


def mixed():
    """Every type, odd sizes, odd alignment, empty ones, and many small ones."""
    made = [random_content(f"t{dtype.name}", 1001 * dtype.itemsize, dtype, dtype) for dtype in DataType]
    made += [random_content(f"s{size}", size, size, offset=size % 16) for size in (1, 15, 65537, CHUNK_BYTES)]
    made += [random_content("l", 2 * CHUNK_BYTES + 12, 3, DataType.FLOAT), Content("e", np.empty(0, np.uint8))]
    made += [Content("scalar", np.array(7, np.int64), DataType.INT64)]
    return made + [random_content(f"m{each}", 1 + each % 50, each) for each in range(500)]


def total(contents):
    return sum(content.array.nbytes for content in contents)


def pulled(rig, state, mine, newcomer=False):
    """Bring `mine` to `state` over all lanes of a rig; the reports of both sides, after checking what is always so."""
    held, own = holding(state), holding(mine)
    ends = [rig.serve(holder, held)[1] for holder in range(len(rig.far))]
    _, end = rig.pull(own, goal(held, newcomer))
    report = end.wait()
    assert (report.cause, report.broken, report.dropped) == ("", (), ())
    served = [each.wait() for each in ends]
    assert all((each.cause, each.broken, each.received_bytes) == ("", (), 0) for each in served)
    assert sum(each.sent_bytes for each in served) == report.received_bytes
    return report, served


@pytest.mark.parametrize(("holders", "lanes"), [(1, 1), (1, 3), (3, 1), (3, 2)])
def test_contents_are_equal_after_a_pull(rig, holders, lanes):
    state = mixed()
    mine = [blank(content) for content in state]
    report, _ = pulled(rig(holders, lanes), state, mine)
    assert equal(state, mine)
    assert report.received_bytes == total(state)


def test_lanes_are_used_again_for_the_next_pull(rig):
    state, made = mixed(), rig(2, 2)
    for _ in range(3):
        mine = [blank(content) for content in state]
        pulled(made, state, mine)
        assert equal(state, mine)


def test_a_goodbye_that_nobody_heard_is_not_that_of_the_next_pull(rig):
    """A master was lost after the requester had heard of the transfer, and before the holders had."""
    state, made = [random_content("x", 3 * CHUNK_BYTES, 1)], rig(2, 2)
    mine = [blank(content) for content in state]
    _, end = made.pull(holding(copied(state)), goal(holding(state)))
    assert (end.wait().cause, end.wait().broken) == ("", ())
    made.attempt += 1
    pulled(made, state, mine)
    assert equal(state, mine)


def test_every_holder_has_a_share(rig):
    state = [random_content("x", 24 * CHUNK_BYTES, 1)]
    mine = [blank(content) for content in state]
    _, served = pulled(rig(3, 1), state, mine)
    assert equal(state, mine)
    assert all(each.sent_bytes >= CHUNK_BYTES for each in served)


def test_only_what_differs_is_fetched(rig):
    state = [random_content("a", 5 * CHUNK_BYTES, 1), random_content("b", 100, 2)]
    mine = copied(state)
    mine[0].array[3 * CHUNK_BYTES] ^= 1
    report, _ = pulled(rig(2, 2), state, mine)
    assert equal(state, mine)
    assert report.received_bytes == CHUNK_BYTES


def test_in_step_nothing_is_transferred_nor_asked(rig):
    state, made = mixed(), rig(1, 1)
    held, asked = holding(state), []
    puppet = Puppet(made.far[0][0], state, held.manifest, act=lambda kind, answer: asked.append(kind))
    _, end = made.pull(holding(copied(state)), goal(held))
    report = end.wait()
    puppet.join()
    assert (report.cause, report.broken, report.received_bytes) == ("", (), 0)
    assert asked == []
    assert puppet.said_bye


def test_free_entries_are_left_alone_but_for_newcomers(rig):
    state = [random_content("a", 100, 1), random_content("b", 3 * CHUNK_BYTES, 2, free=True)]
    mine = [random_content("a", 100, 3), random_content("b", 3 * CHUNK_BYTES, 4, free=True)]
    before = copied(mine)
    report, _ = pulled(rig(2, 2), state, mine)
    assert equal(mine, [state[0], before[1]])
    assert report.received_bytes == 100
    report, _ = pulled(rig(2, 2), state, mine, newcomer=True)
    assert equal(mine, state)
    assert report.received_bytes == 3 * CHUNK_BYTES


LAYOUTS = {
    "missing": lambda state: state[:-1],
    "extra": lambda state: [*state, random_content("more", 1, 1)],
    "renamed": lambda state: [state[0]._replace(name="other"), *state[1:]],
    "order": lambda state: state[::-1],
    "type": lambda state: [state[0]._replace(dtype=DataType.INT8), *state[1:]],
    "count": lambda state: [state[0]._replace(array=state[0].array[:-1]), *state[1:]],
    "free": lambda state: [state[0]._replace(free=True), *state[1:]],
    "nothing": lambda state: [],
}


@pytest.mark.parametrize("change", LAYOUTS.values(), ids=LAYOUTS)
def test_another_layout_is_named_and_nothing_is_written(rig, change):
    state = [random_content(name, 100, 1) for name in "abc"]
    mine = change([random_content(name, 100, 2) for name in "abc"])
    before, made = copied(mine), rig(2, 1)
    held, own = holding(state), holding(mine)
    ends = [made.serve(holder, held)[1] for holder in range(2)]
    _, end = made.pull(own, goal(held))
    report = end.wait()
    assert report.cause == difference(own.manifest, held.manifest) != ""
    assert (report.broken, report.received_bytes) == ((), 0)
    assert [each.wait().broken for each in ends] == [(), ()]
    assert equal(mine, before)


def test_a_tensor_beyond_4_gib(rig):
    """Untouched pages of zeros: only the last chunk differs, and only it is read."""
    count = (1 << 30) + (9 << 20) + 5  # floats
    sides = []
    for value in (3.0, 0.0):
        array = np.zeros(count, np.float32)
        array[-1] = value
        number = chunks(array.nbytes)
        zeros = digest(bytes(CHUNK_BYTES))
        tail = digest(array[(number - 1) * CHUNK_BYTES // 4 :].tobytes())
        entry = Entry("big", DataType.FLOAT, count, False, Tensor(array.ctypes.data, count, DataType.FLOAT, array))
        described = Described("big", DataType.FLOAT, count, False, zeros * (number - 1) + tail)
        assert len(described.digests) == number * DIGEST_BYTES
        sides.append((array, Holding([entry], Manifest((described,)))))
    (_, held), (array, own) = sides
    made = rig(1, 1)
    made.serve(0, held)
    _, end = made.pull(own, goal(held))
    report = end.wait()
    assert report.cause == ""
    assert report.received_bytes == 20
    assert array[-1] == 3.0


def test_a_rate_limit_holds_over_all_lanes_and_others_take_over(rig):
    state = [random_content("x", 16 * CHUNK_BYTES, 1)]
    mine, made = [blank(content) for content in state], rig(2, 2)
    held = holding(state)
    _, slow = made.serve(0, held, rate_bytes_s=16e6)
    _, fast = made.serve(1, held)
    _, end = made.pull(holding(mine), goal(held))
    report = end.wait()
    assert report.cause == ""
    assert equal(state, mine)
    made.close_broken(report)  # lanes that were overtaken at the end
    assert slow.wait().sent_bytes < fast.wait().sent_bytes


@pytest.mark.parametrize("holders", [1, 2])
def test_a_visitor_leaves_out_what_has_changed_and_blames_nobody(rig, holders):
    state = [random_content("x", 6 * CHUNK_BYTES, 1), random_content("y", 100, 2)]
    mine, made, held = [blank(content) for content in state], rig(holders, 2), holding(state)
    state[0].array[2 * CHUNK_BYTES + 7] ^= 1
    ends = [made.serve(holder, held, rate_bytes_s=1e9)[1] for holder in range(holders)]
    _, end = made.pull(holding(mine), structs.replace(goal(held), visit=True))
    report = end.wait()
    assert (report.cause, report.dropped, report.received_bytes) == ("", (), total(state))
    changed = slice(2 * CHUNK_BYTES, 3 * CHUNK_BYTES)
    assert not mine[0].array[changed].any()
    mine[0].array[changed] = state[0].array[changed]
    assert equal(state, mine)
    assert [each.wait().cause for each in ends] == [""] * holders


def test_a_visitor_that_asks_for_nothing_is_not_waited_for(rig):
    made = rig(1, 2)
    _, end = made.serve(0, holding([random_content("x", 10, 1)]), stall_s=0.2, rate_bytes_s=1e9)
    report = end.wait()
    assert (report.cause, report.broken) == ("", (0, 1))


def test_a_visitor_cannot_ask_without_end(rig):
    made = rig(1, 1)
    held = holding([random_content("x", CHUNK_BYTES + 1, 1)])
    asked = ASKED_MAX * (1 + 2)
    _, end = made.serve(0, held, rate_bytes_s=1e9)
    lane = made.near[0][0]
    lane.setblocking(True)
    request = Header(Kind.CHUNK, Chunk(0, 1), 1).pack()
    lane.sendall(request * (asked + 1))
    report = end.wait()
    assert (report.cause, report.broken, report.sent_bytes) == ("", (0,), asked)


def test_manifests_and_small_requests_count_for_the_rate(rig):
    made = rig(1, 1)
    state = [random_content(f"entry {place}", 1, place) for place in range(1_000)]
    held, mine = holding(state), holding([blank(content) for content in state])
    begin = time.monotonic()
    made.serve(0, held, rate_bytes_s=4_000 * REQUEST_BYTES)
    _, end = made.pull(mine, structs.replace(goal(held), visit=True))
    assert end.wait().cause == ""
    assert time.monotonic() - begin > 0.9 * 0.25


def test_with_nobody_to_ask_it_fails_at_once(rig):
    state = [random_content("x", 10, 1)]
    _, end = rig(0).pull(holding([blank(state[0])]), goal(holding(state)))
    assert end.wait().cause == "no holder was named"


def test_serving_nobody_ends_at_once(rig):
    made = rig(1, 0)
    _, end = made.serve(0, holding([]))
    assert end.wait().cause == ""
