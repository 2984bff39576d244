"""A token holder meets a restarted master before the honest peers do, and reports a run that never was."""

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest

from pccl import Kicked, MasterNode
from pccl.core.fields import Identity
from pccl.core.master.recovery.gathering import Gathering
from pccl.core.master.tickets import Tickets
from pccl.core.messages.report import ReportPart
from pccl.core.messages.to_master import Resume
from pccl.core.messages.to_peer import Kick, Resumed
from pccl.security import control, identity, tokens
from pccl.security.secret import load
from pccl.security.tokens import Claim, Role
from pccl.wire.codec import decode_to_peer, encode
from pccl.wire.framing import TO_PEER_FRAME_MAX, FrameReader, frame
from tests.patience import HANG_S
from tests.security.conftest import Tap
from tests.security.test_control import knocked, sealed_connection
from tests.security.test_secured_run import run_of, summed

SECRET = "5" * 32
ME = identity._id_of(SECRET)


def invented(run, **facts):
    """The run of the others, which goes on with the thief alone as of an epoch that none of them has heard of."""
    me = Identity(ME, 0, "127.0.0.1", 1, 0, secret=SECRET)
    resume = Resume(me=me, run=run, epoch=2**61, global_size=1, last_link=0, **facts)
    return frame(encode(resume)) + frame(encode(ReportPart(ring=(ME,), last=True)))


@contextlib.contextmanager
def thief(port, token, report):
    """What the master answers it, while its connection stands."""
    with sealed_connection(port, knocked(token)) as sock:
        sock.sendall(control.proof(token.key, token.pin) + report)
        yield answer_on(sock)


def answer_on(sock):
    reader = FrameReader(TO_PEER_FRAME_MAX)
    while data := sock.recv(65536):
        for message in map(decode_to_peer, reader.feed(data)):
            if isinstance(message, Kick | Resumed):
                return message
    raise AssertionError("the connection ended without an answer")


class Gate(Tap):
    """The way of the honest peers to their master: closed while the thief is there."""

    def __init__(self, port):
        self.open = threading.Event()
        self.open.set()
        self._ends, self._threads = [], []
        super().__init__(port)

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.open.wait(HANG_S)
                try:
                    far = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for source, sink, kept in ((near, far, self.up), (far, near, self.down)):
                    self._threads.append(threading.Thread(target=self._pump, args=(source, sink, kept), daemon=True))
                    self._threads[-1].start()

    def close(self):
        self.open.set()
        for sock in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(HANG_S)
        for sock in (self._listener, *self._ends):
            sock.close()


@pytest.fixture
def gate(secured):
    made = Gate(secured.port)
    yield made
    made.close()


@pytest.fixture
def guest(secured, secret):
    return tokens.mint(load(secret), Claim(Role.PEER, b"guest!"), tokens.parse(secured.token).pin)


def honest(gate, secured):
    """What `run_of` needs of a master: where it is, and its token."""
    return SimpleNamespace(port=gate.address.rpartition(":")[2], token=secured.token)


def test_an_invented_run_is_not_believed(secured, secret, guest, gate):
    with run_of(honest(gate, secured), "native", "native") as peers:
        run = secured._core.lead.run
        gate.open.clear()
        secured.interrupt()
        with MasterNode(f"127.0.0.1:{secured.port}", secret=secret):
            with thief(secured.port, guest, invented(run)) as answer:
                assert isinstance(answer, Kick)
                assert "it brings no ticket of a master" in answer.reason
            gate.open.set()
            for tensor in summed(peers):
                assert (tensor == 3).all()


def test_a_master_that_believed_it_would_lose_its_run(secured, secret, guest, gate, monkeypatch):
    """The same attack, against a master that looks at no ticket: so it is one."""
    monkeypatch.setattr(Tickets, "objection", lambda self, resume: "")
    monkeypatch.setattr(Tickets, "names", lambda self, ticket, ring: True)
    monkeypatch.setattr(Gathering, "outdone_by", lambda self, resume, now: False)
    with run_of(honest(gate, secured), "native", "native") as peers:
        run = secured._core.lead.run
        gate.open.clear()
        secured.interrupt()
        again = MasterNode(f"127.0.0.1:{secured.port}", secret=secret)
        with again, thief(secured.port, guest, invented(run)) as answer:
            assert isinstance(answer, Resumed)
            gate.open.set()
            with pytest.raises(Kicked, match="the run has gone on without"):
                summed(peers)
