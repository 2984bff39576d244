"""What the peers of these tests learn: to go on counting. Soon learnt, so that a short test sees the loss fall."""

import json
import sys
import threading

import torch

VOCABULARY, CONTEXT, STRETCHES = 96, 32, 512


def say(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


def await_word():
    """Until the test says go."""
    say("ready")
    sys.stdin.readline()


def stretches():
    """Pairs of stretches, the second one number further; each begins anywhere and counts by one, two or three."""
    chance = torch.Generator().manual_seed(0)
    begins, strides = (torch.randint(most, (STRETCHES, 1), generator=chance) for most in (VOCABULARY, 3))
    numbers = (begins + (strides + 1) * torch.arange(CONTEXT + 1)) % VOCABULARY
    return [(each[:-1], each[1:]) for each in numbers]


class Pace:
    """How long a step takes at least, and the one at which this peer stops to be killed."""

    def __init__(self, told):
        self._step_s, self._held_at, self._never = told["step_s"], told["held_at"], threading.Event()

    def wait(self, step):
        if step == self._held_at:
            say("held")
        self._never.wait(None if step == self._held_at else self._step_s)


def calm():
    """Peers share the processors of a machine."""
    torch.set_num_threads(1)
    return VOCABULARY, CONTEXT


class Rounds:
    """Says what each round of a run has made, once."""

    def __init__(self):
        self._last = None

    def look(self, run, rate):
        merged = run.metrics().get("merged_round")
        if merged != self._last:
            self._last = merged
            say("round", round=merged, step=run.step, rate=rate, digest=run.outer_digest())
