"""Sharded models: nodes whose ranks hold one model together end with what one process computes, and with equal bits."""

import json
import signal
import time

import pytest
import safetensors.torch
import torch

from tests.e2e.harness import ForkedProcess
from tests.e2e.nursery import TORCH
from tests.patience import HANG_S, allow
from tests.training import oracle
from tests.training.node_rank import Odd
from tests.training.test_oracle import close
from tests.training.test_processes import UNTIL_STOPPED, Said, master, processes

__all__ = ["master", "processes"]

IMPORTS = (
    *TORCH,
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "pccl.training.diloco",
    "pccl.training.fsdp.contents",
    "tests.training.node_rank",
)


class Rank(Said, ForkedProcess):
    def __init__(self, **told):
        self.seen = []
        super().__init__("tests.training.node_rank", json.dumps(told), settings={}, imports=IMPORTS)


class Nodes:
    """Nodes of so many ranks each."""

    def __init__(self, master, folder, processes, ranks=2):
        self._address, self._folder, self._processes, self._ranks = master.address, folder, processes, ranks
        self._number = 0

    def start(self, **told):
        """A node."""
        number = told.pop("number", self._number)
        ranks = told.pop("ranks", self._ranks)
        store = self._folder / f"store-{self._number}"
        self._number += 1
        node = []
        for rank in range(ranks):
            facts = {"address": self._address, "number": number, "rank": rank, "ranks": ranks, "store": str(store)}
            node.append(Rank(**facts, **told))
        self._processes.extend(node)
        return node


@pytest.fixture
def nodes(master, tmp_path, processes):
    return Nodes(master, tmp_path, processes)


def node_data(ranks):
    """The batches of all ranks of a node: the mean over them has the mean of their gradients."""
    own = oracle.data

    def data(peer, step, dtype=torch.float32):
        batches = [own(peer * ranks + rank, step, dtype) for rank in range(ranks)]
        return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])

    return data


def tensors(told):
    return {name: torch.tensor(each) for name, each in told.items()}


def equal_rounds(*played):
    """What all nodes told of a round is the same; returns it."""
    found = {}
    for rank in (rank for node in played for rank in node):
        rank.drain()
        for number, digest in rank.rounds().items():
            assert found.setdefault(number, digest) == digest, f"round {number}"
    return found


PARTS = [[f"{layer}.{kind}" for kind in ("weight", "bias")] for layer in (0, 2, 4)]
"""Blocks of layers by turns."""

MODES = {
    "plain": ({}, lambda: oracle.train(2, 3, 4, 0.7, 0.9)),
    "overlapped": ({"overlap": 2, "mix": 0.25}, lambda: oracle.train_overlapped(2, 3, 4, 0.7, 0.9, [2] * 3, 0.25)),
    "streaming": (
        {"fragments": 3, "overlap": 1, "mix": 0.5},
        lambda: oracle.train_streaming(2, 3, 4, 0.4, 0.9, 1, 0.5, PARTS),
    ),
    "delayed": ({"overlap": "round"}, lambda: oracle.train_delayed(2, 3, 4, 0.7, 0.0)),
}


@pytest.mark.parametrize("mode", MODES)
def test_nodes_end_with_what_one_process_computes(nodes, monkeypatch, mode):
    options, train = MODES[mode]
    options = {"sync_every": 4, "min_peers": 2, **options}
    both = [nodes.start(rounds=3, whole=True, outer=True, options=options) for _ in range(2)]
    ends = [rank.expect("done") for node in both for rank in node]
    assert all(end["outer"] == ends[0]["outer"] for end in ends)
    assert len(equal_rounds(*both)) >= 2  # With delay the last one is merged where training ends.
    monkeypatch.setattr(oracle, "data", node_data(2))
    outer, _ = train()
    close(tensors(ends[0]["outer"]), outer.theta, 1e-5)


def logged(rank, words):
    """Whether a rank has logged this."""
    return any(words in said["text"] for said in rank.seen if said["event"] == "log")


PLAIN = {"sync_every": 4, "min_peers": 2}


def test_odd_sizes_tied_and_frozen_parameters_and_buffers(nodes, monkeypatch):
    both = [nodes.start(rounds=3, whole=True, model="odd", outer=True, options=PLAIN) for _ in range(2)]
    ends = [rank.expect("done") for node in both for rank in node]
    assert len(equal_rounds(*both)) == 3
    assert all(end["outer"] == ends[0]["outer"] and end["buffers"] == ends[0]["buffers"] for end in ends)
    assert ends[0]["buffers"]["seen"][0] > 0
    monkeypatch.setattr(oracle, "data", node_data(2))
    monkeypatch.setattr(oracle, "make_model", Odd)
    theta = {name: each for name, each in oracle.train(2, 3, 4, 0.7, 0.9)[0].theta.items() if "frozen" not in name}
    close(tensors(ends[0]["outer"]), theta, 1e-5)


def test_models_that_begin_otherwise_mixed_precision_and_codes(nodes):
    """All take the model of one node, and not shards of several."""
    options = {**PLAIN, "quantize": "int4", "fragments": 2, "overlap": 1}
    facts = {"rounds": 3, "whole": True, "model": "odd", "mixed": True, "clip": 1.0, "options": options}
    both = [nodes.start(seed=seed, **facts) for seed in (1, 2)]
    begins = [rank.expect("begins") for node in both for rank in node]
    for rank in (rank for node in both for rank in node):
        rank.expect("done")
    assert len(equal_rounds(*both)) >= 2
    assert {begin["digest"] for begin in begins} <= {begin["before"] for begin in begins}
    assert len({begin["digest"] for begin in begins}) == 1
    assert len({begin["before"] for begin in begins}) == 2


def test_nodes_that_wait_for_more_of_them_have_lost_nothing(nodes):
    """All begin otherwise, and which model is taken is open until enough are here."""
    facts = {"rounds": 1, "whole": True, "ranks": 1, "options": {**PLAIN, "min_peers": 3}}
    first = [nodes.start(seed=seed, **facts) for seed in (1, 2)]
    while "2 peers are here" not in (first[0][0].expect("log")["text"]):
        pass
    every = [*first, nodes.start(seed=3, **facts)]
    begins = [rank.expect("begins") for (rank,) in every]
    for (rank,) in every:
        rank.expect("done")
        assert not logged(rank, "are gone")
    assert {begin["digest"] for begin in begins} <= {begin["before"] for begin in begins}


def test_a_delta_that_is_not_finite_in_one_shard_has_no_weight_on_any_rank(nodes):
    both = [nodes.start(rounds=2, whole=True, outer=True, options=PLAIN, spoiled=spoiled) for spoiled in (None, [3, 1])]
    ends = [rank.expect("done") for node in both for rank in node]
    assert len(equal_rounds(*both)) == 2
    assert all(logged(rank, "not finite: left out of the round") for node in both for rank in node)
    assert torch.isfinite(torch.cat([each.reshape(-1) for each in tensors(ends[0]["outer"]).values()])).all()


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_killed_between_the_commits_of_its_node(nodes, monkeypatch, killed):
    kill_between_commits(nodes, monkeypatch, killed, 1)


def kill_between_commits(nodes, monkeypatch, killed, commits):
    """A rank's group has committed a round with its node, the other group has not: what the node brought in that round
    counts nowhere. Its first commit is that of the roll call. Returns the seconds from the kill to the next round."""
    facts = {"rounds": UNTIL_STOPPED, "whole": True, "outer": True, "step_s": 0.02, "options": PLAIN}
    one, two = (nodes.start(**facts) for _ in range(2))
    for rank in (*one, *two):
        rank.expect("begins")
    lost = nodes.start(**facts, fates={killed: {"killed": [commits]}, 1 - killed: {"late": [commits - 1]}})
    lost[1 - killed].expect("late")
    assert lost[killed].process.wait(timeout=HANG_S) == -signal.SIGKILL
    killed_at = time.monotonic()
    one[0].skip()
    one[0].expect("round")
    took_s = time.monotonic() - killed_at
    for _ in range(2):
        one[0].expect("round")
    end = stopped(one)
    killed_off(two)
    equal_rounds(one, two)
    assert all(logged(node[killed], "is reduced again") for node in (one, two))
    if commits == 1:
        monkeypatch.setattr(oracle, "data", node_data(2))
        close(tensors(end["outer"]), oracle.train(2, end["round"], 4, 0.7, 0.9)[0].theta, 1e-4)
    return took_s


def stopped(node):
    """Let a node end; what one of its ranks has told last."""
    for rank in node:
        rank.stop()
    ends = [rank.expect("done") for rank in node]
    return ends[0]


def killed_off(node):
    """The last node of a run of two: alone it may wait for another one, and so does not look whether it is to stop."""
    for rank in node:
        rank.process.kill()


def test_nodes_come_and_go(nodes):
    """A newcomer is equal from its first round; half a node holds up no other; a node with other ranks is refused; and
    when a rank dies, its node is gone."""
    facts = {"rounds": UNTIL_STOPPED, "whole": True, "step_s": 0.02, "options": {**PLAIN, "min_peers": 2}}
    facts["lr"] = oracle.STEADY
    one, two = nodes.start(**facts, elastic=True), nodes.start(**facts)
    for rank in two:
        rank.expect("round")
    for rank in one:
        rank.expect("begins")
    while one[0].expect("round")["peers"] < 2:
        pass
    newcomer = nodes.start(**facts)
    assert newcomer[0].expect("joined")["round"] > 0
    newcomer[1].expect("round")
    change = one[0].expect("changed")
    assert (len(change["joined"]), change["left"], change["size"]) == (1, [], 3)
    assert (change["info"]["local_rank"], change["info"]["local_world_size"]) == (0, 2)
    half = nodes.start(**facts, fates={1: {"missing": []}})
    half[1].expect("missing")
    (other,) = nodes.start(**facts, ranks=1)
    assert "setting ranks of a node=2" in (text := other.expect("refused")["text"]), text
    assert "ranks of a node=1" in text
    one[0].skip()  # Rounds that were made before half a node waited.
    went_on = [one[0].expect("round")["seconds"] for _ in range(4)]
    assert max(went_on) < allow(1), went_on
    two[1].process.kill()
    killed_at = time.monotonic()
    while one[0].expect("round")["peers"] > 2:
        pass
    # Far sooner than any limit. How soon exactly is told by `make test-hsdp`: here the machine may be busy.
    assert time.monotonic() - killed_at < allow(3)
    assert two[0].process.wait(timeout=HANG_S) not in (0, None)
    change = one[0].expect("changed")
    assert (change["joined"], len(change["left"]), change["size"]) == ([], 1, 2)
    stopped(one)
    killed_off(newcomer)
    assert len(equal_rounds(one, two, newcomer)) > 4


def test_saving_resuming_with_other_ranks_and_exporting(nodes, tmp_path):
    """Both ranks write one checkpoint together; one process alone goes on from it, and so do three."""
    folder, file = tmp_path / "saved", tmp_path / "model.safetensors"
    facts = {"whole": True, "outer": True, "model": "odd", "options": {**PLAIN, "min_peers": 1, "quantize": "int8"}}
    node = nodes.start(rounds=3, checkpoint=str(folder), export=str(file), **facts)
    ends = [rank.expect("done") for rank in node]
    assert sorted(each.name for each in folder.iterdir()) == [f"round-{number:09d}" for number in (1, 2, 3)]
    saved = safetensors.torch.load_file(file)
    assert {name: each.tolist() for name, each in saved.items()} == ends[0]["outer"]
    (folder / "round-000000003" / "run.pt").write_bytes(b"spoiled")
    last = equal_rounds(node)[2]
    for ranks in (1, 3):
        again = nodes.start(rounds=0, checkpoint=str(folder), ranks=ranks, **facts)
        assert [rank.expect("resumed")["round"] for rank in again] == [2] * ranks
        assert {rank.expect("begins")["digest"] for rank in again} == {last}
        for rank in again:
            rank.expect("done")


def test_a_node_that_is_told_to_go_ends_with_the_round(nodes, tmp_path):
    folder = tmp_path / "saved"
    node = nodes.start(rounds=UNTIL_STOPPED, step_s=0.01, checkpoint=str(folder), options={**PLAIN, "min_peers": 1})
    for rank in node:
        rank.expect("round")
    node[0].process.send_signal(signal.SIGTERM)  # torchrun tells all; one of them is enough.
    assert [rank.process.wait(timeout=HANG_S) for rank in node] == [0, 0]
    assert any(folder.iterdir())


@pytest.mark.parametrize("told", [1, 2])
def test_a_node_whose_round_does_not_end_in_time_saves_the_last_one_and_goes(nodes, tmp_path, told):
    """Whether one of its ranks or all of them are told: another node stands still."""
    folder, options = tmp_path / "saved", {**PLAIN, "notice_s": 1.0}
    facts = {"rounds": UNTIL_STOPPED, "step_s": 0.02, "lr": oracle.STEADY, "options": options}
    node = nodes.start(checkpoint=str(folder), every=UNTIL_STOPPED, **facts)
    other = nodes.start(**facts, fates={0: {"stopped": ["exchange", 8]}})
    other[0].expect("stops")
    last = max(other[0].rounds())
    for rank in node:
        while rank.expect("round")["round"] < last:
            pass
    for rank in node[:told]:
        rank.signal(signal.SIGTERM)
    assert [rank.process.wait(timeout=HANG_S) for rank in node] == [0, 0]
    for rank in node:
        rank.drain()
        assert logged(rank, "SIGTERM: the time is over")
        assert not logged(rank, "Joining again")
    (saved,) = folder.iterdir()
    assert saved.name == f"round-{last:09d}"
