"""All-reduce over an emulated wide-area network: how much of each host's rate, and how many round trips.

    sudo python bench/wan.py [--cases 2x1000 4x400] [--lanes 0 1 4 8 16] [--mb 64 256] [--rounds 2] [--gloo]
    sudo python bench/wan.py --cases 2x200 4x200 --codecs none int8 int4 --mb 256
    sudo python bench/wan.py --cases 2x1000 --tls --rounds 7

Hosts are network namespaces of their own (see `wanlab`), and the master runs on the first of them. `2x1000` is two
hosts that send 1000 Mbit/s each. Every number of lanes gets its own master and peers, started once; they take
turns at each size, for several rounds, in one and the same network. 0 lanes means the library's own choice.

Prints a JSON line per case, rival and size, then a table: the median, the time of the first all-reduce of the size,
the share of the hosts' rate (2(N-1)/N of the tensor, in each direction, votes included), and round trips for 4 KB.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import sys
from dataclasses import dataclass, field

from rivals.fleet import Fleet, Measured, Place, RivalFailed, each, fleet, with_master
from wanlab import LabFailed, Wan, WanLab

SMALL_BYTES = 4096
SMALL_REPETITIONS = 7


def start_all(stack: contextlib.ExitStack, lab: WanLab, arguments: argparse.Namespace) -> list[Fleet]:
    hosts = range(lab.wan.hosts)
    places = [Place(tuple(lab.inside(host)), lab.address(host), "wan0") for host in hosts]
    fleets = []
    kinds = ["plain", "TLS"] if arguments.tls else [""]
    for count, codec, kind in itertools.product(arguments.lanes, arguments.codecs or [""], kinds):
        name = ", ".join(["ours", f"{count} lanes" if count else "default", *filter(None, [codec, kind])])
        settings = {"lanes": count, "quantize": codec, "insecure": kind == "plain"}
        fleets.append(stack.enter_context(fleet(name, len(places), settings, with_master(places))))
    if arguments.gloo:
        fleets.append(stack.enter_context(fleet("gloo", len(places), {}, each("gloo", places))))
    return fleets


@dataclass
class Turns:
    """What one rival did at one size."""

    first_s: float
    rest: Measured = field(default_factory=Measured)
    dropped_packets: int = 0


def measure(lab: WanLab, fleets: list[Fleet], nbytes: int, rounds: int) -> dict[str, Turns]:
    """By rival; the rivals take turns."""
    turns: dict[str, Turns] = {}
    for rival in fleets:
        turns[rival.name] = Turns(rival.prepare(nbytes))
        print(f"  {rival.name}: first {nbytes} bytes in {turns[rival.name].first_s:.2f} s", file=sys.stderr, flush=True)
    repetitions = SMALL_REPETITIONS if nbytes == SMALL_BYTES else 1
    for _ in range(rounds):
        for rival in fleets:
            before = lab.dropped_packets
            turns[rival.name].rest.add(rival.run(repetitions, together=False))
            turns[rival.name].dropped_packets += lab.dropped_packets - before
    return turns


def line(wan: Wan, rival: Fleet, nbytes: int, turns: Turns) -> dict[str, object]:
    median_s = statistics.median(turns.rest.seconds)
    bits = 2 * (wan.hosts - 1) / wan.hosts * nbytes * 8
    return {
        "bench": "wan",
        "hosts": wan.hosts,
        "rate_mbit": wan.rate_mbit,
        "round_trip_ms": wan.round_trip_ms,
        "rival": rival.name,
        "lanes": rival.facts.get("lanes"),
        "congestion": rival.facts.get("congestion"),
        "bytes": nbytes,
        "median_s": round(median_s, 4),
        "best_s": round(min(turns.rest.seconds), 4),
        "first_s": round(turns.first_s, 4),
        "share_of_rate": round(bits / median_s / (wan.rate_mbit * 1e6), 3),
        "round_trips": round(median_s / (wan.round_trip_ms / 1e3), 2),
        "dropped_packets": turns.dropped_packets,
        "cpu_s_per_gb": round(turns.rest.cpu_s / turns.rest.repetitions / (nbytes / 1e9), 2),
        "load_average": round(os.getloadavg()[0], 2),
    }


def run_case(wan: Wan, sizes: list[int], arguments: argparse.Namespace) -> list[dict[str, object]]:
    lines = []
    with WanLab(wan) as lab, contextlib.ExitStack() as stack:
        fleets = start_all(stack, lab, arguments)
        for nbytes in sizes:
            measured = measure(lab, fleets, nbytes, arguments.rounds)
            for rival in fleets:
                lines.append(line(wan, rival, nbytes, measured[rival.name]))
                print(json.dumps(lines[-1]), flush=True)
    return lines


def table(lines: list[dict[str, object]]) -> None:
    columns: tuple[str, ...] = ("hosts", "rate_mbit", "bytes", "rival", "lanes", "median_s", "best_s", "first_s")
    columns += ("share_of_rate", "round_trips", "dropped_packets")
    rows = [columns, *(tuple(str(entry[column]) for column in columns) for entry in lines)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(columns))]
    print()
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["2x1000", "4x400"], help="hosts x Mbit/s of each")
    parser.add_argument("--round-trip-ms", type=float, default=80.0)
    parser.add_argument("--lanes", type=int, nargs="+", default=[0])
    parser.add_argument("--codecs", nargs="+", help='"none" and codecs that take turns, e.g. int8 int4')
    parser.add_argument("--mb", type=int, nargs="*", default=[64, 256], help="sizes in MiB beside 4 KB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gloo", action="store_true")
    parser.add_argument("--tls", action="store_true", help="plain lanes beside sealed ones, which take turns")
    parser.add_argument("--congestion", default="", help="of the hosts, e.g. cubic; otherwise this machine's default")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit("bench/wan.py makes network namespaces, and only root may: run it with sudo")
    sizes = [SMALL_BYTES, *(size << 20 for size in arguments.mb)]
    lines = []
    for case in arguments.cases:
        hosts, rate_mbit = case.split("x")
        wan = Wan(int(hosts), arguments.round_trip_ms, float(rate_mbit), congestion=arguments.congestion)
        try:
            lines += run_case(wan, sizes, arguments)
        except (LabFailed, RivalFailed) as error:
            print(f"{case}: {error}", file=sys.stderr)
    if not lines:
        raise SystemExit(1)
    table(lines)


if __name__ == "__main__":
    main()
