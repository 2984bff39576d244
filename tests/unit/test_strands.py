"""Into how many strands a collective is divided: by the threads of its members, its lanes, its length and the way."""

from math import ceil, inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pccl.config import PeerConfig, Places
from pccl.core.effects.master import Received, Send
from pccl.core.effects.peer_effects import StartAttempt
from pccl.core.effects.peer_events import CallCollective
from pccl.core.fields import CollectiveSpec, Identity
from pccl.core.limits import THREADS_MAX, MasterLimits, PeerLimits
from pccl.core.master.master import Master
from pccl.core.messages.to_master import Initiate, Join, LinkUp, VoteTopology
from pccl.core.messages.to_peer import Start, Wire
from pccl.core.peer.collectives import Collectives
from pccl.core.peer.outbox import Outbox
from pccl.core.peer.peer import Peer
from pccl.core.rules.schedule import (
    STRAND_BYTES_MIN,
    STRAND_LANES_MIN,
    THREAD_BYTES_S,
    WINDOW_BYTES,
    lane_share,
    segment_bytes,
    strand_count,
    useful_threads,
)
from pccl.core.text import Violation
from pccl.errors import UsageError
from pccl.threads import THREADS_DEFAULT_MAX, default_threads
from pccl.types import DataType, PeerId, ReduceOp
from pccl.wire.codec import decode_to_master, decode_to_peer, encode
from pccl.wire.framing import WireError

NEAR_S, FAR_S = 0.001, 0.08
PEERS = {1: PeerId("anna"), 2: PeerId("bert"), 3: PeerId("carl")}


def spec(nbytes: int) -> CollectiveSpec:
    return CollectiveSpec(nbytes // 4, DataType.FLOAT, ReduceOp.SUM)


# ── the rule ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_thread_is_woken_for_a_part_of_every_chunk_that_is_worth_it() -> None:
    assert useful_threads(spec(1 << 30), 2, 8) == 8
    assert useful_threads(spec(2 * 3 * STRAND_BYTES_MIN), 2, 8) == 3
    assert useful_threads(spec(2 * 3 * STRAND_BYTES_MIN), 6, 8) == 1
    assert useful_threads(spec(0), 2, 8) == 1


def test_near_neighbours_give_a_collective_one_lane_for_each_thread() -> None:
    assert lane_share(8, 1, spec(1 << 30), NEAR_S, 1) == 1
    assert lane_share(8, 1, spec(1 << 30), NEAR_S, 4) == 4
    assert lane_share(8, 4, spec(1 << 30), NEAR_S, 4) == 2, "others wait"
    assert strand_count(4, 4, NEAR_S) == 4
    assert strand_count(4, 1, NEAR_S) == 1, "one lane was asked for"


def test_far_neighbours_divide_only_what_keeps_threads_busy() -> None:
    """Of a slow lane only lanes of the same strand take over."""
    assert lane_share(8, 1, spec(1 << 30), FAR_S, 1) == lane_share(8, 1, spec(1 << 30), FAR_S, 8) == 8
    two = ceil(2 * THREAD_BYTES_S * FAR_S / WINDOW_BYTES)
    assert [strand_count(8, lanes, FAR_S) for lanes in (1, 4, two - 1, two, 256)] == [1, 1, 1, 2, 8]
    assert strand_count(8, 2 * STRAND_LANES_MIN - 1, 0.006) == 1
    assert strand_count(8, 2 * STRAND_LANES_MIN, 0.006) == 2
    assert strand_count(8, 1024, inf) == 1, "how far is not known"


@given(st.integers(0, 1 << 40), st.integers(2, 64), st.integers(1, 64), st.integers(1, 16), st.floats(0, 1))
def test_every_strand_has_lanes_and_segments(
    nbytes: int, size: int, free: int, threads: int, round_trip_s: float
) -> None:
    useful = useful_threads(spec(nbytes), size, threads)
    lanes = lane_share(free, 1, spec(nbytes), round_trip_s, useful)
    strands = strand_count(useful, lanes, round_trip_s)
    assert 1 <= strands <= min(lanes, threads)
    chunk = nbytes // 4 * 4 // size
    if strands > 1:
        assert chunk // segment_bytes(spec(nbytes), size, lanes, round_trip_s) >= strands


# ── the master and the peer ──────────────────────────────────────────────────────────────────────────────────────────


def started(threads: tuple[int, ...], lanes: int, nbytes: int, round_trip_us: int) -> Start:
    """What members that have so many threads each are told."""
    master = Master("run", MasterLimits())
    for (connection, peer), each in zip(PEERS.items(), threads, strict=False):
        master.handle(Received(connection, Join(Identity(peer, 0, "h", connection, lanes, threads=each))), 0.0)
    effects = master.handle(Received(1, VoteTopology()), 0.0)
    wires = [(to, each.message) for each in effects if isinstance(each, Send) for to in each.connections]
    for connection, wire in wires:
        for link in wire.links if isinstance(wire, Wire) else ():
            master.handle(Received(connection, LinkUp(link.number, round_trip_us)), 0.0)
    assert len(master.roster.accepted) == len(threads)
    effects = [
        effect
        for connection in range(1, len(threads) + 1)
        for effect in master.handle(Received(connection, Initiate(0, spec(nbytes))), 0.0)
    ]
    (start,) = {each.message for each in effects if isinstance(each, Send) and isinstance(each.message, Start)}
    return start


def test_the_member_with_the_fewest_threads_decides() -> None:
    assert started((8, 3, 4), 8, 1 << 28, 100).strands == 3
    assert started((8, 8, 1), 8, 1 << 28, 100).strands == 1
    assert started((8, 3, 4), 8, 1 << 28, 100).lanes == (0, 1, 2)


def test_lanes_that_a_user_asked_for_are_all_there_are() -> None:
    assert started((8, 8), 1, 1 << 28, 100).strands == 1
    assert started((8, 8), 2, 1 << 28, 100).strands == 2
    assert started((8, 8), 0, 1 << 28, 100).strands == MasterLimits().default_lanes
    assert started((8, 8), 16, 1 << 28, 80_000).strands == 1
    assert started((8, 8), 16, 1 << 28, 80_000).lanes == tuple(range(16))


def test_a_small_tensor_is_one_strand() -> None:
    assert started((8, 8), 0, 1 << 20, 100).strands == 1
    assert started((8, 8), 0, 1 << 20, 100).lanes == (0,)


class AllLanes:
    """Lends whatever is asked for."""

    def lend(self, peer: PeerId, lanes: tuple[int, ...], attempt: int) -> tuple[tuple[int, int], ...]:
        return tuple((0, lane) for lane in lanes)


def told(threads: int, start: Start) -> StartAttempt:
    """What the data plane of a peer is."""
    outbox = Outbox()
    effects = outbox.effects
    runs = Collectives(PeerId("bert"), AllLanes(), outbox)  # type: ignore[arg-type]
    runs.threads = threads
    runs.initiate(1, CallCollective(0, spec(64)), (), 0)
    runs.dispatch(start, 4, tuple(PEERS.values()))
    effect = effects[-1]
    assert isinstance(effect, StartAttempt)
    return effect


def test_a_peer_divides_as_it_is_told_and_as_it_can() -> None:
    start = Start(0, 9, 4, (0, 1, 2), 64, strands=2)
    assert told(2, start).strands == 2
    assert told(8, start).strands == 2
    for threads, wrong in ((1, start), (8, structs.replace(start, strands=4))):
        with pytest.raises(Violation, match=r"was started in \d strands, with 3 lanes and \d threads"):
            told(threads, wrong)


def test_a_peer_offers_the_threads_of_its_identity() -> None:
    peer = Peer(Identity(PeerId("anna"), 0, "h", 1, 0, threads=5), PeerLimits())
    assert peer._collectives.threads == 5


@pytest.mark.parametrize("number", [0, THREADS_MAX + 1, -1])
def test_absurd_numbers_do_not_pass_the_wire(number: int) -> None:
    join = Join(Identity(PeerId("anna"), 0, "h", 1, 0, threads=number))
    start = Start(0, 9, 4, (0,), 64, strands=number)
    for decode, message in ((decode_to_master, join), (decode_to_peer, start)):
        with pytest.raises(WireError):
            decode(msgspec.msgpack.encode(msgspec.msgpack.decode(encode(message))))


# ── the setting ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_by_default_a_quarter_of_the_cores() -> None:
    assert [default_threads(cores, 1) for cores in (1, 2, 4, 7, 8, 16, 32, 256)] == [1, 1, 1, 1, 2, 4, 8, 8]
    assert THREADS_DEFAULT_MAX == 8
    assert [default_threads(64, peers) for peers in (2, 8, 64)] == [8, 2, 1], "peers of one machine share its cores"


def resolve(**places: object) -> PeerConfig:
    return PeerConfig.resolve("127.0.0.1:1", 0, 0, Places(**places), {})  # type: ignore[arg-type]


def test_what_is_passed_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pccl.threads.usable_cores", lambda: 32)
    assert resolve().threads == 8
    assert resolve(party="lab", party_size=4).threads == 2
    monkeypatch.setenv("PCCL_LANE_THREADS", "3")
    assert resolve().threads == 3
    assert resolve(lane_threads=16).threads == 16


@pytest.mark.parametrize("given", ["17", "many", "-1"])
def test_a_bad_number_is_named(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("PCCL_LANE_THREADS", given)
    with pytest.raises(UsageError, match=r"lane_threads \(PCCL_LANE_THREADS\) must be an integer from 0 to 16"):
        resolve()
