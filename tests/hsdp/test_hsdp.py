"""More processes than fit into the other tests: nodes of two by two ranks, and twenty kills. `make test-hsdp`."""

import os

import pytest

from tests.e2e.harness import Process
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_oracle import close
from tests.training.test_processes import UNTIL_STOPPED, master, processes
from tests.training.test_sharded import (
    MODES,
    PLAIN,
    equal_rounds,
    kill_between_commits,
    node_data,
    nodes,
    stopped,
    tensors,
)

TOOK = "seconds from the kill of a rank to the next round of the other nodes"

__all__ = ["master", "nodes", "processes"]

pytestmark = pytest.mark.skipif("PCCL_TEST_HSDP" not in os.environ, reason="make test-hsdp runs these")


@pytest.mark.parametrize("mode", ["plain", "streaming"])
def test_two_nodes_of_two_by_two_ranks(nodes, monkeypatch, mode):
    """Ranks with the same shards reduce a half of them each, and hold equal bits; also where each began otherwise."""
    options, train = MODES[mode]
    facts = {"ranks": 4, "copies": 2, "rounds": 3, "whole": True, "outer": True, "options": {**PLAIN, **options}}
    both = [nodes.start(**facts) for _ in range(2)]
    ends = [rank.expect("done") for node in both for rank in node]
    assert len(equal_rounds(*both)) >= 2
    assert all(end["outer"] == ends[0]["outer"] for end in ends)
    monkeypatch.setattr(oracle, "data", node_data(4))
    close(tensors(ends[0]["outer"]), train()[0].theta, 1e-5)


def test_ranks_with_the_same_shards_stay_equal_on_a_newcomer(nodes):
    facts = {"ranks": 4, "copies": 2, "whole": True, "outer": True, "adam": True}
    one = nodes.start(rounds=40, seed=1, step_s=0.02, options={**PLAIN, "min_peers": 1}, **facts)
    for rank in one:
        rank.expect("begins")
    two = nodes.start(rounds=40, seed=2, step_s=0.02, options={**PLAIN, "min_peers": 1}, **facts)
    assert all(rank.expect("joined")["round"] > 0 for rank in two)
    ends = [rank.expect("done") for node in (one, two) for rank in node]
    equal_rounds(one, two)
    assert all(end["model"] == ends[0]["model"] for end in ends)
    assert all(end["state"] == ends[0]["state"] for end in ends[:4])
    assert all(end["state"] == ends[4]["state"] for end in ends[4:])


@pytest.mark.parametrize("number", range(20))
def test_twenty_kills(nodes, monkeypatch, record_property, number):
    record_property(TOOK, kill_between_commits(nodes, monkeypatch, killed=number % 2, commits=1 + number % 5))


def test_a_node_that_was_put_out_joins_again_with_all_its_ranks(master, nodes, processes):
    facts = {"rounds": UNTIL_STOPPED, "whole": True, "step_s": 0.02, "options": {**PLAIN, "min_peers": 1}}
    one, two = nodes.start(**facts), nodes.start(**facts)
    peer = two[0].expect("joined")["peer"]
    for rank in (*one, *two):
        rank.expect("round")
    processes.append(Process("-m", "pccl", "kick", peer, master.address, "--reason", "a test"))
    assert processes[-1].process.wait(timeout=HANG_S) == 0
    for rank in two:
        while "Joining again" not in rank.expect("log")["text"]:
            pass
    while two[0].expect("round")["peers"] < 2:
        pass
    stopped(two)
    stopped(one)
    assert len(equal_rounds(one, two)) > 2
