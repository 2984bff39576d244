"""Lines that strangers can make a master write: a few for each address, with the number of those that were left out."""

import asyncio
import errno
import logging
import socket

from pccl import MasterNode
from pccl.core.effects.both import Note
from pccl.core.effects.master import Closed, Received
from pccl.core.fields import Identity
from pccl.core.limits import MasterLimits
from pccl.core.master.master import Master
from pccl.core.master.ration import ADDRESSES_MAX, LINES_MAX, WINDOW_S, Ration
from pccl.core.messages.to_master import Join
from pccl.net import listening, sockets
from pccl.net.listening import Listener
from pccl.wire.codec import encode
from pccl.wire.framing import Purpose, frame, preamble
from tests.e2e.test_api import wait_until
from tests.patience import HANG_S
from tests.unit.scripted import run, until


def join(number):
    return Join(Identity(f"{number:032x}", 0, "", 1234, 0))


def test_a_thousand_that_come_and_go_are_a_few_lines(caplog):
    caplog.set_level(logging.INFO, logger="pccl")
    with MasterNode("127.0.0.1:0") as master:
        with socket.create_connection(("127.0.0.1", master.port), timeout=HANG_S) as member:
            member.sendall(preamble(Purpose.CONTROL) + frame(encode(join(1))))
            wait_until(lambda: "joined" in caplog.text)
            for number in range(2, 202):
                with socket.create_connection(("127.0.0.1", master.port), timeout=HANG_S) as sock:
                    sock.sendall(preamble(Purpose.CONTROL) + frame(encode(join(number))))
                    sock.recv(8)
            wait_until(lambda: "candidate" in caplog.text)
        wait_until(lambda: "epoch 2" in caplog.text)
    assert 1 <= caplog.text.count("candidate 0000") <= LINES_MAX


def test_those_that_were_left_out_are_counted():
    master = Master("run", MasterLimits())
    master.handle(Received(1, join(1), "10.0.0.1"), 0.0)
    told = []
    for number in range(2, 52):
        at = 1.0 if number < 51 else 1.0 + WINDOW_S
        master.handle(Received(number, join(number), "10.0.0.66"), at)
        told += [each for each in master.handle(Closed(number, "gone"), at) if isinstance(each, Note)]
    assert len(told) == LINES_MAX + 1
    assert f"there were {49 - LINES_MAX} more of 10.0.0.66" in told[-1].reason


def test_the_addresses_are_bounded():
    ration = Ration()
    for number in range(2 * ADDRESSES_MAX):
        assert ration.draw(str(number), 0.0) == 0
    assert len(ration._windows) == ADDRESSES_MAX


def test_descriptors_that_have_run_out_are_told_once_in_a_while(caplog, monkeypatch):
    """It was five lines a second."""
    monkeypatch.setattr(listening, "_ACCEPT_PAUSE_S", 0.001)
    tries = []

    def accept(listener, dead_s):
        tries.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(sockets, "accept", accept)

    async def story():
        listener = Listener(lambda sock, host: None, 60.0)
        listener.open("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        await until(lambda: len(tries) > 20)
        writer.close()
        listener.close()

    run(story())
    assert caplog.text.count("no connection can be accepted") == 1
