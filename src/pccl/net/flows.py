"""What the kernel counts on a connection, and what that comes to on lanes while they were lent.

Owns the layout of Linux's `tcp_info`. Must not know what is made of the figures.
"""

import socket
import struct
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from pccl.core.fields import Flow

_INFO = struct.Struct("=16xI48xI48xQ20xI16xQQQ16xQI")
"""`tcpi_snd_mss`, `tcpi_rtt`, `tcpi_bytes_acked`, `tcpi_min_rtt`, `tcpi_busy_time`, `tcpi_rwnd_limited`,
`tcpi_sndbuf_limited`, `tcpi_bytes_retrans` and `tcpi_dsack_dups`, since Linux 4.19; the layout only ever grows."""

_UNKNOWN = (1 << 32) - 1


class Counters(NamedTuple):
    """Of one connection since it stands; the round trips are those of now."""

    at: float
    acked: int
    resent: int
    busy_us: int
    limited_us: int
    shortest_us: int
    smoothed_us: int


def read(sock: socket.socket) -> Counters | None:
    """None where the kernel does not tell. What was sent again though it had arrived, as its receiver says, was
    overtaken by later packets and not lost."""
    if sys.platform != "linux":
        return None
    try:
        facts = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:
        return None  # Broken already.
    if len(facts) < _INFO.size:
        return None
    mss, smoothed, acked, shortest, busy, receiver, buffer, resent, needless = _INFO.unpack(facts)
    if shortest == _UNKNOWN:
        return None
    return Counters(
        time.monotonic(), acked, max(0, resent - needless * mss), busy, receiver + buffer, shortest, smoothed
    )


def flow(ends: Iterable[tuple[Counters | None, Counters | None]]) -> Flow:
    """Of lanes, each as it was lent and as it came back."""
    known = [(before, after) for before, after in ends if before is not None and after is not None]
    if not known:
        return Flow()
    return Flow(
        sent=sum(after.acked - before.acked for before, after in known),
        resent=sum(max(0, after.resent - before.resent) for before, after in known),
        held_ms=int(sum(after.at - before.at for before, after in known) * 1e3),
        busy_ms=sum(after.busy_us - before.busy_us for before, after in known) // 1000,
        limited_ms=sum(after.limited_us - before.limited_us for before, after in known) // 1000,
        shortest_us=min(after.shortest_us for _, after in known),
        smoothed_us=sum(after.smoothed_us for _, after in known) // len(known),
    )
