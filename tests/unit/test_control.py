"""The control connection: whoever dials a master is told of each end, however soon; what comes at once is read."""

import asyncio
import socket
import struct

import pytest

from pccl.config import Address
from pccl.core.messages.observers import AskStatus
from pccl.errors import UsageError
from pccl.net import observing
from pccl.net.connection import MasterEnd, MasterSide
from pccl.net.control import Addresses, Control
from pccl.net.peer_end import PeerEnd
from pccl.wire.framing import TO_MASTER_FRAME_MAX, Purpose, frame, preamble


class LateDialler:
    """Connects, and hands the socket out only when its other end is gone: a proxy does that in front of a port where
    nobody listens."""

    async def connect(self, host, port, timeout_s, order):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            dialled = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()
        dialled.setblocking(False)
        return dialled


@pytest.mark.parametrize("opening", ["open", "open_again"])
def test_an_end_that_comes_at_once_is_told(opening):
    async def dial():
        told = []
        control = Control(("master", 1), LateDialler(), lambda body: None, told.append)
        with pytest.raises(OSError):  # noqa: PT011 - which one is up to the kernel
            await getattr(control, opening)(5.0)
        assert told == []

    asyncio.run(dial())


class Transport:
    """Takes what is written."""

    def is_closing(self):
        return False

    def get_write_buffer_size(self):
        return 0

    def write(self, data):
        pass

    def abort(self):
        raise AssertionError("the master hung up")


def test_a_returning_peer_may_tell_all_at_once():
    """The ring of a run of hundreds, or the outcomes of its last collectives, take more than a stranger may send."""
    first, long = frame(b"resume"), frame(b"r" * TO_MASTER_FRAME_MAX)
    heard = []

    def hear(body):
        heard.append(body)
        return 0.0

    end = MasterEnd(MasterSide(hear, lambda cause: None))
    end.connection_made(Transport())
    end.data_received(preamble(Purpose.CONTROL) + first + long)
    assert [len(body) for body in heard] == [6, TO_MASTER_FRAME_MAX]


def test_the_address_that_last_answered_is_tried_first_and_a_stranger_last():
    one, two, three = ((socket.AF_INET, (f"10.0.0.{last}", 1)) for last in (1, 2, 3))
    addresses = Addresses()
    assert addresses.order([one, two, three]) == [one, two, three]
    addresses.passed_over(one[1])
    assert addresses.order([one, two, three]) == [two, three, one]
    assert (addresses.strange, addresses.left) == (1, 2)
    addresses.answered(three[1])
    assert addresses.order([one, two, three]) == [three, one, two], "what was a stranger may be our master by now"
    addresses.passed_over(three[1])
    assert addresses.order([two, three]) == [two, three], "its machine hangs: it takes connections and says nothing"


def refuse(host):
    """A guard that cannot be made, as for files that are of no use."""
    raise UsageError(f"no way in to {host}")


class KeptDialler(LateDialler):
    """Remembers what it has handed out."""

    async def connect(self, *arguments):
        self.handed_out = await super().connect(*arguments)
        return self.handed_out


def test_a_guard_that_cannot_be_made_leaves_no_socket_behind():
    async def dial():
        dialler = KeptDialler()
        control = Control(("master", 1), dialler, lambda body: None, lambda cause: None, refuse)
        with pytest.raises(UsageError):
            await control.open(5.0)
        assert dialler.handed_out.fileno() == -1

    asyncio.run(dial())


def test_nor_does_one_for_a_question(monkeypatch):
    async def dial():
        dialler = KeptDialler()
        monkeypatch.setattr(dialler, "connect", lambda *arguments: KeptDialler.connect(dialler, *arguments, None))
        monkeypatch.setattr(observing, "Dialler", lambda timeout_s: dialler)
        with pytest.raises(UsageError):
            await observing.ask(Address("127.0.0.1", 1), AskStatus(), 5.0, refuse)
        assert dialler.handed_out.fileno() == -1

    asyncio.run(dial())


def test_a_connection_that_we_gave_up_says_why():
    """Not that the other end closed it."""

    async def dial():
        end = PeerEnd(lambda body: None, lambda cause: None)
        end.connection_made(Silent())
        end.fail("no answer within 2 s")
        end.connection_lost(None)
        with pytest.raises(ConnectionError, match="no answer within 2 s"):
            await end.greeted

    asyncio.run(dial())


class Silent(Transport):
    def abort(self):
        pass
