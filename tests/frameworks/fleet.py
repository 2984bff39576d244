"""Peers of other libraries' loops as processes, and what they must have said in the end."""

import importlib.util
import json
import math

import pytest

from tests.e2e.harness import ForkedProcess
from tests.e2e.nursery import TORCH
from tests.frameworks.text import VOCABULARY
from tests.training.test_processes import Said, agree

RATE, STEPS, EVERY = 1e-2, 400, 10
LEARNT = 0.6
"""What is left of the loss in the end, of what a model that knows nothing has."""


def needs(*libraries):
    """Skip a module where one of these is not installed; `make test-frameworks` and `make test-ray` install them."""
    missing = [each for each in libraries if importlib.util.find_spec(each) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: make test-frameworks", allow_module_level=True)


class Peer(Said, ForkedProcess):
    def __init__(self, module, address, folder, **told):
        self.seen = []
        told = {"address": address, "folder": str(folder), "steps": STEPS, "rate": RATE, "step_s": 0.005, **told}
        told.setdefault("resume", None)
        told.setdefault("held_at", None)
        told.setdefault("save_every", STEPS)
        settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        super().__init__(module, json.dumps(told), settings=settings, imports=(*TORCH, module))

    def line(self, *arguments):
        """The next line that is an event: these libraries print, too."""
        while not (line := super().line(*arguments)).startswith('{"event"'):
            pass
        return line

    def drain(self):
        for line in iter(self._lines.get, None):
            if line.startswith('{"event"'):
                self.seen.append(json.loads(line))

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def of(self, event):
        return [each for each in self.seen if each["event"] == event]


def rate_at(step):
    """Of a schedule that falls in a line from the first step to the last."""
    return RATE * (1 - step / STEPS)


def start(processes, module, address, folder, count, **told):
    """So many, all ready to go."""
    peers = [Peer(module, address, folder / str(number), **told) for number in range(count)]
    processes.extend(peers)
    for peer in peers:
        peer.expect("ready")
    return peers


def one_is_killed_and_one_joins(processes, module, address, folder):
    """Three are started; the third joins after the second was killed."""
    first, second, third = peers = start(processes, module, address, folder, 3, options={"sync_every": EVERY})
    for peer in (first, second):
        peer.go()
    orders = [peer.expect("joined")["order"] for peer in (first, second)]
    assert orders[0] != orders[1], "peers that are started alike read the same samples"
    for _ in range(4):
        second.expect("round")
    second.kill()
    third.go()
    joined = third.expect("joined")
    assert joined["step"] >= 4 * EVERY
    assert joined["rate"] == pytest.approx(rate_at(joined["step"]))
    ends = [peer.expect("done") for peer in (first, third)]
    assert [end["step"] for end in ends] == [STEPS, STEPS]
    assert ends[0]["digest"] == ends[1]["digest"]
    check(peers)
    assert len(third.of("round")) >= 5, "the newcomer must have taken part"
    begins = math.log(VOCABULARY)
    for peer in (first, third):
        ends = [each["loss"] for each in peer.of("loss")[-4:]]
        assert sum(ends) / len(ends) < LEARNT * begins, ends


def all_are_killed_and_go_on(processes, module, address, folder, latest):
    """Two are killed in the middle of a round, and both resume from what they have saved. `latest(folder)` is what a
    user passes for that."""
    saved = 6 * EVERY
    told = {"options": {"sync_every": EVERY, "min_peers": 2}, "save_every": 2 * EVERY}
    peers = start(processes, module, address, folder, 2, held_at=saved + EVERY + 3, **told)
    for peer in peers:
        peer.go()
    for peer in peers:
        peer.expect("held")
    for peer in peers:
        peer.kill()
        peer.drain()
    check(peers)
    assert [max(each["step"] for each in peer.of("saved")) for peer in peers] == [saved, saved]
    digests = {each["step"]: each["digest"] for each in peers[0].of("round")}
    again = [
        Peer(module, address, folder / str(number), resume=latest(folder / str(number)), **told) for number in range(2)
    ]
    processes.extend(again)
    for peer in again:
        peer.go()
    for peer in again:
        joined = peer.expect("joined")
        assert joined["step"] == saved
        assert joined["digest"] == digests[saved]
        assert joined["rate"] == pytest.approx(rate_at(saved))
    ends = [peer.expect("done") for peer in again]
    assert [end["step"] for end in ends] == [STEPS, STEPS]
    assert ends[0]["digest"] == ends[1]["digest"]
    check(again)


def check(peers):
    """Equal bits after each round, and the learning rate of the schedule, whenever a peer came."""
    agree(peers)
    for peer in peers:
        for said in peer.of("round"):
            assert said["rate"] == pytest.approx(rate_at(said["step"]), abs=1e-9), said
