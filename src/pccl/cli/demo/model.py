"""What the demo trains: a network of a few neurons that learns a curve, in plain Python, for numpy may not be there.

Owns the model, its optimizer and its data. Must not know that there are other peers.
"""

import hashlib
import math
import random
from array import array

from pccl import SharedState, TensorInfo

NEURONS = 16
"""Enough for three bends, and few enough that a step of plain Python takes a millisecond or two."""

LEARNING_RATE = 0.004
"""Slow enough that a person sees the loss fall from scene to scene."""

MOMENTUM = 0.9
BATCH = 24
NOISE = 0.1
CHECKED_AT = [x / 16 for x in range(-32, 33)]
"""Where the loss is measured: the same points for every peer, so that equal models have equal losses."""


def curve(x: float) -> float:
    """What is to be learnt."""
    return math.sin(2 * x) + x / 2


class Model:
    """y = c + Σ vⱼ tanh(wⱼ x + bⱼ), begun with random weights, with the momentum of each weight."""

    def __init__(self, luck: random.Random) -> None:
        self.weights = array("d", [luck.gauss(0.0, 1.0) for _ in range(3 * NEURONS + 1)])
        self.momentum = array("d", bytes(8 * len(self.weights)))
        self.state = SharedState(
            [TensorInfo.from_numpy(self.weights, "weights"), TensorInfo.from_numpy(self.momentum, "momentum")]
        )

    def _hidden(self, x: float) -> list[float]:
        w, b = self.weights[:NEURONS], self.weights[NEURONS : 2 * NEURONS]
        return [math.tanh(w_j * x + b_j) for w_j, b_j in zip(w, b, strict=True)]

    def _output(self, hidden: list[float]) -> float:
        v = self.weights[2 * NEURONS : 3 * NEURONS]
        return self.weights[-1] + sum(v_j * h_j for v_j, h_j in zip(v, hidden, strict=True))

    def loss(self) -> float:
        """The mean squared error."""
        return sum((self._output(self._hidden(x)) - curve(x)) ** 2 for x in CHECKED_AT) / len(CHECKED_AT)

    def gradient(self, luck: random.Random) -> "array[float]":
        """Of half the squared error, over a batch of noisy points that are drawn now."""
        total = array("d", bytes(8 * len(self.weights)))
        for _ in range(BATCH):
            x = luck.uniform(CHECKED_AT[0], CHECKED_AT[-1])
            hidden = self._hidden(x)
            error = (self._output(hidden) - curve(x) - luck.gauss(0.0, NOISE)) / BATCH
            total[-1] += error
            for j, h_j in enumerate(hidden):
                inward = error * self.weights[2 * NEURONS + j] * (1 - h_j * h_j)
                total[j] += inward * x
                total[NEURONS + j] += inward
                total[2 * NEURONS + j] += error * h_j
        return total

    def step(self, gradient: "array[float]") -> None:
        """Stochastic gradient descent with momentum: the same gradient gives every peer the same bits."""
        for j in range(len(self.weights)):
            self.momentum[j] = MOMENTUM * self.momentum[j] + gradient[j]
            self.weights[j] -= LEARNING_RATE * self.momentum[j]
        self.state.push_revision()

    def digest(self) -> str:
        """Of every bit of the state."""
        return hashlib.sha256(self.weights.tobytes() + self.momentum.tobytes()).hexdigest()
