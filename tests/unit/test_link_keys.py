"""Keys of links and pins of peers: from the master to both ends, and no more of them than there are links."""

import pytest

from pccl.core.effects.master import Received, Send
from pccl.core.effects.peer_effects import Dial, ExpectLanes
from pccl.core.effects.peer_events import LaneClosed
from pccl.core.fields import Identity, LinkSpec
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.core.master.master import Master
from pccl.core.master.tickets import Keys
from pccl.core.messages.to_master import Join, VoteTopology
from pccl.core.messages.to_peer import Wire
from pccl.core.peer.links import Links
from pccl.core.peer.outbox import Outbox
from pccl.wire.codec import decode_to_master, decode_to_peer, encode
from pccl.wire.framing import WireError

PINS = {"anna": b"a" * 32, "bert": b"b" * 32}


def wires(master, *joins):
    effects = [master.handle(Received(number, join, "h"), 0.0) for number, join in enumerate(joins, start=1)]
    effects.append(master.handle(Received(1, VoteTopology()), 0.0))
    sent = [effect for each in effects for effect in each if isinstance(effect, Send)]
    return {send.connections[0]: send.message for send in sent if isinstance(send.message, Wire)}


def test_both_ends_of_a_link_get_one_key_and_the_pin_of_the_other():
    asked = []

    def key(number):
        asked.append(number)
        return bytes([number]) * 32

    master = Master("run", MasterLimits(), keys=Keys(link=key))
    told = wires(master, *(Join(Identity(peer, 0, "", 1, 1, pin=pin)) for peer, pin in PINS.items()))
    (to_anna,), (to_bert,) = told[1].links, told[2].links
    assert to_anna.key == to_bert.key == bytes([to_anna.number]) * 32
    assert (to_anna.pin, to_bert.pin) == (PINS["bert"], PINS["anna"])
    assert asked == [to_anna.number], "a key is asked for once"


def test_without_security_there_are_none():
    told = wires(Master("run", MasterLimits()), *(Join(Identity(peer, 0, "", 1, 1)) for peer in PINS))
    assert [(link.pin, link.key) for wire in told.values() for link in wire.links] == [(b"", b"")] * 2


@pytest.mark.parametrize("length", [1, 16, 31, 33])
def test_a_part_of_a_pin_or_key_is_none(length):
    whole = LinkSpec(1, "anna", True, "h", 1, 1, pin=bytes(32), key=bytes(32))
    assert decode_to_peer(encode(Wire((whole,)))) == Wire((whole,))
    cut = bytes(range(32)) + b"!"
    messages = [
        (decode_to_master, encode(Join(Identity("anna", 0, "h", 1, 1, pin=cut[:32])))),
        (decode_to_peer, encode(Wire((LinkSpec(1, "anna", True, "h", 1, 1, pin=cut[:32]),)))),
        (decode_to_peer, encode(Wire((LinkSpec(1, "anna", True, "h", 1, 1, key=cut[:32]),)))),
    ]
    for decode, body in messages:
        decode(body)
        with pytest.raises(WireError):
            decode(body.replace(b"\xc4\x20" + cut[:32], b"\xc4" + bytes([length]) + cut[:length]))


def links(*specs):
    outbox = Outbox()
    ends = Links("anna", PeerLimits(), outbox)
    ends.wire(specs)
    return ends, outbox


def test_the_end_that_dials_is_given_pin_and_key():
    _, outbox = links(LinkSpec(1, "bert", True, "h", 1, 1, PINS["bert"], b"k" * 32))
    dials = outbox.take()
    assert [(dial.pin, dial.key) for dial in dials if isinstance(dial, Dial)] == [(PINS["bert"], b"k" * 32)] * 2
    assert not any(isinstance(effect, ExpectLanes) for effect in dials)


def test_the_end_that_is_dialled_expects_the_key_until_the_link_is_gone():
    ends, outbox = links(LinkSpec(1, "bert", False, "h", 1, 1, PINS["bert"], b"k" * 32))
    assert outbox.take() == [ExpectLanes(1, b"k" * 32)]
    ends.handle(LaneClosed(1, 0, "broke"), 0.0)
    assert ExpectLanes(1, b"") in outbox.take()


def test_without_a_key_nothing_is_expected():
    _, outbox = links(LinkSpec(1, "bert", False, "h", 1, 1))
    assert outbox.take() == []
