"""What coding loses: relative errors of coded all-reduces against the exact sum, for codecs, distributions and peers.

    python bench/quantize_error.py [--write]     # into docs/quantisation.md, where the tables stand

No sockets: the definition of the codecs in numpy, around a ring of 2 to 8 peers, hop by hop. Everything is drawn from
fixed seeds, so the tables come out the same anywhere. The error is that of the whole tensor, |result - sum| / |sum|, in
percent. Beside our codecs: PCCL's MIN_MAX to UINT8, as its code does it (one range for each chunk in each hop, codes
truncated instead of rounded, and a scan for the largest value that begins at the smallest positive float).
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pccl.codec import CODES, Codec
from pccl.dataplane.ring.coding import Coding
from pccl.dataplane.ring.segments import chunk
from pccl.types import DataType, ReduceOp

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "quantisation.md"
COUNT = 1 << 18
PEERS = range(2, 9)
BLOCKS = (256, 512, 1024, 2048, 4096)

Floats = np.ndarray
Share = Callable[[np.random.Generator], Floats]


def gradient_like(rng: np.random.Generator) -> Floats:
    """Layers and rows of very different scales, a third of all elements nearly zero, and a few large ones."""
    layers = np.exp(2.0 * rng.standard_normal((32, 1, 1)))
    rows = np.exp(0.7 * rng.standard_normal((32, COUNT // 32 // 512, 1)))
    values = rng.standard_t(5, (32, COUNT // 32 // 512, 512)) * layers * rows
    values[rng.random(values.shape) < 1 / 3] *= 1e-3
    return values.ravel()


DISTRIBUTIONS: dict[str, Share] = {
    "normal": lambda rng: rng.standard_normal(COUNT),
    "uniform": lambda rng: rng.uniform(-1, 1, COUNT),
    "heavy-tailed": lambda rng: rng.standard_t(2, COUNT),
    "gradient-like": gradient_like,
}


def shares(name: str, peers: int) -> list[Floats]:
    """What each peer brings. Gradients of one model are alike in their scales, so these are drawn only once."""
    seed = list(DISTRIBUTIONS).index(name)
    if name != "gradient-like":
        return [DISTRIBUTIONS[name](np.random.default_rng([seed, peer])).astype(np.float32) for peer in range(peers)]
    common = gradient_like(np.random.default_rng(seed))
    noise = [np.random.default_rng([seed, peer]).standard_normal(COUNT) for peer in range(peers)]
    return [(common * (0.5 + each)).astype(np.float32) for each in noise]


# ── a hop ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def ours(codec: Codec) -> Callable[[Floats, int, int], Floats]:
    """What a sum is after it was coded and decoded."""
    coding = Coding(codec, DataType.FLOAT, ReduceOp.SUM)

    def passed(values: Floats, first: int, hop: int) -> Floats:
        return coding.decode(coding.encode(values, first, coding.stream(hop)), len(values))

    return passed


def pccl_min_max(values: Floats, first: int, hop: int) -> Floats:
    wide = values.astype(np.float64)
    low, high = wide.min(), max(wide.max(), float(np.finfo(np.float32).tiny))
    codes = np.trunc((wide - low) / (high - low) * 255)
    return (low + codes / 255 * (high - low)).astype(np.float32)


def percent(parts: list[Floats], passed: Callable[[Floats, int, int], Floats]) -> float:
    """The error after the sum has gone around the ring, chunk by chunk."""
    size, exact = len(parts), np.sum(parts, axis=0, dtype=np.float64)
    result = np.empty(COUNT, np.float32)
    for index in range(size):
        place = chunk(COUNT, size, index)
        here = slice(place.start, place.stop)
        total = parts[index][here]
        for hop in range(size):
            if hop:
                total = total + parts[(index + hop) % size][here]
            total = passed(total, place.start, hop)
        result[here] = total
    return float(100 * np.linalg.norm(result - exact) / np.linalg.norm(exact))


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def shown(error: float) -> str:
    return f"{error:.3g}" if error < 100 else f"{error:.0f}"


def bytes_per_element(codec: Codec) -> str:
    return f"{codec.coded_bytes(COUNT, DataType.FLOAT) / COUNT:.3f}"


def error_table() -> str:
    ways = {"PCCL's MIN_MAX, UINT8": ("1.000", pccl_min_max)}
    for name in CODES:
        ways[f"`{name}`"] = (bytes_per_element(Codec(name)), ours(Codec(name)))
    for name in ("int8", "int4", "e3m0"):
        ways[f"`{name}`, stochastic"] = (bytes_per_element(Codec(name)), ours(Codec(name, stochastic=True)))
    rows = [f"| | codec | bytes per element | {' | '.join(f'{peers} peers' for peers in PEERS)} |"]
    rows.append("| --- | --- " + "| --- " * (len(PEERS) + 1) + "|")
    for distribution in DISTRIBUTIONS:
        inputs = {peers: shares(distribution, peers) for peers in PEERS}
        for way, (size, passed) in ways.items():
            errors = [shown(percent(inputs[peers], passed)) for peers in PEERS]
            rows.append(f"| {distribution} | {way} | {size} | {' | '.join(errors)} |")
    return "\n".join(rows)


def block_table() -> str:
    peers = 4
    rows = ["| codec | block | bytes per element | " + " | ".join(DISTRIBUTIONS) + " |"]
    rows.append("| --- | --- | --- " + "| --- " * len(DISTRIBUTIONS) + "|")
    inputs = {distribution: shares(distribution, peers) for distribution in DISTRIBUTIONS}
    for name in ("int8", "int4", "e3m0"):
        for block in BLOCKS:
            codec = Codec(name, block)
            errors = [shown(percent(inputs[distribution], ours(codec))) for distribution in DISTRIBUTIONS]
            rows.append(f"| `{name}` | {block} | {bytes_per_element(codec)} | {' | '.join(errors)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into the document")
    arguments = parser.parse_args()
    text = DOCUMENT.read_text() if arguments.write else ""
    for name, table in {"errors": error_table(), "blocks": block_table()}.items():
        if arguments.write:
            text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", rf"\g<1>{table}\n\g<2>", text, flags=re.DOTALL)
        else:
            print(table + "\n")
    if arguments.write:
        DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
