"""A secured master in this process, and a tap on the way to it."""

import contextlib
import socket
import threading

import pytest

from pccl import MasterNode
from tests.patience import HANG_S
from tests.security.attacker import Run
from tests.security.own_ca import OwnCA

OPEN, SECURED = "without a secret", "with a secret"


@pytest.fixture(params=[OPEN, SECURED])
def kind(request):
    return request.param


@pytest.fixture
def start(kind, tmp_path):
    """Starts a run of this kind."""
    with contextlib.ExitStack() as stack:
        yield lambda **limits: Run(stack, tmp_path / "secret" if kind == SECURED else "", **limits)


@pytest.fixture(scope="session")
def ours(tmp_path_factory):
    """A CA of our own."""
    return OwnCA(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """Another one."""
    return OwnCA(tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def state_home(tmp_path, monkeypatch):
    """Where a master without a secret has its audit log."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def certified(ours, state_home):
    """A master with a certificate."""
    with MasterNode("127.0.0.1:0", **ours.master()) as master:
        yield master


@pytest.fixture
def secret(tmp_path):
    return tmp_path / "master.secret"


@pytest.fixture
def secured(secret):
    with MasterNode("127.0.0.1:0", secret=secret) as master:
        yield master


class Tap:
    """Passes bytes on between dialler and master, and keeps them all."""

    def __init__(self, port):
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.up, self.down = bytearray(), bytearray()
        self.streams = []
        """The same, each direction of each connection by itself."""
        self._passes = threading.Event()
        self._passes.set()
        self._pairs = []
        self._pumps = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._passes.is_set():
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except ConnectionRefusedError:
                near.close()
                continue
            self._pairs.append((near, far))
            for source, sink, kept in ((near, far, self.up), (far, near, self.down)):
                self._pumps.append(threading.Thread(target=self._pump, args=(source, sink, kept), daemon=True))
                self._pumps[-1].start()

    def _pump(self, source, sink, kept):
        stream = bytearray()
        self.streams.append(stream)
        try:
            while data := source.recv(65536):
                kept += data
                stream += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def shut(self):
        """End what stands, and let no other through."""
        self._passes.clear()
        for sock in (each for pair in self._pairs for each in pair):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def open(self):
        """Let others through again."""
        self._passes.set()

    def close(self):
        self.shut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # Else its thread would wait on for another one.
        self._listener.close()
        for pump in list(self._pumps):
            pump.join(HANG_S)
        for sock in (each for pair in list(self._pairs) for each in pair):
            sock.close()


@pytest.fixture
def tap(secured):
    made = Tap(secured.port)
    yield made
    made.close()
