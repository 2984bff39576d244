"""What a person reads in the log of a peer, by default: who died, once; who is waited for; and what a record tells."""

import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from pccl import CollectiveTimedOut, MasterNode
from tests.e2e.harness import ROOT, MasterProcess
from tests.e2e.test_api import wait_until
from tests.e2e.test_names import connected
from tests.patience import HANG_S

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PCCL_")} | {
    "PYTHONPATH": str(ROOT / "src")
}
TRAINER = """
import sys, time
from array import array
from pccl import Communicator, TooFewPeers

with Communicator(sys.argv[1], name=sys.argv[2]) as comm:
    newcomer = True
    print("in", flush=True)
    for line in sys.stdin:
        while line == "admit\\n" and comm.world_size < 4:
            if not newcomer and comm.are_peers_pending():
                comm.update_topology()
                if comm.world_size == 4:
                    break
            newcomer = False
            try:
                comm.all_reduce(array("f", [1.0] * 100), retry=True)
            except TooFewPeers:
                time.sleep(0.01)
        if line == "step\\n":
            comm.all_reduce(array("f", [1.0] * 100), retry=True)
        print(comm.world_size, flush=True)
"""


class Trainer:
    """A peer whose steps are ordered one by one; what it writes to stderr is kept."""

    def __init__(self, address, name, **settings):
        command = [sys.executable, "-u", "-c", TRAINER, address, name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.name = name
        self.process = subprocess.Popen(command, env=ENVIRONMENT | settings, text=True, **pipes)
        self.log = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def order(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()

    def lines(self, *words):
        return [line for line in list(self.log) if all(word in line for word in words)]

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join(HANG_S)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()


@pytest.fixture
def four():
    master = MasterProcess()
    trainers = [Trainer(master.address, name) for name in ("tokyo-2", "oslo", "rome", "lima")]
    for trainer in trainers:
        trainer.order("admit")
    assert [trainer.answer() for trainer in trainers] == ["in"] * 4
    assert [trainer.answer() for trainer in trainers] == ["4"] * 4
    yield master, trainers
    for process in (*trainers, master):
        process.end()


def status(master):
    command = [sys.executable, "-m", "pccl", "status", master.address, "--json"]
    told = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG_S)
    return told.returncode, json.loads(told.stdout)


def test_a_death_is_one_line_at_each_survivor(four):
    master, (dead, *others) = four
    for each in others:
        each.log.clear()  # On a slow machine it may have waited for this peer to join.
        each.order("step")
    dead.process.kill()
    for each in others:
        assert each.answer() == "3"
        wait_until(lambda each=each: each.lines(dead.name, "is gone"))
    code, facts = status(master)
    assert code == 0
    assert {each["name"] for each in facts["peers"]} == {each.name for each in others}
    for each in others:
        each.order("step")
    assert [each.answer() for each in others] == ["3"] * 3
    for each in others:
        (line,) = [line for line in each.lines(dead.name) if " waits for " not in line]
        assert f"{dead.name} (" in line
        assert "is gone: its connection closed" in line
        assert line.endswith("; 3 peers")


def test_one_that_sleeps_is_named_by_all_and_they_agree(four):
    master, (sleeper, *others) = four
    for each in others:
        each.order("step")
    for each in others:
        wait_until(lambda each=each: each.lines("WARNING", f"waits for {sleeper.name} ("))
    wait_until(lambda: status(master)[0] == 3)
    code, facts = status(master)
    (wait,) = facts["waits"]
    assert (code, facts["health"].partition(" (")[0]) == (3, f"waiting for {sleeper.name}")
    assert [peer["name"] for peer in facts["peers"] if peer["peer"] in wait["missing"]] == [sleeper.name]
    assert all(each.lines(wait["sentence"]) for each in others)
    for each in others:
        wait_until(lambda each=each: each.lines("for 1", "s now (no limit while they answer, 60 s if not)"))
    sleeper.order("step")
    for each in (sleeper, *others):
        assert each.answer() == "4"
    for each in others:
        wait_until(lambda each=each: each.lines("the wait is over"))
    assert status(master)[0] == 0


def step(trainers):
    for each in trainers:
        each.order("step")
    assert [each.answer() for each in trainers] == ["4"] * 4


def test_sigusr1_writes_the_record_and_the_peer_goes_on(four):
    _, trainers = four
    step(trainers)  # If all four came at once, none has called anything yet.
    trainers[0].process.send_signal(signal.SIGUSR1)
    wait_until(lambda: trainers[0].lines("its last collectives:"))
    wait_until(lambda: trainers[0].lines("tag 0 ALL_REDUCE 100 x FLOAT SUM", "committed, waited"))
    step(trainers)


def test_numbers_and_the_record_of_a_peer():
    with MasterNode("127.0.0.1:0") as master:
        tokyo, oslo = connected(master, "tokyo-2", "oslo")
        before = tokyo.metrics()
        assert all(type(value) is float for value in before.values())
        assert (before["pccl_group_peers"], before["pccl_rounds_total"]) == (2.0, 0.0)
        work = oslo.all_reduce(np.ones(1000, np.float32), async_op=True)
        threading.Event().wait(0.2)  # It waits for us, and that is measured.
        tokyo.all_reduce(np.ones(1000, np.float32))
        work.wait()
        with pytest.raises(CollectiveTimedOut) as failure:
            tokyo.all_reduce(np.ones(10, np.float32), tag=7, timeout=0.1)
        (note,) = failure.value.__notes__
        assert "2 are in Communicator.flight_record()" in note
        assert "tag 7 ALL_REDUCE 10 x FLOAT SUM" in note
        after = tokyo.metrics()
        assert after.keys() == before.keys()
        assert (after["pccl_rounds_total"], after["pccl_failures_total"]) == (1.0, 1.0)
        assert after["pccl_sent_bytes_total"] >= 4000
        committed, timed_out = tokyo.flight_record()
        assert (committed.stage, committed.peers, committed.waited_for) == ("committed", 2, "")
        assert (timed_out.tag, timed_out.stage) == (7, "timed out")
        (flight,) = oslo.flight_record()
        assert flight.waited_for_name == "tokyo-2"
        assert flight.waited_s >= 0.2
        assert str(flight).startswith("tag 0 ALL_REDUCE 1000 x FLOAT SUM codec=none: committed, waited 0.")
        assert oslo.metrics()["pccl_round_waited_seconds"] >= 0.2
        oslo.close()
        tokyo.close()


def test_a_dial_that_fails_is_a_warning_at_once():
    code = "import sys; from pccl import Communicator; Communicator(sys.argv[1]).connect(n_attempts=1)"
    command = [sys.executable, "-c", code, "127.0.0.1:1"]
    told = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG_S).stderr
    assert "WARNING attempt 1 of 1 to reach the master at 127.0.0.1:1: Connection refused" in told
