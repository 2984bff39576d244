"""Newcomers that fetch the shared state while the others train on, and then join: real processes, some of which die."""

import signal
from statistics import median

import pytest

from tests.e2e.harness import all_do, join
from tests.patience import HANG_S

MEGABYTE = 1 << 20
MODEL = [["frozen", 16 * MEGABYTE, "float32"], ["head", 1_000, "int32"]]
FROZEN_BYTES, HEAD_BYTES = 64 * MEGABYTE, 4_000
CHUNK_BYTES = 4 * MEGABYTE
SERVED_BYTES_S = 20_000_000
"""Of each holder: with three the newcomer needs about a second, in which many steps are made."""


def start(start_peers, master, count, **settings):
    return start_peers(count, master.address, token=False, **settings)


def settle(peers):
    """Let them hold the same, and be told so."""
    all_do(peers, "hold", entries=MODEL, seed=1, revision=3)
    all_do(peers, "sync")
    return peers


@pytest.fixture
def holders(master, start_peers):
    return settle(join([], start(start_peers, master, 3, serve_bytes_s=SERVED_BYTES_S)))


@pytest.fixture
def newcomer(master, start_peers):
    (peer,) = start(start_peers, master, 1)
    peer.do("hold", entries=MODEL, seed=2)
    return peer


def train(peers, **more):
    """Let them train until somebody connects; returns when they do."""
    for peer in peers:
        peer.order("round", **more)
    for peer in peers:
        peer.expect("stepped")


def read_steps(peer):
    """How long each step took that it has made and nobody has read of yet."""
    took = []
    while not peer.says_nothing():
        took.append(peer.expect("stepped")["step_s"])
    return took


def admit(newcomer, holders):
    """Let it in, which ends their round, and let all of them sync; what they say."""
    newcomer.do("connect")
    for peer in holders:
        peer.expect("round")
    said = all_do([*holders, newcomer], "sync")
    assert len({each["digest"] for each in said}) == 1
    assert {each["revision"] for each in said} == {4}
    return said


def test_the_others_train_on_and_only_what_changed_is_left_for_the_sync(holders, newcomer):
    train(holders, learns=["head"])
    read_steps(holders[0])
    fetched = newcomer.do("prefetch")
    steps = read_steps(holders[0])
    *_, got = admit(newcomer, holders)
    assert FROZEN_BYTES <= fetched["rx"] <= FROZEN_BYTES + HEAD_BYTES
    assert (fetched["revision"], fetched["torn"]) == (0, True)
    assert fetched["seconds"] > 0.9 * FROZEN_BYTES / (3 * SERVED_BYTES_S)
    assert len(steps) >= 5
    assert got["rx"] == HEAD_BYTES


@pytest.mark.parametrize("data_plane", ["native", "reference"])
def test_a_large_state_of_which_little_changes(master, start_peers, data_plane):
    """256 MB: `-s` shows the figures."""
    model = [["frozen", 63 * MEGABYTE, "float32"], ["head", MEGABYTE, "int32"]]
    plane = {"PCCL_DATA_PLANE": data_plane}
    holders = join([], start(start_peers, master, 3, serve_bytes_s=2 * SERVED_BYTES_S, settings=plane))
    (newcomer,) = start(start_peers, master, 1, settings=plane)
    newcomer.order("hold", entries=model, seed=2)
    all_do(holders, "hold", entries=model, seed=1, revision=3)
    newcomer.expect("hold")
    all_do(holders, "sync")
    train(holders, learns=["head"])
    for _ in range(20):
        holders[0].expect("stepped")
    read_steps(holders[0])
    alone = [holders[0].expect("stepped")["step_s"] for _ in range(100)]
    read_steps(holders[0])
    fetched = newcomer.do("prefetch")
    meanwhile = read_steps(holders[0])
    *_, got = admit(newcomer, holders)
    print(
        f"{data_plane}: {fetched['rx']:,} bytes fetched in {fetched['seconds']:.2f} s, {got['rx']:,} in the sync; a "
        f"step took {median(alone) * 1e3:.2f} ms before (of {len(alone)}), {median(meanwhile) * 1e3:.2f} ms meanwhile "
        f"(of {len(meanwhile)})"
    )
    assert 252 * MEGABYTE <= fetched["rx"] <= 256 * MEGABYTE + 4 * CHUNK_BYTES
    assert len(meanwhile) >= 20
    assert got["rx"] == CHUNK_BYTES


def test_what_nobody_changed_is_not_fetched_again(holders, newcomer):
    train(holders)
    fetched = newcomer.do("prefetch")
    assert fetched["rx"] == FROZEN_BYTES + HEAD_BYTES
    assert newcomer.do("prefetch")["rx"] == 0
    *_, got = admit(newcomer, holders)
    assert got["rx"] == 0


def test_a_holder_that_is_killed_meanwhile_is_done_without(holders, newcomer):
    for peer, die_at in zip(holders, (None, 5 * MEGABYTE, None), strict=True):
        peer.order("round", die_at=die_at)
    fetched = newcomer.do("prefetch")
    assert holders[1].process.wait(HANG_S) == -signal.SIGKILL
    assert FROZEN_BYTES + HEAD_BYTES <= fetched["rx"] < FROZEN_BYTES + HEAD_BYTES + 4 * CHUNK_BYTES
    *_, got = admit(newcomer, [holders[0], holders[2]])
    assert got["rx"] == 0


def test_a_visitor_that_is_killed_costs_nobody_anything(master, start_peers, holders, newcomer):
    train(holders)
    (doomed,) = start(start_peers, master, 1)
    doomed.do("hold", entries=MODEL, seed=3)
    doomed.order("prefetch", die_at=10 * MEGABYTE)
    assert doomed.process.wait(HANG_S) == -signal.SIGKILL
    read_steps(holders[0])
    holders[0].expect("stepped")
    assert newcomer.do("prefetch")["rx"] == FROZEN_BYTES + HEAD_BYTES
    *_, got = admit(newcomer, holders)
    assert got["rx"] == 0


def test_holders_leave_while_they_serve(holders, newcomer):
    newcomer.order("prefetch")
    for peer in holders:
        peer.do("await_serving")
    for peer in holders:
        assert peer.do("close")["seconds"] < 2.0
    failed = newcomer.expect("failed")
    assert failed["error"] == "SyncFailed"
    newcomer.do("connect")


def test_with_nobody_there_or_nothing_to_give_nothing_is_fetched(master, start_peers, newcomer):
    assert newcomer.do("prefetch")["rx"] == 0
    stingy = settle(join([], start(start_peers, master, 2, serve_bytes_s=0)))
    assert newcomer.do("prefetch")["rx"] == 0
    train(stingy)
    *_, got = admit(newcomer, stingy)
    assert got["rx"] == FROZEN_BYTES + HEAD_BYTES


def test_what_was_fetched_makes_nobody_a_holder(holders, newcomer):
    assert newcomer.do("prefetch")["rx"] == FROZEN_BYTES + HEAD_BYTES
    for peer in holders:
        peer.kill()
    newcomer.do("connect")
    newcomer.order("sync")
    failed = newcomer.expect("failed")
    assert failed["error"] == "CallMismatch"
    assert "prefetch" in failed["reason"]


def test_a_holder_that_stands_still_is_done_without(master, start_peers, holders):
    (newcomer,) = start(start_peers, master, 1, stall_s=1)
    newcomer.do("hold", entries=MODEL, seed=2)
    newcomer.order("prefetch")
    holders[1].do("await_serving")
    holders[1].stop()
    fetched = newcomer.expect("prefetch")
    holders[1].signal(signal.SIGCONT)
    assert FROZEN_BYTES + HEAD_BYTES <= fetched["rx"] < FROZEN_BYTES + HEAD_BYTES + 12 * CHUNK_BYTES
    train(holders)
    *_, got = admit(newcomer, holders)
    assert got["rx"] == 0


def test_more_visitors_than_are_served_hurt_nobody(master, start_peers, holders):
    crowd = start(start_peers, master, 6)
    for seed, peer in enumerate(crowd):
        peer.do("hold", entries=MODEL, seed=10 + seed)
    train(holders, learns=["head"])
    for peer in crowd:
        peer.order("prefetch")
    said = [peer.expect_any(("prefetch", "failed")) for peer in crowd]
    assert sum(each["event"] == "prefetch" for each in said) >= 4
    assert {each["error"] for each in said if each["event"] == "failed"} <= {"SyncFailed"}
    *_, got = admit(crowd[0], holders)
    assert got["rx"] <= FROZEN_BYTES + HEAD_BYTES


def test_other_entries_are_named(holders, newcomer):
    newcomer.do("hold", entries=[MODEL[0], ["head", 1_001, "int32"]], seed=2)
    newcomer.order("prefetch")
    failed = newcomer.expect("failed")
    assert failed["error"] == "CallMismatch"
    assert "head" in failed["reason"]


def test_a_state_that_is_gone_is_not_served(holders, newcomer):
    all_do(holders, "drop")
    newcomer.order("prefetch")
    assert newcomer.expect("failed")["error"] == "SyncFailed"
