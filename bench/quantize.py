"""What coding costs and gains on one machine: kernels beside memcpy and pypiquant, coded all-reduces beside plain ones.

    python bench/quantize.py [kernels|all-reduce] [--peers 2 4] [--sizes 64M 256M] [--codecs none int8] [--rounds 5]

`kernels`: GB of float32 per second of CPU time, one thread, tensors that fit the second-level cache and ones that fit
none; the whole of what a hop does, metadata included: `encode`, `fold` (decode, add, encode) and `decode`. Beside it
memcpy, and pypiquant, the quantiser of PCCL, if it is installed (pip install pypiquant), which codes whole tensors with
one scale.

`all-reduce`: float32 AVG in place over loopback, through the public call. One fleet of processes for each codec, that
take turns; medians, and how much faster each is than `none` in the same run.

Prints JSON lines, then a table.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from rivals.fleet import Fleet, Measured, Place, fleet, with_master

from pccl import _native
from pccl.codec import CODES, Codec
from pccl.core.fields import CollectiveSpec
from pccl.dataplane.native import parameters
from pccl.types import DataType, ReduceOp

MEASURE_S = 0.05
TRIES = 9
ELEMENTS = {"in cache": 64 * 1024, "in memory": 16 * 1024 * 1024}
TURN_S = 1.2

Line = dict[str, object]


# ── kernels ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def gb_per_cpu_s(nbytes: int, call: Callable[[], object]) -> float:
    """The best of some tries. CPU time: whatever else the machine does is hardly counted."""
    call()  # fresh pages, cold caches
    began = time.process_time()
    call()
    repetitions = max(1, int(MEASURE_S / max(1e-7, time.process_time() - began)))
    best = float("inf")
    for _ in range(TRIES):
        began = time.process_time()
        for _ in range(repetitions):
            call()
        best = min(best, (time.process_time() - began) / repetitions)
    return nbytes / best / 1e9


def kernel_lines(where: str, count: int) -> list[Line]:
    values = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    out = np.empty_like(values)
    rates = {"memcpy": {"encode": gb_per_cpu_s(values.nbytes, lambda: np.copyto(out, values))}}
    for name in CODES:
        rates[name] = codec_rates(Codec(name), values, out)
        rates[f"{name} stochastic"] = codec_rates(Codec(name, stochastic=True), values, out)
    rates |= piquant_rates(values, out)
    return [
        {"bench": "kernels", "where": where, "codec": codec, **{what: round(rate, 2) for what, rate in each.items()}}
        for codec, each in rates.items()
    ]


def codec_rates(codec: Codec, values: np.ndarray, out: np.ndarray) -> dict[str, float]:
    plan = parameters(CollectiveSpec(len(values), DataType.FLOAT, ReduceOp.SUM, str(codec)))
    codes = np.zeros(codec.coded_bytes(len(values), DataType.FLOAT), np.uint8)
    coded, given, back = codes.ctypes.data, values.ctypes.data, out.ctypes.data
    return {
        "encode": gb_per_cpu_s(values.nbytes, lambda: _native.encode(plan, coded, given)),
        "decode": gb_per_cpu_s(values.nbytes, lambda: _native.decode(plan, back, coded)),
        "fold": gb_per_cpu_s(values.nbytes, lambda: _native.fold(plan, coded, given)),
    }


def piquant_rates(values: np.ndarray, out: np.ndarray) -> dict[str, dict[str, float]]:
    """Of PCCL's quantiser, with one thread as ours; nothing where it is not installed."""
    if importlib.util.find_spec("piquant") is None:
        return {}
    piquant = importlib.import_module("piquant")
    context, real, code = piquant.Context(1), piquant.DataType.F32, piquant.DataType.UINT8
    given, back, count = values.ctypes.data, out.ctypes.data, len(values)
    codes = np.zeros(count, np.uint8)
    coded, nearest, rewrite = codes.ctypes.data, piquant.RoundMode.NEAREST, piquant.ReduceOp.SET
    scale, zero = context.compute_quant_params_ptr_float32(given, code, count)

    def encode() -> None:
        """As PCCL does it: a pass over the tensor for its parameters, and one for its codes."""
        scale, zero = context.compute_quant_params_ptr_float32(given, code, count)
        context.quantize_ptr(given, real, coded, code, count, scale, zero, nearest)

    def decode() -> None:
        context.dequantize_ptr(coded, code, back, real, count, scale, zero, rewrite)

    rates = {"encode": gb_per_cpu_s(values.nbytes, encode), "decode": gb_per_cpu_s(values.nbytes, decode)}
    return {"piquant uint8": rates}


def kernel_table(lines: list[Line]) -> None:
    print("\nGB of float32 per second of CPU time: encode | fold | decode")
    for line in lines:
        cells = " | ".join(f"{line.get(what, '')!s:>6}" for what in ("encode", "fold", "decode"))
        print(f"{line['where']!s:>10} {line['codec']!s:>24} {cells}")


# ── all-reduces ──────────────────────────────────────────────────────────────────────────────────────────────────────


def all_reduce_lines(peers: int, sizes: list[int], codecs: list[str], rounds: int) -> list[Line]:
    lines: list[Line] = []
    with contextlib.ExitStack() as stack:
        start = with_master([Place()] * peers)
        fleets = [stack.enter_context(fleet(codec, peers, {"lanes": 0, "quantize": codec}, start)) for codec in codecs]
        for nbytes in sizes:
            for line in measured_lines(fleets, nbytes, rounds):
                lines.append({"bench": "all_reduce", "peers": peers, "bytes": nbytes, **line})
                print(json.dumps(lines[-1]), flush=True)
    return lines


def measured_lines(fleets: list[Fleet], nbytes: int, rounds: int) -> list[Line]:
    measured = {each.name: Measured() for each in fleets}
    repetitions = {each.name: max(1, int(TURN_S / max(each.prepare(nbytes), 1e-3))) for each in fleets}
    for turn in range(rounds):
        # In another order each time, so that nobody always comes after the same one.
        for each in fleets[turn % len(fleets) :] + fleets[: turn % len(fleets)]:
            measured[each.name].add(each.run(repetitions[each.name]))
    medians = {name: statistics.median(times.seconds) for name, times in measured.items()}
    fastest = {name: statistics.quantiles(times.seconds, n=10)[0] for name, times in measured.items()}
    base = "none" if "none" in medians else next(iter(medians))
    return [
        {
            "codec": name,
            "median_ms": round(medians[name] * 1e3, 3),
            "tenth_ms": round(fastest[name] * 1e3, 3),
            "cpu_s_per_gb": round(times.cpu_s / times.repetitions / (nbytes / 1e9), 3),
            "faster_than_none": round(medians[base] / medians[name], 3),
            "fastest_tenth_faster": round(fastest[base] / fastest[name], 3),
            "load_average": round(os.getloadavg()[0], 2),
        }
        for name, times in measured.items()
    ]


def all_reduce_table(lines: list[Line]) -> None:
    print("\nmedian ms | fastest tenth ms | CPU s per GB | times faster than none (median, fastest tenth)")
    for line in lines:
        times = f"{line['median_ms']:9.2f} | {line['tenth_ms']:9.2f} | {line['cpu_s_per_gb']:6.2f}"
        what = f"{line['peers']} peers, {int(str(line['bytes'])) >> 20:4d} MiB, {line['codec']!s:>6}"
        print(f"{what}: {times} | {line['faster_than_none']:5.2f} {line['fastest_tenth_faster']:5.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["kernels", "all-reduce"], help="both, if not said")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", nargs="+", default=["64M", "256M"])
    parser.add_argument("--codecs", nargs="+", default=["none", "int8", "int4"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.what != "all-reduce":
        lines = [line for where, count in ELEMENTS.items() for line in kernel_lines(where, count)]
        for line in lines:
            print(json.dumps(line))
        kernel_table(lines)
    if arguments.what != "kernels":
        sizes = [int(size.removesuffix("M")) << 20 for size in arguments.sizes]
        lines = [
            line
            for peers in arguments.peers
            for line in all_reduce_lines(peers, sizes, arguments.codecs, arguments.rounds)
        ]
        all_reduce_table(lines)


if __name__ == "__main__":
    main()
