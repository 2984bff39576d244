"""All-reduce over an emulated wide-area network: how much of each host's rate, and of what plain TCP streams carry.

    sudo .venv/bin/python bench/wan.py [--cases 2x1000 4x400] [--lanes 0 1 4 8 16] [--mb 64 256] [--rounds 2] [--gloo]
    sudo .venv/bin/python bench/wan.py --cases 2x200 4x200 --codecs none int8 int4 --mb 256
    sudo .venv/bin/python bench/wan.py --cases 2x1000 --tls --rounds 7
    sudo .venv/bin/python bench/wan.py --cases 2x100-80ms-cubic-loss0.1 --iperf 1 4 16 64 --gloo --silence 60 --rounds 5
    sudo .venv/bin/python bench/wan.py --cases twelve --iperf 1 4 16 64 --gloo --mb 16 64 256 --rounds 5
    sudo .venv/bin/python bench/wan.py --cases robust --mb 64
    sudo .venv/bin/python bench/wan.py --cases 4x100-80ms-cubic-loss0.1-state --iperf 1 4 16 64 --mb 64

Hosts are network namespaces of their own (see `wanlab`), and the master runs on the first of them. `2x1000` is two
hosts that send 1000 Mbit/s each; what else a case may have is in `wan_cells`. Every number of lanes gets its own master
and peers, started once; they take turns at each size, for several rounds, in one and the same network. 0 lanes means
the library's own choice. Gloo takes part at 16 MiB only, and is stopped after two minutes. Before them iperf3, each
host to the next one, all at once, with several numbers of streams: the best of these is the limit.

Prints a JSON line per case, rival and size, then a table: the median, the time of the first all-reduce of the size and
of the first one after a silence, the share of the slowest host's rate (2(N-1)/N of the tensor, in each direction, votes
included) and of the limit, and round trips for 4 KB. A cell that fails leaves the others to be measured, and ends the
program with 1 thereafter.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field

from iperf import IperfFailed, best
from public_sync import pulled_s
from rivals.fleet import Fleet, Measured, Place, RivalFailed, each, fleet, with_master
from wan_cells import Cell, cells
from wanlab import LabFailed, WanLab

SMALL_BYTES = 4096
SMALL_REPETITIONS = 7
GLOO_BYTES = 16 << 20
"""Enough to show its rate, and little enough to be over in two minutes on most links with loss."""
GLOO_S = 120.0
IPERF_S = 10
DROP_AFTER_S, DROP_S, DROP_SHARE = 1.0, 10.0, 0.1
"""When the rate falls during an all-reduce, for how long, and to which share."""

Line = dict[str, object]


def start_all(stack: contextlib.ExitStack, lab: WanLab, arguments: argparse.Namespace) -> list[Fleet]:
    places = _places(lab)
    fleets = []
    kinds = ["plain", "TLS"] if arguments.tls else [""]
    for count, codec, kind in itertools.product(arguments.lanes, arguments.codecs or [""], kinds):
        name = ", ".join(["ours", f"{count} lanes" if count else "default", *filter(None, [codec, kind])])
        settings = {"lanes": count, "quantize": codec, "insecure": kind == "plain"}
        fleets.append(stack.enter_context(fleet(name, len(places), settings, with_master(places))))
    return fleets


def _places(lab: WanLab) -> list[Place]:
    hosts = range(lab.wan.hosts)
    return [Place(tuple(lab.inside(host)), lab.address(host), "wan0") for host in hosts]


@dataclass
class Turns:
    """What one rival did at one size."""

    first_s: float
    rest: Measured = field(default_factory=Measured)
    dropped_packets: int = 0
    silent_s: float | None = None
    """The time of the first all-reduce after a silence."""


def measure(lab: WanLab, fleets: list[Fleet], nbytes: int, rounds: int, cell: Cell) -> dict[str, Turns]:
    """By rival; the rivals take turns."""
    turns: dict[str, Turns] = {}
    for rival in fleets:
        turns[rival.name] = Turns(rival.prepare(nbytes))
        print(f"  {rival.name}: first {nbytes} bytes in {turns[rival.name].first_s:.2f} s", file=sys.stderr, flush=True)
    repetitions = SMALL_REPETITIONS if nbytes == SMALL_BYTES else 1
    for _ in range(rounds):
        for rival in fleets:
            before = lab.dropped_packets
            with dropping(lab) if cell.drops and nbytes != SMALL_BYTES else contextlib.nullcontext():
                turns[rival.name].rest.add(rival.run(repetitions, together=False))
            turns[rival.name].dropped_packets += lab.dropped_packets - before
    return turns


@contextlib.contextmanager
def dropping(lab: WanLab):
    """The rate falls soon, and comes back."""

    def become(share: float) -> None:
        lab.slowed = share

    timers = [threading.Timer(DROP_AFTER_S, become, [DROP_SHARE])]
    timers.append(threading.Timer(DROP_AFTER_S + DROP_S, become, [1.0]))
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        lab.slowed = 1.0


def after_silence(fleets: list[Fleet], turns: dict[str, Turns], silence_s: float) -> None:
    """All are silent at the same time; the second one has been for longer than the first."""
    print(f"  silence of {silence_s:g} s", file=sys.stderr, flush=True)
    time.sleep(silence_s)
    for rival in fleets:
        turns[rival.name].silent_s = max(rival.run(1, together=False).seconds)


def line(cell: Cell, rival: Fleet, nbytes: int, turns: Turns, limits: dict[int, float]) -> Line:
    wan = cell.wan
    median_s = statistics.median(turns.rest.seconds or [turns.first_s])
    mbit = 2 * (wan.hosts - 1) / wan.hosts * nbytes * 8 / median_s / 1e6
    return {
        "bench": "wan",
        "cell": cell.name,
        "hosts": wan.hosts,
        "rate_mbit": wan.rate_mbit,
        "round_trip_ms": wan.round_trip_ms,
        "rival": rival.name,
        "lanes": rival.facts.get("lanes"),
        "congestion": rival.facts.get("congestion"),
        "repeated_bytes": rival.facts.get("repeated_bytes"),  # of one host, since it began
        "bytes": nbytes,
        "median_s": round(median_s, 4),
        "best_s": round(min(turns.rest.seconds or [turns.first_s]), 4),
        "all_s": [round(second, 3) for second in turns.rest.seconds],
        "first_s": round(turns.first_s, 4),
        "silent_s": None if turns.silent_s is None else round(turns.silent_s, 4),
        "mbit": round(mbit, 1),
        "share_of_rate": round(mbit / wan.slowest_mbit, 3),
        "iperf_mbit": {str(streams): round(rate, 1) for streams, rate in limits.items()},
        "share_of_limit": round(mbit / max(limits.values()), 3) if limits else None,
        "round_trips": round(median_s / (wan.round_trip_ms / 1e3), 2),
        "dropped_packets": turns.dropped_packets,
        "cpu_s_per_gb": round(turns.rest.cpu_s / max(1, turns.rest.repetitions) / (nbytes / 1e9), 2),
        "load_average": round(os.getloadavg()[0], 2),
    }


def run_case(cell: Cell, arguments: argparse.Namespace, lines: list[Line]) -> None:
    """Adds to the lines as it goes on, so that those before a failure are in the table."""

    def tell(found: Line) -> None:
        lines.append(found)
        print(json.dumps(found), flush=True)

    with WanLab(cell.wan) as lab:
        last = cell.wan.hosts - 1
        pairs = [(host, last) for host in range(last)] if cell.state else None
        limits = best(lab, arguments.iperf, IPERF_S, pairs)
        if cell.state:
            for size in arguments.mb:
                tell(state_line(cell, lab, size << 20, arguments.rounds, limits))
            return
        with contextlib.ExitStack() as stack:
            fleets = start_all(stack, lab, arguments)
            for nbytes in [SMALL_BYTES, *(size << 20 for size in arguments.mb)]:
                measured = measure(lab, fleets, nbytes, arguments.rounds, cell)
                if arguments.silence and nbytes == arguments.mb[0] << 20:
                    after_silence(fleets, measured, arguments.silence)
                for rival in fleets:
                    rival.look()
                    tell(line(cell, rival, nbytes, measured[rival.name], limits))
        if arguments.gloo:
            tell(gloo_line(cell, lab, limits))


def state_line(cell: Cell, lab: WanLab, nbytes: int, rounds: int, limits: dict[int, float]) -> Line:
    """A newcomer on the last host pulls from all others; per holder, as `iperf3` sends from each of them."""
    taken = pulled_s(lab, nbytes, cell.wan.hosts - 1, rounds)
    median_s = statistics.median(taken)
    mbit = nbytes * 8 / median_s / 1e6 / (cell.wan.hosts - 1)
    return {
        "bench": "wan",
        "cell": cell.name,
        "rival": "ours, state",
        "bytes": nbytes,
        "median_s": round(median_s, 3),
        "best_s": round(min(taken), 3),
        "first_s": round(taken[0], 3),
        "mbit": round(mbit, 1),
        "share_of_rate": round(mbit / cell.wan.rate_mbit, 3),
        "iperf_mbit": {str(streams): round(rate, 1) for streams, rate in limits.items()},
        "share_of_limit": round(mbit / max(limits.values()), 3) if limits else None,
    }


def gloo_line(cell: Cell, lab: WanLab, limits: dict[int, float]) -> Line:
    """One all-reduce of its own size: the first, since it has nothing to warm up but its windows."""
    places = _places(lab)
    try:
        with fleet("gloo", len(places), {}, each("gloo", places), GLOO_S) as rival:
            return line(cell, rival, GLOO_BYTES, Turns(rival.prepare(GLOO_BYTES)), limits)
    except RivalFailed as error:
        return {"bench": "wan", "cell": cell.name, "rival": "gloo", "bytes": GLOO_BYTES, "stopped": str(error)}


def table(lines: list[Line]) -> None:
    columns: tuple[str, ...] = ("cell", "bytes", "rival", "lanes", "median_s", "best_s", "first_s", "silent_s", "mbit")
    columns += ("share_of_rate", "share_of_limit", "round_trips", "dropped_packets")
    rows = [columns, *(tuple(str(entry.get(column, "")) for column in columns) for entry in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    print()
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["2x1000", "4x400"], help="cells, or `twelve` or `robust`")
    parser.add_argument("--lanes", type=int, nargs="+", default=[0])
    parser.add_argument("--codecs", nargs="+", help='"none" and codecs that take turns, e.g. int8 int4')
    parser.add_argument("--mb", type=int, nargs="*", default=[64, 256], help="sizes in MiB beside 4 KB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument(
        "--iperf", type=int, nargs="*", default=[], help="numbers of streams; none: no limit is measured"
    )
    parser.add_argument(
        "--silence", type=float, default=0.0, help="seconds before one more all-reduce of the first size"
    )
    parser.add_argument("--tls", action="store_true", help="plain lanes beside sealed ones, which take turns")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench/wan.py makes network namespaces, and only root may: run it with sudo")
    try:
        chosen = cells(arguments.cases)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    lines: list[Line] = []
    failed: list[str] = []
    for cell in chosen:
        try:
            run_case(cell, arguments, lines)
        except (LabFailed, RivalFailed, IperfFailed) as error:
            failed.append(f"{cell.name}: {error}")
            print(failed[-1], file=sys.stderr, flush=True)
    table(lines)
    if failed:
        raise SystemExit("\n".join([f"{len(failed)} of {len(chosen)} cells failed:", *failed]))


if __name__ == "__main__":
    main()
