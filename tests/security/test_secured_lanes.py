"""Lanes under TLS, by the native part and by the standard library: one wire, and the face of a socket."""

import contextlib
import hashlib
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
from itertools import product

import pytest

from pccl.dataplane.native import NativeTls
from pccl.errors import UsageError
from pccl.security import lanes
from pccl.security.lanes import openssl_files
from tests.patience import HANG_S
from tests.security.ends import CERTIFICATES, KINDS, close_all, connection, receive, secured, send_all, shake, tls, wait

PAIRS = list(product(KINDS, repeat=2))
pairs = pytest.mark.parametrize("kinds", PAIRS, ids="-".join)


@pytest.fixture(autouse=True)
def closed():
    yield
    close_all()


@pairs
def test_bytes_arrive_whole_in_both_directions(kinds):
    ends = secured(kinds, buffer_bytes=1 << 16)
    for sender, receiver in (ends, ends[::-1]):
        for count in (1, 40, 16384, 16385, 3_000_000):
            data = secrets.token_bytes(count)
            sending = send_all(sender, data)
            assert receive(receiver, count) == data
            sending.join(HANG_S)
            assert not sender.torn


@pairs
def test_the_dialler_sees_the_certificate_and_the_listener_none(kinds):
    dialled, accepted = secured(kinds)
    assert hashlib.sha256(dialled.certificate()).digest() == CERTIFICATES["bert"].pin
    assert accepted.certificate() == b""


@pairs
def test_what_was_peeked_at_is_still_there(kinds):
    dialled, accepted = secured(kinds)
    with pytest.raises(BlockingIOError):
        accepted.recv(1, socket.MSG_PEEK)
    dialled.send(b"first")
    wait(accepted)
    assert accepted.recv(1, socket.MSG_PEEK) == accepted.recv(1, socket.MSG_PEEK) != b""
    assert accepted.recv(100) == b"first"
    with pytest.raises(BlockingIOError):
        accepted.recv(100)


@pairs
def test_an_end_that_closes_is_an_end_of_file(kinds):
    dialled, accepted = secured(kinds)
    dialled.send(b"last")
    dialled.close()
    assert receive(accepted, 4) == b"last"
    wait(accepted)
    assert accepted.recv(1, socket.MSG_PEEK) == b""
    assert accepted.recv(1) == b""
    assert accepted.recv(1) == b""


@pairs
def test_a_shutdown_from_another_thread_ends_both(kinds):
    dialled, accepted = secured(kinds)
    threading.Thread(target=dialled.shutdown, args=(socket.SHUT_RDWR,)).start()
    wait(accepted)
    wait(dialled)
    assert accepted.recv(1) == b""
    assert dialled.recv(1) == b""


@pairs
def test_a_record_that_the_kernel_did_not_take_is_known_and_goes_on(kinds):
    dialled, accepted = secured(kinds, buffer_bytes=1 << 12)
    data, sent = secrets.token_bytes(1 << 20), 0
    with contextlib.suppress(BlockingIOError):
        while sent < len(data):
            sent += dialled.send(memoryview(data)[sent:])
    assert dialled.torn
    assert dialled.fileno() >= 0
    sending = send_all(dialled, memoryview(data)[sent:])
    assert receive(accepted, len(data)) == data
    sending.join(HANG_S)
    assert not dialled.torn


@pairs
def test_a_record_that_is_not_of_the_other_end_breaks_the_lane(kinds):
    """Damaged, or made up by a stranger on the way."""
    socks = connection()
    dialled, accepted = secured(kinds, pair=socks)
    dialled.send(b"hello")
    assert receive(accepted, 5) == b"hello"
    socks[0].send(b"\x17\x03\x03\x00\x20" + bytes(32))
    wait(accepted)
    for _ in range(2):
        with pytest.raises(ConnectionError, match=r"(?i)TLS: .*bad record mac"):
            accepted.recv(100)


@pairs
def test_the_clear_bytes_come_before_the_first_record(kinds):
    """The knock and the preamble: read by the other end itself, and never taken for a record."""
    socks = connection()
    dialled = tls(kinds[0]).wrap(socks[0], True, b"KNOCK")
    accepted = tls(kinds[1]).wrap(socks[1], False, b"HEAD")
    dialled.hello()
    wait(socks[1])
    assert socks[1].recv(5) == b"KNOCK"
    accepted.handshake()
    wait(socks[0])
    assert socks[0].recv(4) == b"HEAD"
    shake(dialled, accepted)


@pytest.mark.parametrize("kind", KINDS)
def test_it_talks_to_plain_ssl_sockets_and_nothing_older_than_tls_1_3(kind):
    """What is on the wire is TLS as anybody writes it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for version, works in ((ssl.TLSVersion.TLSv1_3, True), (ssl.TLSVersion.TLSv1_2, False)):
        context.minimum_version = context.maximum_version = version
        dialled, accepted = connection()
        dialled.setblocking(True)
        with context.wrap_socket(dialled, do_handshake_on_connect=False) as other:
            listener = tls(kind).wrap(accepted, False, b"")
            thread = threading.Thread(target=_shake_or_fail, args=(other,))
            thread.start()
            if works:
                finish(listener)
                thread.join(HANG_S)
                assert other.version() == "TLSv1.3"
                other.sendall(b"hello")
                assert receive(listener, 5) == b"hello"
            else:
                with pytest.raises(ConnectionError, match=r"(?i)TLS: .*(version|protocol)"):
                    finish(listener)
            accepted.close()
            thread.join(HANG_S)


def finish(end):
    while end.handshake():
        wait(end)


def _shake_or_fail(other):
    with contextlib.suppress(OSError):  # what the listener says of it is looked at
        other.do_handshake()


@pytest.mark.parametrize("listener", KINDS)
def test_the_key_is_replaced_in_the_middle_of_a_transfer(listener):
    dialled, accepted = secured(("native", listener), rekey_bytes=1 << 20)
    data = secrets.token_bytes(9 << 20)
    sending = send_all(dialled, data)
    assert receive(accepted, len(data)) == data
    sending.join(HANG_S)
    assert dialled.channel.rekeyed == 8


def test_short_records_count_as_long_ones():
    """A key is good for so many records, whatever is in them: parcels of a few bytes wear it out, too."""
    dialled, accepted = secured(("native", "native"), rekey_bytes=16384 * 100)
    for _ in range(1000):
        dialled.send(b"!")
    assert receive(accepted, 1000) == b"!" * 1000
    assert dialled.channel.rekeyed == 9


def test_a_key_that_cannot_be_replaced_ends_its_lane_in_time(monkeypatch):
    """The reference plane's: all that its bound allows goes through and nothing beyond, in records of any length."""
    monkeypatch.setattr(lanes, "RECORDS_MAX", 10)
    for piece in (b"!", bytes(lanes.RECORD_BYTES)):
        sender, receiver = secured(("reference", "reference"), buffer_bytes=1 << 20)
        for _ in range(10):
            assert sender.send(piece) == len(piece)
        with pytest.raises(ConnectionError, match="as many records as it may; link again"):
            sender.send(piece)
        assert receive(receiver, 10 * len(piece)) == 10 * piece
    sender, _ = secured(("reference", "reference"), buffer_bytes=1 << 20)
    sender.send(bytes(8 * lanes.RECORD_BYTES)[: lanes.SEALED_BYTES])
    sender.send(bytes(lanes.SEALED_BYTES))
    with pytest.raises(ConnectionError, match="link again"):
        sender.send(bytes(lanes.SEALED_BYTES))


def test_one_openssl_in_the_process():
    secured(("native", "reference"))
    with open("/proc/self/maps") as maps:
        loaded = {line.split()[-1] for line in maps if "libssl" in line}
    assert len(loaded) == 1


def test_no_openssl_is_an_error_in_words():
    """In a process of its own: a library that is loaded stays."""
    code = (
        "from pccl.api.lane_security import make_lane_security\n"
        "try: make_lane_security('native', lane_tls=True)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    for library, why in (("/nowhere/libssl.so", "it cannot be loaded"), ("libc.so.6", "it has no TLS_method")):
        environment = {**os.environ, "PCCL_LIBSSL": library}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("UsageError TLS on lanes needs OpenSSL 1.1.1")
        assert f"{library}: {why}" in done.stdout
        assert "data_plane='reference'" in done.stdout


def test_a_key_of_another_certificate_is_refused():
    with pytest.raises(UsageError, match="mismatch"):
        NativeTls(CERTIFICATES["anna"].der, CERTIFICATES["bert"].key_der, openssl_files())


def send_much(end):
    for _ in range(1000):
        end.send(b"!" * 10_000)


@pairs
def test_a_closed_end_does_not_end_the_process(kinds):
    """Python ignores SIGPIPE, but a trainer may have changed that."""
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        dialled, accepted = secured(("native", kinds[1]))
        accepted.close()
        with pytest.raises(ConnectionError, match="send: "):
            send_much(dialled)
    finally:
        signal.signal(signal.SIGPIPE, before)
