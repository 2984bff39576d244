"""Mistakes of the master itself: one message at which it fails costs its sender, and nothing ends the process."""

import socket
from contextlib import suppress
from unittest.mock import patch

import pytest

from pccl import MasterNode
from pccl.core.fields import Identity
from pccl.core.messages.to_master import Fetch, Join
from pccl.core.messages.to_peer import Kick, Welcome
from pccl.wire.codec import decode_to_peer, encode
from pccl.wire.framing import PREAMBLE_BYTES, TO_PEER_FRAME_MAX, FrameReader, Purpose, frame, preamble
from tests.e2e.harness import PATIENCE_S, all_do, join


@pytest.fixture
def node():
    with MasterNode("127.0.0.1:0") as node:
        yield node


def visit(port, *messages):
    """Say this to the master, and read until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
        sock.sendall(preamble(Purpose.CONTROL) + b"".join(frame(encode(message)) for message in messages))
        data = b""
        with suppress(ConnectionResetError):  # A master that starts over reads nothing more.
            while portion := sock.recv(4096):
                data += portion
    return [decode_to_peer(body) for body in FrameReader(TO_PEER_FRAME_MAX).feed(data[PREAMBLE_BYTES:])]


def test_a_message_at_which_the_master_fails_costs_its_sender(node, start_peers, caplog):
    peers = join([], start_peers(2, f"127.0.0.1:{node.port}"))
    core = node._core
    with patch.object(core.visits, "fetch", side_effect=ZeroDivisionError("a mistake")):
        heard = visit(node.port, Join(Identity("stranger", 0, "", 1, 0, visits=True)), Fetch())
    assert [type(message) for message in heard] == [Welcome, Kick]
    assert "the master failed" in heard[1].reason
    assert "ZeroDivisionError" in caplog.text
    assert node._core is core
    all_do(peers, "collective")


@pytest.mark.parametrize(("name", "then"), [("_dispatch", "remove"), ("_progress", "explain"), ("_receive", "explain")])
def test_a_master_that_cannot_trust_itself_learns_everything_from_the_peers(node, start_peers, caplog, name, then):
    """It fails at a message and at what is done about that, or at what concerns all."""
    peers = join([], start_peers(2, f"127.0.0.1:{node.port}"))
    core = node._core
    with (
        patch.object(core, name, side_effect=ZeroDivisionError("a mistake")),
        patch.object(core, then, side_effect=KeyError("and what follows from it")),
    ):
        visit(node.port, Join(Identity("stranger", 0, "", 1, 0, visits=True)), Fetch())
    assert node._core is not core
    assert node.serving
    assert "ZeroDivisionError" in caplog.text
    assert {answer["size"] for answer in all_do(peers, "update")} == {2}
    all_do(peers, "collective")
