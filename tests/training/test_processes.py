"""Real processes: equal bits on CPUs that differ, kills and joins in every mode, a master that is restarted."""

import json
import random
import re
from functools import partial

import pytest
import torch

from tests.e2e.harness import ForkedProcess, MasterProcess, Process
from tests.e2e.nursery import TORCH
from tests.patience import HANG_S
from tests.training import oracle
from tests.training.test_oracle import close
from tests.training.trainer import LENGTHS

IMPORTS = (*TORCH, "pccl.training.diloco", "pccl.training.parallel", "tests.training.oracle")
UNTIL_STOPPED = 10**6
MODES = {
    "plain": {},
    "overlapped": {"overlap": "auto"},
    "streaming": {"fragments": 3, "overlap": 1, "quantize": "int4"},
    "delayed": {"overlap": "round"},
}


class Said:
    """What a trainer says, read as events."""

    def expect(self, event):
        while True:
            said = json.loads(self.line())
            self.seen.append(said)
            if said["event"] == event:
                return said

    def drain(self):
        """Read all that it still says, until it ends."""
        for line in iter(partial(self._lines.get, timeout=HANG_S), None):
            self.seen.append(json.loads(line))

    def skip(self):
        """Read all that it has said up to now."""
        while not self._lines.empty():
            self.seen.append(json.loads(self.line()))

    def stop(self):
        """Let it train no more, and leave."""
        self.process.stdin.write("stop\n")
        self.process.stdin.flush()

    def rounds(self):
        """Digests by round, of all that was read."""
        return {said["round"]: said["digest"] for said in self.seen if said["event"] == "round"}


class Trainer(Said, ForkedProcess):
    def __init__(self, address, number, **told):
        self.seen = []
        arguments = json.dumps({"address": address, "number": number, **told})
        super().__init__("tests.training.trainer", arguments, settings={}, imports=IMPORTS)


class OwnTrainer(Said, Process):
    """With an interpreter of its own, for what torch reads when it is imported."""

    def __init__(self, address, number, settings, **told):
        self.seen = []
        arguments = json.dumps({"address": address, "number": number, **told})
        super().__init__("-m", "tests.training.trainer", arguments, settings=settings)


@pytest.fixture
def processes():
    started = []
    yield started
    for process in started:
        process.end()


@pytest.fixture
def master(processes):
    processes.append(MasterProcess())
    return processes[0]


def agree(trainers):
    """All have the same digest after each round that two of them have seen."""
    known = {}
    for trainer in trainers:
        for number, digest in trainer.rounds().items():
            assert known.setdefault(number, digest) == digest, f"round {number} differs"
    return known


def test_other_vector_units_and_threads_give_the_same_bits(master, processes):
    """In every mode, one after the other in the same processes: it takes them long to import torch. Not with
    DataParallel: each peer's own torch makes the steps there."""
    modes = {**MODES, "overlapped": {"overlap": 2}, "eager": {"overlap": "round", "eager": True}}
    each = {mode: {"sync_every": 3, **options} for mode, options in modes.items()}
    kinds = [({"ATEN_CPU_CAPABILITY": "default"}, 1), ({"ATEN_CPU_CAPABILITY": "avx2"}, 2), ({}, 1)]
    trainers = [
        OwnTrainer(master.address, number, settings, threads=threads, rounds=5, each=each, peers=3)
        for number, (settings, threads) in enumerate(kinds)
    ]
    processes.extend(trainers)
    for mode in each:
        said = [trainer.expect("did") for trainer in trainers]
        assert said[0]["mode"] == mode
        assert said[0] == said[1] == said[2]
        assert len(set(said[0]["digests"])) >= 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(1))
def test_kills_and_joins_cost_survivors_no_step(master, processes, mode, seed):
    dice = random.Random(f"{mode} {seed}")
    told = {"rounds": UNTIL_STOPPED, "step_s": 0.004, "options": {"sync_every": 5, **MODES[mode]}}
    trainers = [Trainer(master.address, number, **told) for number in range(3)]
    processes.extend(trainers)
    for trainer in trainers:
        trainer.expect("joined")
    for number in range(3, 6):
        trainers[0].expect("round")
        victim = dice.choice(trainers[1:][-2:])
        for _ in range(dice.randrange(8)):
            trainers[0].expect("round")
        victim.kill()
        newcomer = Trainer(master.address, number, **told)
        processes.append(newcomer)
        trainers.append(newcomer)
        newcomer.expect("joined")
    for _ in range(5):
        trainers[0].expect("round")
    living = [each for each in trainers if each.process.poll() is None]
    for trainer in living:
        trainer.stop()
    ends = [each.expect("done") for each in living]
    assert [(end["dropped"], end["lost"]) for end in ends] == [(0, 0)] * len(living)
    agree(trainers)
    seen = sorted(trainers[0].rounds())
    # With a round's delay the step that lets a peer in merges two rounds.
    assert seen == list(range(seen[0], seen[-1] + 1)) or mode == "delayed"


def test_data_parallelism_goes_on_with_equal_bits_through_kills_and_joins(master, processes):
    told = {"kind": "DataParallel", "rounds": UNTIL_STOPPED, "step_s": 0.004, "options": {"bucket_bytes": 64}}
    trainers = [Trainer(master.address, number, **told) for number in range(3)]
    processes.extend(trainers)
    for trainer in trainers:
        trainer.expect("joined")
    for number in range(3, 6):
        for _ in range(7):
            trainers[0].expect("round")
        trainers[number - 2].kill()
        trainers.append(Trainer(master.address, number, **told))
        processes.append(trainers[-1])
        trainers[-1].expect("joined")
    for _ in range(5):
        trainers[-1].expect("round")
    living = [each for each in trainers if each.process.poll() is None]
    for trainer in living:
        trainer.stop()
    assert [each.expect("done")["dropped"] for each in living] == [0] * len(living)
    agree(trainers)
    seen = sorted(trainers[0].rounds())
    assert seen == list(range(seen[0], seen[-1] + 1))
    assert len(set(trainers[-1].rounds()) & set(seen)) >= 5


def test_a_slow_peer_contributes_what_it_has_when_patience_ends(master, processes):
    """It makes a step after that, and no more; weights are its steps."""
    every, rounds, slow = 10, 3, 2
    told = {"rounds": rounds, "outer": True, "options": {"sync_every": every, "min_peers": 3, "patience_s": 1.0}}
    told["lr"] = oracle.LR
    trainers = [Trainer(master.address, number, step_s=0.5 if number == slow else 0.05, **told) for number in range(3)]
    processes.extend(trainers)
    ends = [trainer.expect("done") for trainer in trainers]
    assert [end["late"] for end in ends] == [0, 0, 0]
    steps = [[said["steps"] for said in each.seen if said["event"] == "round"] for each in trainers]
    assert steps[:slow] == [[every] * rounds] * slow
    assert all(0 < made < every for made in steps[slow])
    waited_for = [said["waited_for"] for said in trainers[0].seen if said["event"] == "round"]
    assert all(re.fullmatch(r"\S+ \([0-9a-f]{8}\)", each) for each in waited_for), waited_for
    outer, _ = oracle.train(3, rounds, every, 0.7, 0.9, quotas=list(zip(*steps, strict=True)))
    for end in ends:
        close({name: torch.tensor(value) for name, value in end["outer"].items()}, outer.theta)
    agree(trainers)


@pytest.mark.parametrize("kind", ["samples", "shards"])
@pytest.mark.parametrize("mode", [*MODES, "DataParallel"])
def test_every_item_is_in_one_committed_contribution_though_peers_are_killed(master, processes, kind, mode):
    options = {} if mode == "DataParallel" else {"sync_every": 3, **MODES[mode]}
    told = {"rounds": UNTIL_STOPPED, "step_s": 0.01, "data": kind, "peers": 3, "options": options}
    told["kind"] = "DataParallel" if mode == "DataParallel" else "DiLoCo"
    trainers = [Trainer(master.address, 0, **told)]
    processes.extend(trainers)
    trainers[0].expect("joined")  # It lives on: if the only one of a run is killed, the next one begins another run.
    trainers += [Trainer(master.address, number, **told) for number in (1, 2)]
    processes.extend(trainers[1:])
    for victim in (1, 2):
        for _ in range(3 if mode != "DataParallel" else 6):
            trainers[victim].expect("took")
        trainers[victim].kill()
        trainers.append(Trainer(master.address, 2 + victim, **told))
        processes.append(trainers[-1])
    for trainer in trainers:
        trainer.drain()
    said = [each for trainer in trainers for each in trainer.seen]
    taken = {}
    for each in (each for each in said if each["event"] == "committed"):
        assert taken.setdefault(each["round"], each["taken"]) == each["taken"]
    took = {}
    for each in (each for each in said if each["event"] == "took"):
        took.setdefault((each["round"], each["peer"]), []).extend(each["numbers"])
    used = [
        number
        for round, peers in taken.items()
        for peer, count in peers.items()
        for number in took.get((round, peer), [])[:count]
    ]
    assert sorted(used) == sorted([*range(sum(LENGTHS))] * 2)
    assert {each["event"] for each in trainers[0].seen} >= {"committed", "done"}


def test_rounds_wait_until_enough_peers_are_there_and_lose_no_step(master, processes):
    told = {"rounds": UNTIL_STOPPED, "step_s": 0.004, "options": {"sync_every": 5, "min_peers": 2}}
    first = Trainer(master.address, 0, **told)
    processes.append(first)
    assert "min_peers is 2, and 1 peer is here" in first.expect("log")["text"]
    second = Trainer(master.address, 1, **told)
    processes.append(second)
    second.expect("joined")
    for _ in range(3):
        first.expect("round")
    second.kill()
    while "min_peers" not in first.expect("log")["text"]:
        pass
    third = Trainer(master.address, 2, **told)
    processes.append(third)
    for _ in range(3):
        third.expect("round")
    first.stop()
    assert first.expect("done")["dropped"] == 0
    agree([first, second, third])
    assert min(said["peers"] for said in first.seen if said["event"] == "round") == 2


def test_a_restarted_master_costs_no_step(master, processes):
    told = {"rounds": 60, "step_s": 0.004, "options": {"sync_every": 5, "min_peers": 2}}
    trainers = [Trainer(master.address, number, **told) for number in range(2)]
    processes.extend(trainers)
    for trainer in trainers:
        trainer.expect("round")
    master.kill()
    processes.append(MasterProcess(master.address))
    ends = [trainer.expect("done") for trainer in trainers]
    assert ends[0]["digest"] == ends[1]["digest"]
    assert [end["dropped"] for end in ends] == [0, 0]
    agree(trainers)
