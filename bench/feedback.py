"""DiLoCo-like averaging with 4 bits per number, with and without error feedback: one small, seeded experiment.

    python bench/feedback.py [--rounds 400] [--plot docs/feedback.svg]       # the plot needs matplotlib

Four peers fit one linear model, each to rows of its own, through real Communicators in one process. A round is eight
steps of SGD on each peer and one all-reduce (AVG) of how far they went, which an outer optimizer with Nesterov momentum
takes for a gradient, as in DiLoCo. Features differ in size by a factor of 100, as layers and channels of real models
do, and mini-batches are noisy: beside the noise of large features, what small ones have to say is less than half of a
code's step, and rounding to the nearest code says it is nothing. Error feedback saves it up until it is heard.

Prints a JSON line for each way of coding: the excess of the loss over that of the true model, at the end.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pccl import Attribute, Communicator, ErrorFeedback, MasterNode

PEERS = 4
FEATURES = 512
SEED = 1
INNER_STEPS, BATCH, INNER_RATE = 8, 16, 0.05
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
"""Those of DiLoCo."""

NOISE = 0.5
"""Of what is measured: the loss of the true model is half its square."""

Coding = Callable[[], "str | ErrorFeedback | None"]
WAYS: dict[str, Coding] = {
    "float32": lambda: None,
    "int4": lambda: "int4",
    "int4 with error feedback": lambda: ErrorFeedback("int4"),
    "e3m0": lambda: "e3m0",
    "e3m0 with error feedback": lambda: ErrorFeedback("e3m0"),
}


class Problem:
    """What is measured, and by whom."""

    def __init__(self) -> None:
        random = np.random.default_rng(SEED)
        self.sizes = np.logspace(0, -2, FEATURES).astype(np.float32)
        random.shuffle(self.sizes)
        self.truth = (random.standard_normal(FEATURES) / self.sizes / np.sqrt(FEATURES)).astype(np.float32)

    def gradient(self, weights: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Of a fresh mini-batch, scaled for each feature as Adam would, so that small ones are not merely slow."""
        rows = random.standard_normal((BATCH, FEATURES), np.float32) * self.sizes
        missing = rows @ (weights - self.truth) - NOISE * random.standard_normal(BATCH, np.float32)
        return rows.T @ missing / BATCH / self.sizes**2 / FEATURES

    def excess(self, weights: np.ndarray) -> float:
        """Expected loss above that of the truth."""
        return float(np.sum(((weights - self.truth) * self.sizes) ** 2) / 2)


def train(problem: Problem, communicator: Communicator, place: int, coding: Coding, rounds: int) -> list[float]:
    """One peer's part; the excess after each round."""
    random = np.random.default_rng((SEED, place))
    quantize = coding()
    weights, momentum, curve = np.zeros(FEATURES, np.float32), np.zeros(FEATURES, np.float32), []
    for _ in range(rounds):
        local = weights.copy()
        for _ in range(INNER_STEPS):
            local -= np.float32(INNER_RATE) * problem.gradient(local, random)
        gone = weights - local
        communicator.all_reduce(gone, op="avg", quantize=quantize)
        momentum = np.float32(OUTER_MOMENTUM) * momentum + gone
        weights -= np.float32(OUTER_RATE) * (gone + np.float32(OUTER_MOMENTUM) * momentum)
        curve.append(problem.excess(weights))
    return curve


def run(coding: Coding, rounds: int) -> list[float]:
    """All peers, in threads."""
    problem = Problem()

    def peer(place: int) -> list[float]:
        with Communicator(f"127.0.0.1:{master.port}") as communicator:
            while communicator.get_attribute(Attribute.GLOBAL_WORLD_SIZE) < PEERS:
                communicator.update_topology()
            return train(problem, communicator, place, coding, rounds)

    master = MasterNode("127.0.0.1:0")
    master.run()
    with ThreadPoolExecutor(PEERS) as pool:
        curves = list(pool.map(peer, range(PEERS)))
    master.interrupt()
    assert all(curve == curves[0] for curve in curves), "every peer has the same bits"
    return curves[0]


def plot(curves: dict[str, list[float]], path: str) -> None:
    import matplotlib.pyplot as plt  # only needed here

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for name, curve in curves.items():
        axes.semilogy(curve, label=name, linewidth=1.2)
    axes.set(xlabel="round", ylabel="loss above that of the true model")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--plot", metavar="SVG")
    arguments = parser.parse_args()
    curves = {}
    for name, coding in WAYS.items():
        curves[name] = run(coding, arguments.rounds)
        last = float(np.median(curves[name][-arguments.rounds // 10 :]))
        facts = {"bench": "feedback", "coding": name, "rounds": arguments.rounds, "excess_at_the_end": round(last, 5)}
        print(json.dumps(facts), flush=True)
    if arguments.plot:
        plot(curves, arguments.plot)


if __name__ == "__main__":
    main()
