"""What observers are told of how many lanes links have, and why."""

import msgspec
from msgspec import structs

from pccl.core.fields import Identity
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.messages.to_master import Join, LinkDown
from pccl.core.rules.lanes import LOOKS
from pccl.core.status import Status
from pccl.views import status as view
from pccl.views.top import screen
from pccl.wire.codec import decode_to_observer, encode
from tests.unit.wide import EXHAUSTED, LEAST, PEERS, WIDE, After, Group, all_links, three

WHY = "0.098 % lost, 13.4 Mbit/s a lane, round trip 40 of 40 ms"


def test_the_number_is_told_with_its_reason() -> None:
    group = three()
    assert group.lanes_told() == [(0, LEAST, "as a run begins")]
    group.run()
    group.stand()
    assert group.lanes_told() == [(0, WIDE, f"{LEAST} → {WIDE}: {WHY}")]
    for _ in range(LOOKS):
        group.run()
        group.stand()
    assert group.lanes_told() == [(0, LEAST, f"{WIDE} → {LEAST}: with {WIDE} it was 1.00 times as fast")]


def test_one_that_could_not_be_made_is_told() -> None:
    group = three()
    group.run()
    group.send(1, LinkDown(group.a_link(), EXHAUSTED))
    group.stand()
    group.stand()
    assert group.lanes_told() == [(0, LEAST, f"{WIDE} → {LEAST}: a link of more could not be made")]


def test_one_that_was_asked_for_or_taken_over_is_told() -> None:
    assert three(LEAST).lanes_told() == [(0, LEAST, "as its peers ask")]
    assert After(all_links(WIDE)).lanes_told() == [(0, WIDE, "as under an earlier master")]
    assert After(all_links(WIDE), asked=WIDE).lanes_told() == [(0, WIDE, "as its peers ask")]


def test_who_has_no_neighbour_has_no_lanes() -> None:
    master = Master("run", MasterLimits())
    group = Group(master)
    group.send(1, Join(Identity(PEERS[1], 0, "h", 1, 0)))
    assert group.lanes_told() == []


def test_it_is_a_line_for_people() -> None:
    group = three()
    group.run()
    group.stand()
    line = f"lanes: {WIDE} a link ({LEAST} → {WIDE}: {WHY})"
    assert line in view.lines(group.status())
    assert line in [each.text for each in screen("h:1", group.status(), [], 40)]
    two = structs.replace(group.status(), lanes=group.status().lanes * 2)
    assert line.replace("lanes", "lanes of group 0", 1) in view.lines(two)


def test_a_master_of_an_earlier_release_tells_nothing_of_it() -> None:
    told = msgspec.msgpack.decode(encode(three().status()))
    del told["lanes"]
    status = decode_to_observer(msgspec.msgpack.encode(told))
    assert isinstance(status, Status)
    assert status.lanes == ()
    assert not any(line.startswith("lanes") for line in view.lines(status))
