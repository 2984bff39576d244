"""A rank of a node that hangs, and does not die: the other nodes go on without its node, which comes back or ends."""

import signal
import threading
from types import SimpleNamespace

import pytest

from pccl.training.fsdp.checkpoint import ShardedSaver
from tests.e2e.harness import MasterProcess
from tests.patience import HANG_S, HICCUP_S, slowness
from tests.training.test_processes import UNTIL_STOPPED, processes
from tests.training.test_sharded import PLAIN, Nodes, equal_rounds, killed_off, logged, stopped

__all__ = ["processes"]


def limit():
    """Of waits of the master and of torch, in seconds, short for a test; longer than a process may get no processor."""
    return (HICCUP_S + 1) * slowness()


FACTS = {"rounds": UNTIL_STOPPED, "whole": True, "step_s": 0.02, "options": {**PLAIN, "min_peers": 1}}


@pytest.fixture
def master(processes):
    """Which says how long it waits."""

    def start(**limits):
        processes.append(MasterProcess(**limits))
        return processes[-1]

    return start


@pytest.fixture
def nodes(master, tmp_path, processes):
    """The first node of a run, and one that comes later and of which a rank meets a fate after some rounds."""

    def start(limits, fate, **facts):
        made = Nodes(master(**limits), tmp_path, processes)
        one = made.start(**FACTS)
        for rank in one:
            rank.expect("round")
        two = made.start(**FACTS, **facts, fates={1: fate})
        await_peers(one, 2)
        return one, two

    return start


def await_peers(node, number):
    """Until a round of so many nodes."""
    while node[0].expect("round")["peers"] != number:
        pass


def test_a_rank_that_is_stopped_in_a_step_comes_back_with_its_node(nodes):
    """Its mates wait in the model's own collectives."""
    one, two = nodes({"silence_s": limit()}, {"stopped": ["step", 16]})
    two[1].expect("stops")
    await_peers(one, 1)
    two[1].signal(signal.SIGCONT)
    await_peers(one, 2)
    for rank in two:
        rank.expect("round")
    stopped(two)
    stopped(one)
    equal_rounds(one, two)
    assert all(logged(rank, "Joining again") for rank in two)


def test_a_rank_that_is_stopped_while_its_mates_wait_in_the_run_ends_its_node(nodes):
    """Its mates end before it goes on."""
    one, two = nodes({"silence_s": limit()}, {"stopped": ["exchange", 16]}, grace_s=1)
    two[1].expect("stops")
    await_peers(one, 1)
    assert two[0].process.wait(timeout=HANG_S) not in (0, None)
    two[1].signal(signal.SIGCONT)
    assert two[1].process.wait(timeout=HANG_S) not in (0, None)
    stopped(one)
    equal_rounds(one, two)


def test_a_step_that_never_ends_holds_other_nodes_up_no_longer_than_votes_are_waited_for(nodes):
    """It answers pings. Torch's own timeout, which ends its mates, is later."""
    one, two = nodes({"vote_timeout_s": limit()}, {"hung": [16]}, timeout_s=2 * HANG_S)
    two[1].expect("hangs")
    await_peers(one, 1)
    assert two[0].process.poll() is None
    stopped(one)
    killed_off(two)
    equal_rounds(one, two)


def test_without_a_limit_on_votes_the_timeout_of_torch_ends_a_node_that_hangs(nodes):
    one, two = nodes({}, {"hung": [16]}, timeout_s=limit())
    two[1].expect("hangs")
    assert two[0].process.wait(timeout=HANG_S) not in (0, None)
    await_peers(one, 1)
    stopped(one)
    killed_off(two)
    equal_rounds(one, two)


def test_a_checkpoint_that_a_rank_does_not_write_is_not_waited_for(tmp_path, monkeypatch):
    """The thread that writes it is left to end with the process."""
    node = SimpleNamespace(lost=False, another_group=lambda: None)
    saver, begun, over = ShardedSaver(tmp_path, 1, 3, node), threading.Event(), threading.Event()
    monkeypatch.setattr(saver, "_write", lambda *_: (begun.set(), over.wait(HANG_S)))
    saver.begin(1, {})
    begun.wait(HANG_S)
    assert saver._thread.daemon
    node.lost = True
    saver.finish()
    assert saver.busy
    over.set()
    node.lost = False
    saver.finish()
    assert not saver.busy
