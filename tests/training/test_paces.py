"""Sharded models where a decision follows from measured times: all ranks of a node decide alike, whatever each of them
has measured, for ranks that make another number of steps wait for each other for ever."""

import pytest
import torch

from tests.training import oracle
from tests.training.test_oracle import close
from tests.training.test_processes import master, processes
from tests.training.test_sharded import PLAIN, equal_rounds, node_data, nodes, tensors

__all__ = ["master", "nodes", "processes"]


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(oracle, "data", node_data(2))


def ends_of(*played):
    """What all ranks of all nodes end with is the same; returns that of each node's first."""
    ends = [[rank.expect("done") for rank in node] for node in played]
    assert all(end["outer"] == ends[0][0]["outer"] for node in ends for end in node)
    equal_rounds(*played)
    return [node[0] for node in ends]


def steps_of(node):
    """That each round had of a node: the same on all its ranks."""
    steps = [[said["steps"] for said in rank.seen if said["event"] == "round"] for rank in node]
    assert all(each == steps[0] for each in steps)
    return steps[0]


def test_eager(nodes, data):
    """What each node starts its last round from is its own."""
    options = {**PLAIN, "overlap": "round", "eager": True}
    both = [nodes.start(rounds=3, whole=True, outer=True, options=options) for _ in range(2)]
    starts = [rank.expect("starts")["model"] for node in both for rank in node]
    assert (starts[0], starts[2]) == (starts[1], starts[3])
    for start, outer in zip(starts[::2], oracle.train_eager(2, 3, 4, 0.4, 0.9)[0], strict=True):
        close(tensors(start), outer.theta, 1e-5)
    ends_of(*both)


def test_as_few_steps_of_overlap_as_hide_the_reduction(nodes, data):
    """The last node to come does not wait, and the last of its ranks has waited for none: a step and a half."""
    facts = {"rounds": 4, "whole": True, "outer": True, "options": {**PLAIN, "overlap": "auto"}}
    told = [{0: {"timed": [1.0, 40.0]}, 1: {"timed": [0.2, 0.1]}}, {0: {"timed": [0.5, 0.1]}, 1: {"timed": [1.0, 1.5]}}]
    both = [nodes.start(**facts, fates=fates) for fates in told]
    end = ends_of(*both)[0]
    close(tensors(end["outer"]), oracle.train_overlapped(2, 4, 4, 0.7, 0.9, [0, 2, 2, 2], 0.0)[0].theta, 1e-5)


def test_the_pace_of_a_node_is_that_of_its_slowest_rank(nodes, data):
    facts = {"rounds": 3, "whole": True, "outer": True, "options": {**PLAIN, "pace": "speed"}}
    told = [{0: {"timed": [1.0, 0.1]}, 1: {"timed": [0.2, 0.1]}}, {0: {"timed": [0.1, 0.1]}, 1: {"timed": [2.0, 0.1]}}]
    both = [nodes.start(**facts, fates=fates) for fates in told]
    end = ends_of(*both)[0]
    assert [steps_of(node) for node in both] == [[4, 4, 4], [4, 2, 2]]
    quotas = [(4, 4), (4, 2), (4, 2)]
    close(tensors(end["outer"]), oracle.train(2, 3, 4, 0.7, 0.9, quotas=quotas)[0].theta, 1e-5)


def test_a_slow_node_contributes_what_it_has_when_patience_ends(nodes, data):
    """Though one of its ranks alone knows."""
    options = {**PLAIN, "sync_every": 10, "patience_s": 1.0}
    facts = {"rounds": 3, "whole": True, "outer": True, "options": options}
    both = [nodes.start(**facts, fates=fates) for fates in ({}, {0: {"unaware": []}, 1: {"slow": [1.0]}})]
    end = ends_of(*both)[0]
    steps = [steps_of(node) for node in both]
    assert steps[0] == [10] * 3
    assert all(0 < made < 10 for made in steps[1])
    expected = oracle.train(2, 3, 10, 0.7, 0.9, quotas=list(zip(*steps, strict=True)))[0]
    close(tensors(end["outer"]), expected.theta, 1e-5)


TIMED = {
    "auto": {"overlap": "auto"},
    "eager": {"overlap": "round", "eager": True},
    "streaming": {"fragments": 3, "overlap": 1, "quantize": "int4"},
}


@pytest.mark.parametrize("mode", TIMED)
def test_all_at_once_with_times_as_they_are(nodes, mode):
    """Nodes and ranks of unequal speed."""
    options = {**PLAIN, "sync_every": 8, "pace": "speed", "patience_s": 0.1, **TIMED[mode]}
    facts = {"rounds": 8, "whole": True, "outer": True, "options": options}
    fates = {1: {"slow": [0.02]}}, {0: {"slow": [0.1]}, 1: {"slow": [0.06]}}
    both = [nodes.start(**facts, fates=each) for each in fates]
    ends_of(*both)
    assert min(steps_of(both[1])) < 8
    assert torch.isfinite(
        torch.cat([each.reshape(-1) for each in tensors(both[0][0].seen[-1]["outer"]).values()])
    ).all()
