"""How a collective is cut up for the lanes it gets. Pure functions of what all peers agree on.

The master computes these and puts the results into `Start`, so that all peers cut alike.
"""

from pccl.codec import Codec
from pccl.core.fields import SEGMENT_BYTES_MAX, CollectiveSpec

STRIPE_BYTES_MIN = 256 * 1024
"""A collective gets no more lanes than it can give this many bytes each: below it a stripe is shorter than what one
connection has in flight on a wide-area link anyway, and the lane serves another collective better."""

NEAR_S = 0.005
"""With round trips below this one connection fills the link, or keeps a thread busy: 5 ms at 10 Gbit/s are 6 MB in
flight, which the kernel's own buffers hold. More lanes would only cost wake-ups and system calls."""

SEGMENT_BYTES_MIN = 16 * 1024
"""Smaller segments cost more in headers and system calls than their finer pipelining gains."""

SEGMENT_BYTES_BEST = 256 * 1024
"""Large enough that a system call moves much, small enough that a segment and our share of it are checked, reduced and
sent on while both are in a second-level cache of 512 KiB [64 MB, 2 peers on loopback, quiet: 70 to 80 ms with twice as
much, 55 with this, 47 to 51 with half; 4 peers: 153 to 168, 138 to 160, 143 to 175]. With a codec it is the codes that
are so long, for the same reasons [64 MB as int8, CPU seconds per GB: 0.84 and 2.13 when it was the elements, 2 and 4
peers; 0.74 and 1.98 like this]."""

SEGMENT_BYTES_FAR = 64 * 1024
"""Over far links, where a lane that has lost something delivers a segment some round trips later: the less it carries
the less has to wait for it. The rates of such links leave time for four times as many system calls."""

SEGMENTS_PER_LANE = 4
"""A chunk is cut so that each lane carries at least this many segments of it: while one is being received the next is
being reduced and a third sent on, and a slow lane can be overtaken by the others."""

STRAND_BYTES_MIN = SEGMENTS_PER_LANE * SEGMENT_BYTES_BEST
"""A strand has at least this much of every chunk: what is left of it when chunks do not divide evenly is at most a
quarter, and a thread is woken for some hundred microseconds of work."""

THREAD_BYTES_S = 1_000_000_000
"""What one thread sends while it receives as much: 1.7 GB/s plain, 0.8 under TLS (docs/tuning.md)."""

WINDOW_BYTES = 4 * 1024 * 1024
"""What a connection has in flight at most: Linux's own limit of what one may keep to send again."""

STRAND_LANES_MIN = 4
"""Where neighbours are far: what a slow lane holds up can be overtaken only by lanes of the same strand. As many as a
link has by default."""

PARCEL_BYTES_MAX = 64 * 1024
"""No contribution longer than this is sent along with a vote. Up to here the bytes cost less than the delays they save
on any link that a ring would fill; and a peer keeps at most `PARCELS_MAX` of them for each of the others."""

PARCELS_MAX = 256
"""Parcels of one peer that may be in use at once; further collectives go over the ring."""

PARCELS_KEPT_MAX = 4 * PARCELS_MAX
"""Parcels of one peer that another keeps, and how far apart the numbers of those in use may be: one that waits long for
its collective keeps all later ones of aborted collectives alive."""

PARCELS_BYTES_MAX = PARCELS_MAX * PARCEL_BYTES_MAX
"""Bytes of them, 16 MiB: as many of the longest as may be in use. In a mesh of eight a peer keeps 112 MiB at most."""

PARCEL_RATE = 125_000_000
"""Bytes per second that a link is taken to carry when the longest parcel is chosen: 1 Gbit/s. A slower one has longer
round trips too in practice, and `PARCEL_BYTES_MAX` bounds what a wrong guess can cost."""


def parcel_bytes(round_trip_s: float) -> int:
    """Up to which length a contribution goes straight to all peers of its group, and with the vote.

    A ring of N passes 2(N-1) one-way delays, N-1 round trips; sending all to all passes none, since it overlaps with
    the vote, but sends up to N-1 times as many bytes. So it is the shorter way while one contribution takes less than a
    round trip to send."""
    return int(min(PARCEL_BYTES_MAX, round_trip_s * PARCEL_RATE))


def useful_threads(spec: CollectiveSpec, size: int, threads: int) -> int:
    """How many of the threads that each peer of a ring of this size has are worth to be woken for a collective."""
    return max(1, min(threads, _chunk_bytes(spec, size) // STRAND_BYTES_MIN))


def lane_share(free: int, waiting: int, spec: CollectiveSpec, round_trip_s: float, threads: int = 1) -> int:
    """How many of the free lanes a collective gets when `waiting` ones, itself included, are ready to start: near ones
    one for each thread."""
    useful = -(-spec.count * spec.dtype.itemsize // STRIPE_BYTES_MIN) if round_trip_s > NEAR_S else threads
    return max(1, min(free // waiting, useful))


def strand_count(threads: int, lanes: int, round_trip_s: float) -> int:
    """Into how many strands a collective with so many lanes is divided for so many threads: each has lanes of its own,
    as many as keep a thread busy. One carries a window in each round trip, at most; an infinite one is not known."""
    if round_trip_s <= NEAR_S:
        return max(1, min(threads, lanes))
    busy = int(lanes * WINDOW_BYTES / (THREAD_BYTES_S * round_trip_s))
    return max(1, min(threads, busy, lanes // STRAND_LANES_MIN))


def transfer_lanes(lanes: int, round_trip_s: float) -> tuple[int, ...]:
    """The lanes of each link over which a shared state is pulled: no collective needs them meanwhile."""
    return tuple(range(lanes if round_trip_s > NEAR_S else 1))


def segment_bytes(spec: CollectiveSpec, size: int, lanes: int, round_trip_s: float) -> int:
    """The length of a segment for a ring of this size: a multiple of eight bytes, so that elements stay whole."""
    best = SEGMENT_BYTES_FAR if round_trip_s > NEAR_S else SEGMENT_BYTES_BEST
    wanted = _chunk_bytes(spec, size) // (lanes * SEGMENTS_PER_LANE)
    length = min(max(wanted, SEGMENT_BYTES_MIN), best * _plain_per_coded(spec), SEGMENT_BYTES_MAX)
    return length // 8 * 8


def _chunk_bytes(spec: CollectiveSpec, size: int) -> int:
    return -(-spec.count * spec.dtype.itemsize // size)


def _plain_per_coded(spec: CollectiveSpec) -> int:
    """How many times as long elements are as their codes. To the master a codec is a name that all peers agree on: one
    that it does not know, such as of peers that are newer, only gets shorter segments."""
    try:
        codec = Codec.parse(spec.codec)
    except ValueError:
        return 1
    if codec is None:
        return 1
    plain, coded = codec.block * spec.dtype.itemsize, codec.coded_bytes(codec.block, spec.dtype)
    return max(1, round(plain / coded))
