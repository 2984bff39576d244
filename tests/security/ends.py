"""Two ends of a connection under TLS in one process, each by the native part or by the standard library.

Owns what a test needs before it can begin; what must come of it is in the tests.
"""

import contextlib
import functools
import select
import socket
import threading
import time

from pccl.dataplane.native import NativeTls
from pccl.security.certificate import make
from pccl.security.lanes import StandardTls, openssl_files
from tests.native import rings
from tests.native.rings import Rig
from tests.patience import HANG_S

CERTIFICATES = {name: make(name.encode().ljust(32)) for name in ("anna", "bert")}
KINDS = ("native", "reference")
REKEY_BYTES = 1 << 40
"""Never, unless a test says otherwise."""


_made = []


def connection(buffer_bytes=0):
    """As in `rings`; closed with all others."""
    pair = rings.connection(buffer_bytes)
    _made.extend(pair)
    return pair


def close_all():
    """After a test."""
    while _made:
        _made.pop().close()


@functools.cache
def tls(kind, certificate=CERTIFICATES["bert"], rekey_bytes=REKEY_BYTES):
    """What makes records, as the data plane of this name does."""
    if kind == "reference":
        return StandardTls(certificate)
    return NativeTls(certificate.der, certificate.key_der, openssl_files(), rekey_bytes)


def wait(*ends, timeout_s=HANG_S):
    assert select.select(ends, [], [], timeout_s)[0], "nothing came"


def shake(dialled, accepted):
    """Both go on until both are through. Raises what one of them does."""
    until = time.monotonic() + HANG_S
    while True:
        wants = dialled.handshake(), accepted.handshake()
        if wants == (0, 0):
            return
        assert time.monotonic() < until, f"the handshake does not end: {wants}"
        wait(*(end for end, want in zip((dialled, accepted), wants, strict=True) if want))


def secured(kinds, buffer_bytes=0, rekey_bytes=REKEY_BYTES, pair=None):
    """Two ends through the handshake; the first one has dialled."""
    socks = pair or connection(buffer_bytes)
    dialled, accepted = (
        tls(kind, rekey_bytes=rekey_bytes).wrap(sock, dials, b"")
        for kind, sock, dials in zip(kinds, socks, (True, False), strict=True)
    )
    shake(dialled, accepted)
    return dialled, accepted


def send_all(end, data):
    """In a thread, since the other end must read meanwhile."""

    def work():
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[end.send(rest) :]
            except BlockingIOError:
                select.select([], [end], [], HANG_S)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def receive(end, count):
    data = bytearray(count)
    got = 0
    while got < count:
        try:
            portion = end.recv_into(memoryview(data)[got:])
        except BlockingIOError:
            wait(end)
            continue
        assert portion, f"it ended after {got} of {count} bytes"
        got += portion
    return bytes(data)


class SecuredRig(Rig):
    """Peers in a ring under TLS, each by what its plane uses."""

    def __init__(self, kinds, lanes, buffer_bytes=0, rekey_bytes=REKEY_BYTES, tap=None):
        self._kinds, self._rekey_bytes, self._tap = kinds, rekey_bytes, tap
        super().__init__(len(kinds), lanes, buffer_bytes)

    def connect(self, link):
        kinds = self._kinds[link], self._kinds[(link + 1) % len(self._kinds)]
        pair = self._tap.connection() if self._tap else None
        return secured(kinds, self._buffer_bytes, self._rekey_bytes, pair)


class Wiretap:
    """Connections that go through a proxy, which records all that passes."""

    def __init__(self):
        self.recorded = bytearray()
        self.dialled = bytearray()
        """Of these, what the ends that dialled have sent."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = []

    def connection(self):
        with socket.create_server(("127.0.0.1", 0)) as target:
            dialled = socket.create_connection(self._listener.getsockname())
            near, _ = self._listener.accept()
            far = socket.create_connection(target.getsockname())
            accepted, _ = target.accept()
        self._tap(near, far)
        for end in (dialled, accepted):
            end.setblocking(False)
        _made.extend((dialled, accepted, near, far))
        return dialled, accepted

    def before(self, port):
        """A port in front of this one, for one connection."""

        def accept():
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            _made.extend((near, far))
            self._tap(near, far)

        self._threads.append(threading.Thread(target=accept, daemon=True))
        self._threads[-1].start()
        return self._listener.getsockname()[1]

    def _tap(self, near, far):
        for one, other, kept in ((near, far, self.dialled), (far, near, bytearray())):
            self._threads.append(threading.Thread(target=self._pass_on, args=(one, other, kept), daemon=True))
            self._threads[-1].start()

    def _pass_on(self, one, other, kept):
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.recorded += data
                kept += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self):
        self._listener.close()
        for thread in self._threads:
            thread.join(HANG_S)

    def shows(self, secret):
        """Whether 16 bytes in a row of this are among what passed."""
        windows = {secret[place : place + 16] for place in range(len(secret) - 15)}
        seen = bytes(self.recorded)
        return any(seen[place : place + 16] in windows for place in range(len(seen) - 15))
