"""A secured master in this process, and a tap on the way to it."""

import socket
import threading

import pytest

from pccl import MasterNode


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
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            for source, sink, kept in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=self._pump, args=(source, sink, kept), daemon=True).start()

    def _pump(self, source, sink, kept):
        try:
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self):
        self._listener.close()


@pytest.fixture
def tap(secured):
    made = Tap(secured.port)
    yield made
    made.close()
