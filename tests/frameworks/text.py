"""What the peers of these tests learn: English, character by character. The same model code for all libraries."""

import json
import sys
import threading

import torch

from examples.char_gpt import CONTEXT, VOCABULARY, text

STRETCHES = 512


def say(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


def await_word():
    """Until the test says go."""
    say("ready")
    sys.stdin.readline()


def stretches():
    """Pairs of stretches of the text, the second one character further."""
    numbers, _ = text()
    return [
        (numbers[begin : begin + CONTEXT], numbers[begin + 1 : begin + CONTEXT + 1])
        for begin in range(0, STRETCHES * CONTEXT, CONTEXT)
    ]


class Pace:
    """How long a step takes at least."""

    def __init__(self, step_s):
        self._step_s, self._never = step_s, threading.Event()

    def wait(self):
        self._never.wait(self._step_s)


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
