"""The cells of `wan.py`: a network as a name, so that each can be run alone.

    2x100-80ms-cubic-loss0.1        two hosts of 100 Mbit/s, 80 ms there and back, cubic, 0.1 % of packets lost
    2x100:20-80ms-cubic             the hosts send 100 and 20 Mbit/s, by turns
    4x100-200ms-reno-loss0.01-state a newcomer on the last host pulls a state from all others
    2x300-80ms-cubic-jitter20       packets take up to 20 ms more; reorder1: 1 % of them come after later ones
    2x100-80ms-cubic-queue1000      a queue of 1 s before packets are dropped
    2x100-80ms-cubic-drop           the rate falls to a tenth for ten seconds, during each measured all-reduce

Owns the grammar and the lists. Must not know what is measured.
"""

import re
from dataclasses import dataclass
from typing import Any

from wanlab import Wan

TWELVE = (
    "2x100-80ms-cubic-loss0.1",
    "2x100-80ms-cubic-loss0.01",
    "2x100-80ms-cubic-loss1",
    "2x100-80ms-reno-loss0.01",
    "2x100-80ms-reno-loss0.1",
    "2x100-80ms-bbr-loss0.1",
    "2x100-200ms-cubic-loss0.1",
    "2x100-200ms-bbr-loss1",
    "4x100-80ms-cubic-loss0.1",
    "4x100-80ms-reno-loss0.01",
    "2x300-80ms-cubic",
    "2x1000-80ms-cubic",
)
"""Of the table in docs/pipes.md."""

ROBUST = (
    "2x100-80ms-cubic-jitter20",
    "2x100-80ms-cubic-reorder1",
    "2x100-80ms-cubic-queue1000",
    "2x100:20-80ms-cubic",
    "2x100-80ms-cubic-drop",
)
"""Nothing of these aborts a collective or needs a setting."""

LISTS = {"twelve": TWELVE, "robust": ROBUST}


@dataclass(frozen=True)
class Cell:
    """One network, and what is special about what happens on it."""

    name: str
    wan: Wan
    drops: bool = False
    state: bool = False


def cells(names: list[str]) -> list[Cell]:
    """Of these names, or of the lists that they name. Raises `ValueError`."""
    return [cell(name) for each in names for name in LISTS.get(each, (each,))]


def cell(name: str) -> Cell:
    first, *parts = name.split("-")
    found = re.fullmatch(r"(\d+)x(\d+)(?::(\d+))?", first)
    if found is None:
        raise ValueError(f"a cell must begin with hosts x Mbit/s, such as 2x100, got {name}")
    hosts, rate, other = int(found[1]), float(found[2]), float(found[3] or found[2])
    network: dict[str, Any] = {"hosts": hosts, "rate_mbit": rate, "round_trip_ms": 80.0}
    if other != rate:
        network["rates_mbit"] = tuple((rate, other)[host % 2] for host in range(hosts))
    for part in parts:
        if part not in ("drop", "state"):
            network |= _network(part, name)
    return Cell(name, Wan(**network), drops="drop" in parts, state="state" in parts)


def _network(part: str, name: str) -> dict[str, Any]:
    if part in ("cubic", "reno", "bbr"):
        return {"congestion": part}
    kinds = {
        r"([\d.]+)ms": ("round_trip_ms", 1.0),
        r"loss([\d.]+)": ("loss", 0.01),
        r"reorder([\d.]+)": ("reordering", 0.01),
        r"jitter([\d.]+)": ("jitter_ms", 1.0),
        r"queue([\d.]+)": ("queue_ms", 1.0),
    }
    for pattern, (field, unit) in kinds.items():
        if (found := re.fullmatch(pattern, part)) is not None:
            return {field: float(found[1]) * unit}
    raise ValueError(f"the part {part} of cell {name} must be one of those that bench/wan_cells.py lists")
