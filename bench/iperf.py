"""What plain TCP streams carry over the same network: iperf3, each host to the next one, all at once.

Owns the processes of iperf3. Must not know what they are compared with.
"""

import contextlib
import json
import shutil
import statistics
import subprocess
import time

from wanlab import WanLab

PORT = 5201
OMITTED_S = 2
"""At the beginning of each run: the streams' slow start is no part of the limit."""
LISTEN_S = 10.0
"""A server that does not listen after this long has failed."""


class IperfFailed(Exception):
    """It is not there, or a run ended early; the sentence says which."""


def best(lab: WanLab, streams: list[int], seconds: int, pairs: list[tuple[int, int]] | None = None) -> dict[int, float]:
    """By number of streams: what the receivers got, in Mbit/s. `pairs`: who sends to whom, of which the mean counts;
    otherwise each host to the next one, so that with two both directions are in use, and of these the least, for a ring
    is as fast as its slowest link."""
    if shutil.which("iperf3") is None:
        raise IperfFailed("iperf3 must be installed: apt-get install iperf3")
    hosts = lab.wan.hosts
    ring = [(host, (host + 1) % hosts) for host in range(hosts)]
    kind = statistics.mean if pairs else min
    return {each: kind(_run(lab, each, seconds, pairs or ring)) for each in streams}


def _run(lab: WanLab, streams: int, seconds: int, pairs: list[tuple[int, int]]) -> list[float]:
    """What each of them got."""
    with contextlib.ExitStack() as stack:
        for place, (_, to) in enumerate(pairs):
            _serve(stack, lab, to, PORT + place)
        senders = [_send(stack, lab, pair, PORT + place, streams, seconds) for place, pair in enumerate(pairs)]
        reports = [json.loads(sender.communicate()[0] or b"{}") for sender in senders]
    for report in reports:
        if "error" in report or "end" not in report:
            raise IperfFailed(f"iperf3 with {streams} streams: {report.get('error', 'no report')}")
    return [report["end"]["sum_received"]["bits_per_second"] / 1e6 for report in reports]


def _serve(stack: contextlib.ExitStack, lab: WanLab, host: int, port: int) -> None:
    server = subprocess.Popen([*lab.inside(host), "iperf3", "-s", "-1", "-p", str(port)], stdout=subprocess.DEVNULL)
    stack.callback(_end, server)
    until = time.monotonic() + LISTEN_S
    listing = [*lab.inside(host), "ss", "-Hltn", f"sport = :{port}"]
    while not subprocess.run(listing, capture_output=True, check=True).stdout:
        if time.monotonic() > until:
            raise IperfFailed(f"iperf3 -s does not listen on port {port} of host {host}")
        time.sleep(0.05)


def _send(
    stack: contextlib.ExitStack, lab: WanLab, pair: tuple[int, int], port: int, streams: int, seconds: int
) -> "subprocess.Popen[bytes]":
    what = ["-P", str(streams), "-t", str(seconds), "-O", str(OMITTED_S), "-J"]
    command = [*lab.inside(pair[0]), "iperf3", "-c", lab.address(pair[1]), "-p", str(port), *what]
    sender = subprocess.Popen(command, stdout=subprocess.PIPE)
    stack.callback(_end, sender)
    return sender


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    process.wait()
