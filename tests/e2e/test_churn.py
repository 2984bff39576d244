"""A hundred peers, accepted ones and candidates, are killed at random moments of one run; all others stay in it."""

import json
import queue
import random
import threading

import pytest

from tests.e2e.harness import Ended, PeerProcess
from tests.patience import HANG_S, allow

KILLS = 100
POPULATION = 6
SPARES = 3
LONGEST_S = 10.0
"""Bound on any call of a peer. A death closes connections at once, so no limit on silence is involved; what is left is
a few rounds of votes and dials on a machine that is busy starting processes (measured: 0.1 s)."""


class Trainee:
    """A peer that joins and trains until it is killed, and all that it said until then."""

    def __init__(self, address, processes):
        self.process = PeerProcess(address)
        processes.append(self.process)
        self.said = []

    def join(self):
        self.await_event("ready")
        self.process.order("connect")
        self.process.order("train")

    def listen(self, timeout_s=0.0):
        """Take what it has said meanwhile, or wait for its next line; True if there was any."""
        heard = False
        while True:
            try:
                said = json.loads(self.process.line(0.0 if heard else timeout_s))
            except (queue.Empty, Ended):
                return heard
            heard = True
            self.said.append(said)
            assert said["event"] != "failed", said
            took_s = said.get("longest_s", said.get("seconds", 0.0) * (said["event"] == "connect"))
            assert took_s < LONGEST_S or took_s < allow(LONGEST_S), said

    def heard(self, event):
        return [said for said in self.said if said["event"] == event]

    @property
    def was(self):
        return "accepted" if self.heard("connect") else "candidate"

    def await_event(self, event, holds=lambda said: True):
        while not any(holds(said) for said in self.heard(event)):
            assert self.listen(timeout_s=HANG_S), f"no {event} from a peer that was {self.was}"
        return self.heard(event)[-1]


class Run:
    """A master, the peers that live, the ones that were killed, and some that have started and wait for their turn: how
    long Python takes to start shall not decide at which moments peers die."""

    def __init__(self, address, processes):
        self._address = address
        self._processes = processes
        self._spares = []
        self.living = []
        self.killed = []
        for _ in range(SPARES):
            self._prepare()

    def _prepare(self):
        self._spares.append(Trainee(self._address, self._processes))

    def grow(self):
        """Let one more join."""
        peer = self._spares.pop(0)
        peer.join()
        self._prepare()
        self.living.append(peer)
        return peer

    def kill(self, victim):
        victim.process.kill()
        self.living.remove(victim)
        self.killed.append(victim)
        for peer in self.living:
            peer.listen()
            assert peer.process.process.poll() is None, "a survivor ended"

    def end_spares(self):
        for spare in self._spares:
            spare.process.kill()


@pytest.mark.parametrize("seed", [1])
def test_nobody_but_the_killed_is_lost(start_master, processes, seed):
    rng = random.Random(seed)
    run = Run(start_master().address, processes)
    for _ in range(POPULATION):
        run.grow()
    moment = threading.Event()
    for _ in range(KILLS):
        # These are no waits for anything: deaths shall fall into every phase of joining, voting and reducing.
        if rng.random() < 0.5:
            victim = run.grow()
            moment.wait(rng.uniform(0.0, 0.05))
        else:
            moment.wait(rng.uniform(0.0, 0.3))
            run.grow()
            victim = rng.choice(run.living)
        run.kill(victim)
    run.end_spares()
    find_together(run.living)
    for peer in run.killed:
        peer.listen()
    kinds = [peer.was for peer in run.killed]
    longest = max(said.get("longest_s", 0.0) for peer in (*run.killed, *run.living) for said in peer.said)
    print(
        f"seed {seed}: {kinds.count('accepted')} accepted peers and {kinds.count('candidate')} candidates were killed"
    )
    print(f"the longest call took {longest:.3f} s")
    assert kinds.count("accepted") >= KILLS // 4
    assert kinds.count("candidate") >= KILLS // 4


def find_together(living):
    """No more deaths: everybody who lives must get into one ring, and be able to leave it."""
    ids = sorted(peer.await_event("connect")["peer"] for peer in living)
    for peer in living:
        peer.await_event("epoch", lambda said: sorted(said["ring"]) == ids)
    for peer in living:
        peer.process.order("close")
    for peer in living:
        peer.await_event("train")
        peer.await_event("close")
