"""all_reduce end to end: real processes, a real master, native lanes."""

import random
import signal

import pytest

from tests.e2e.harness import all_do, join
from tests.patience import HANG_S

MEGABYTE = 1 << 20


def reduce_all(peers, count, **arguments):
    """Every peer contributes the pattern plus its own share; the results, checked."""
    for share, peer in enumerate(peers):
        peer.order("reduce", count=count, share=share, **arguments)
    answers = [peer.expect("reduce") for peer in peers]
    assert len({answer["digest"] for answer in answers}) == 1
    assert {answer["peers"] for answer in answers} == {len(peers)}
    total = sum(range(len(peers)))
    expected = [float(total)] * 2 if count and arguments.get("op", "SUM") == "SUM" else answers[0]["surplus"]
    assert all(answer["surplus"] == expected for answer in answers)
    return answers


@pytest.mark.parametrize("size", [2, 3, 4])
def test_sums_are_exact_and_equal_everywhere(master, start_peers, size):
    peers = join([], start_peers(size, master.address, token=False))
    for count in (0, 1, 2, size + 1, 1009, MEGABYTE + 1):
        for apart in (False, True):
            reduce_all(peers, count, apart=apart)


def test_average_divides_by_the_contributors(master, start_peers):
    peers = join([], start_peers(3, master.address, token=False))
    answers = reduce_all(peers, 1009, op="AVG")
    assert answers[0]["surplus"] == [1.0, 1.0]


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float64"])
def test_types(master, start_peers, dtype):
    peers = join([], start_peers(2, master.address, token=False))
    reduce_all(peers, 1009, dtype=dtype)


def test_bytes_on_the_wire_are_those_of_a_ring(master, start_peers):
    peers = join([], start_peers(4, master.address, token=False))
    payload = 4 * 4 * MEGABYTE
    for answer in reduce_all(peers, 4 * MEGABYTE):
        assert 1.5 * payload <= answer["sent"] <= 1.5 * payload * 1.01


@pytest.mark.parametrize(("seed", "threads"), [*((seed, 1) for seed in range(5)), (5, 2), (6, 3), (7, 4)])
def test_sigkill_at_ten_byte_offsets(master, start_peers, seed, threads):
    """Whenever a peer dies in 64 MB, survivors get an error with their input intact, or the result if all had it; and
    the next attempt is right."""
    draw = random.Random(seed)
    count = 16 * MEGABYTE
    settings = {"token": False, "lane_threads": threads}
    survivors = join([], start_peers(2, master.address, **settings))
    per_peer = 2 * 2 / 3 * 4 * count * 2  # both ways
    aborted = 0
    for _ in range(10):
        (victim,) = start_peers(1, master.address, **settings)
        join(survivors, [victim])
        victim.order("reduce", count=count, share=7, die_at=int(draw.random() * per_peer))
        for share, peer in enumerate(survivors):
            peer.order("reduce", count=count, share=share)
        aborted += sum(_ends_well(peer) for peer in survivors)
        assert victim.process.wait(HANG_S) == -signal.SIGKILL
        all_do(survivors, "await_size", size=2)
        reduce_all(survivors, count)
    assert aborted >= 8, f"only {aborted} survivors' calls were hit: the victims died too late to show anything"


def _ends_well(peer):
    """True for an error with the input intact, False for a result that includes the dead."""
    said = peer.expect_any(("input", "reduce"))
    if said["event"] == "reduce":
        assert said["peers"] == 3
        assert said["surplus"] == [8.0, 8.0]
        return False
    assert said["intact"]
    failed = peer.expect("failed")
    assert failed["error"] == "CollectiveAborted"
    return True
