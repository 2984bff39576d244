"""The limit on what a peer sends: what each lane that is in use gets of it."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pccl.net.pacing import PARCELS_SHARE, Pacing
from pccl.net.sockets import SO_MAX_PACING_RATE

MBPS = 80.0
BYTES_S = 10_000_000
UNLIMITED = (1 << 64) - 1


@pytest.fixture
def lanes() -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.socket()) for _ in range(4)]


def rate(sock: socket.socket) -> int:
    """Bytes per second, as the kernel has it."""
    (found,) = struct.unpack("@Q", sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8))
    return int(found)


def test_lanes_in_use_share_what_parcels_leave(lanes: list[socket.socket]) -> None:
    pacing = Pacing(MBPS)
    pacing.lend({(1, 0): lanes[0], (1, 1): lanes[1]})
    assert [rate(sock) for sock in lanes[:2]] == [BYTES_S * (1 - PARCELS_SHARE) / 2] * 2
    pacing.give_back([(1, 0)])
    assert rate(lanes[1]) == BYTES_S * (1 - PARCELS_SHARE)


def test_lanes_of_parcels_share_an_eighth_as_long_as_they_stand(lanes: list[socket.socket]) -> None:
    pacing = Pacing(MBPS)
    pacing.carry_parcels((1, 3), lanes[0])
    assert rate(lanes[0]) == BYTES_S / 8
    pacing.carry_parcels((2, 3), lanes[1])
    pacing.lend({(1, 0): lanes[2]})
    assert [rate(sock) for sock in lanes[:3]] == [BYTES_S / 16, BYTES_S / 16, BYTES_S * 7 / 8]
    lanes[0].close()
    pacing.carry_parcels((3, 3), lanes[3])
    assert [rate(lanes[1]), rate(lanes[3])] == [BYTES_S / 16] * 2, "one has gone"


def test_without_a_limit_nothing_is_paced(lanes: list[socket.socket]) -> None:
    pacing = Pacing(0.0)
    pacing.lend({(1, 0): lanes[0]})
    pacing.carry_parcels((1, 3), lanes[1])
    assert {rate(sock) for sock in lanes} == {UNLIMITED}
