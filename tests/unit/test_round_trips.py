"""Near or far: what the kernel measured on a link decides over how many lanes a large tensor goes."""

import sys

import pytest

from pccl.core.effects.master import Received
from pccl.core.effects.peer_events import LaneDialled
from pccl.core.fields import CollectiveSpec
from pccl.core.limits import MasterLimits
from pccl.core.messages.both import Pong
from pccl.core.messages.to_master import Initiate, LinkUp
from pccl.core.messages.to_peer import Start
from pccl.core.rules.schedule import NEAR_S
from pccl.types import DataType, ReduceOp
from tests.unit.test_broadcast_root import CONNECTIONS, messages, three_joined
from tests.unit.test_lanes import two_peers

SPEC = CollectiveSpec(1 << 26, DataType.FLOAT, ReduceOp.SUM)
NEAR_US, FAR_US = 30, int(16e6 * NEAR_S)
ALL = tuple(range(MasterLimits().default_lanes))


def lanes_used(round_trips_us):
    """By a large tensor in a ring of three whose links were measured so, by the end that dials them, if at all."""
    master, ends = three_joined()
    measured = dict(zip(sorted({link.number for _, link in ends}), round_trips_us, strict=True))
    for connection, link in ends:
        master.handle(Received(connection, LinkUp(link.number, measured[link.number] if link.dial else 0)), 0.0)
    for connection in CONNECTIONS:  # the processes themselves take their time to answer
        master.handle(Received(connection, Pong()), 2 * NEAR_S)
    effects = [
        effect
        for connection in CONNECTIONS
        for effect in master.handle(Received(connection, Initiate(0, SPEC)), 2 * NEAR_S)
    ]
    return messages(effects, Start)[0][1].lanes


def test_near_peers_use_one_lane_even_if_their_processes_answer_late():
    assert lanes_used((NEAR_US, NEAR_US, NEAR_US)) == (0,)


def test_one_long_link_decides():
    assert lanes_used((NEAR_US, FAR_US, NEAR_US)) == ALL


def test_what_was_not_measured_is_taken_for_as_long_as_an_answer_takes():
    assert lanes_used((NEAR_US, 0, NEAR_US)) == ALL


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_the_kernel_tells():
    async def story(peers):
        await peers.stand()
        (dialled,) = [event for event in peers.dialler_core.events if isinstance(event, LaneDialled)]
        assert 0 < dialled.round_trip_us < 1e6

    two_peers(story)
