"""Whatever else connects to our ports: garbage, silence, other versions, neighbours that cannot be dialled."""

import random
import socket
import struct
import threading
from collections import deque
from contextlib import suppress

import pytest

from pccl import Communicator, MasterLost, MasterNode, ProtocolError
from pccl.net import sockets
from pccl.net.bounds import STRANGERS_MAX, raise_descriptor_limit
from pccl.net.listening import HELLO_TIMEOUT_S, Strangers
from pccl.wire.framing import HEADER_BYTES, MAGIC, PREAMBLE_BYTES, VERSION, Purpose, frame, parse_refusal, preamble
from tests.e2e.harness import PATIENCE_S, all_do, behind_the_name, join
from tests.e2e.test_api import wait_until
from tests.patience import HANG_S

GARBAGE = (
    b"",
    b"P",
    MAGIC,
    b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    preamble(Purpose.CONTROL),
    preamble(Purpose.LANE),
    preamble(Purpose.CONTROL) + struct.pack("<I", 2**31),
    preamble(Purpose.CONTROL) + frame(b"\xc1" * 100),
    preamble(Purpose.LANE) + frame(b"\x80"),
    preamble(Purpose.CONTROL)[:5],
)


class Flood:
    """Connections that come without end while the block lasts: some say all sorts of things, most say nothing. The
    newest stay open, more of them than may be strangers at once."""

    KEPT = STRANGERS_MAX + 100

    def __init__(self, address, seed):
        raise_descriptor_limit()
        host, _, port = address.rpartition(":")
        self.address = (host, int(port))
        self.opened = 0
        self._random = random.Random(seed)
        self._full, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        assert self._full.wait(PATIENCE_S), f"only {self.opened} connections were accepted"
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        kept = deque()
        while not self._over.is_set():
            kept.append(socket.create_connection(self.address, timeout=HANG_S))
            self.opened += 1
            if self.opened % 4 == 0:
                with suppress(OSError):  # It was shown the door already.
                    kept[-1].sendall(self._words())
            if len(kept) > self.KEPT:
                kept.popleft().close()
                self._full.set()
        for sock in kept:
            sock.close()

    def _words(self):
        return self._random.choice([*GARBAGE, self._random.randbytes(self._random.randrange(200))])


def closed_port():
    """A port on which nobody listens, and nobody will while it is held."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held, held.getsockname()[1]


def test_a_master_under_a_flood_admits_a_peer(master, start_peers):
    first, second = start_peers(2, master.address)
    first.do("connect")
    with Flood(master.address, 1) as flood:
        before = flood.opened
        peers = join([first], [second])
        assert {each["size"] for each in all_do(peers, "update")} == {2}
        wait_until(lambda: flood.opened > before)  # The flood has not ebbed.


def test_a_peer_under_a_flood_gets_its_lanes_and_keeps_its_descriptors(master, start_peers):
    """With the number of descriptors that is usual: a quarter of them stays the trainer's."""
    (first,) = start_peers(1, master.address, descriptors=1024)
    (second,) = start_peers(1, master.address)
    port = first.do("connect")["port"]
    with Flood(f"127.0.0.1:{port}", 2) as flood:
        before = flood.opened
        assert first.do("open_files", count=600)["opened"] == 600
        peers = join([first], [second])
        all_do(peers, "collective")
        assert first.do("open_files", count=256)["opened"] == 256
        wait_until(lambda: flood.opened > before)  # The flood has not ebbed.


def test_lanes_need_descriptors(master, start_peers):
    (peer,) = start_peers(1, master.address, descriptors=256, p2p_connection_pool_size=64)
    peer.order("connect")
    failed = peer.expect("failed")
    assert failed["error"] == "UsageError"
    assert "ulimit -n" in failed["reason"]


def receive(sock, count):
    data = b""
    while len(data) < count and (portion := sock.recv(count - len(data))):
        data += portion
    return data


def read_refusal(sock):
    head = receive(sock, PREAMBLE_BYTES)
    length = int.from_bytes(receive(sock, HEADER_BYTES), "little")
    words = parse_refusal(receive(sock, length))
    assert sock.recv(1) == b""
    return head, words


OTHER_VERSION = MAGIC + struct.pack("<HBB", VERSION + 1, 1, 0)


def test_a_peer_of_another_version_is_told_so_by_the_master(master):
    host, _, port = master.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANG_S) as sock:
        sock.sendall(OTHER_VERSION + b"whatever the next version says")
        head, words = read_refusal(sock)
    assert head[:4] == MAGIC
    assert f"version {VERSION + 1}" in words
    assert f"version {VERSION}:" in words


def test_a_peer_of_another_version_is_told_so_by_a_peer(master, start_peers):
    (peer,) = start_peers(1, master.address)
    port = peer.do("connect")["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as sock:
        sock.sendall(OTHER_VERSION)
        _, words = read_refusal(sock)
    assert f"version {VERSION + 1}" in words


def answer_once(listener, answer):
    def serve():
        sock, _ = listener.accept()
        with sock:
            receive(sock, PREAMBLE_BYTES)
            sock.sendall(answer)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass  # A reset for what was not read would overtake the answer.

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (OTHER_VERSION + frame(b"please upgrade to the next release"), ("version", "please upgrade")),
        (OTHER_VERSION, ("version",)),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ("HTTP",)),
    ],
)
def test_a_master_that_is_none_of_ours(answer, words):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = answer_once(listener, answer)
        communicator = Communicator(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(ProtocolError) as raised:
            communicator.connect()
        thread.join(HANG_S)
    assert all(word in str(raised.value) for word in words)


def test_where_one_of_several_addresses_is_none_of_ours_the_next_is_tried(monkeypatch, master):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        known = [listener.getsockname(), ("127.0.0.1", master.port)]
        monkeypatch.setattr(sockets, "look_up", behind_the_name(known))
        thread = answer_once(listener, b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with Communicator("master.test:1"):
            thread.join(HANG_S)
        # Whatever else the name stands for does not answer: that is worth another attempt.
        thread = answer_once(listener, b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            known[1] = silent.getsockname()
            with pytest.raises(MasterLost, match="after 1 attempts"):
                Communicator("master.test:1").connect(n_attempts=1)
        thread.join(HANG_S)


def test_a_peer_is_no_master(master, start_peers):
    (peer,) = start_peers(1, master.address)
    port = peer.do("connect")["port"]
    with pytest.raises(ProtocolError, match="the port of a peer"):
        Communicator(f"127.0.0.1:{port}").connect()


def test_a_listener_that_hangs_up_is_tried_again():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = answer_once(listener, b"")
        with pytest.raises(MasterLost, match="without an answer"):
            Communicator(f"127.0.0.1:{listener.getsockname()[1]}").connect(n_attempts=1)
        thread.join(HANG_S)


@pytest.mark.parametrize("hidden", [0, 1])
def test_either_end_may_dial(master, start_peers, hidden):
    """One of two neighbours cannot be dialled: the other one is."""
    held, port = closed_port()
    with held:
        peers = start_peers(1, master.address, announce=f"127.0.0.1:{port}")
        peers[1 - hidden : 1 - hidden] = start_peers(1, master.address)
        join([], peers)
        assert {len(each["ring"]) for each in all_do(peers, "collective")} == {2}


def test_a_candidate_out_of_reach_is_refused_with_the_pair(master, start_peers):
    """Neither of two neighbours can be dialled."""
    held, port = closed_port()
    with held:
        (first,) = start_peers(1, master.address, announce=f"127.0.0.1:{port}")
        first.do("connect")
        (lonely,) = start_peers(1, master.address, announce=f"127.0.0.1:{port}")
        lonely.order("connect")
        first.do("await_pending")
        assert first.do("update")["size"] == 1
        failed = lonely.expect("failed")
        assert failed["error"] == "Refused"
        assert first.peer[:8] in failed["reason"]
        assert f"127.0.0.1:{port}" in failed["reason"]
        # It may try again, and is somebody else then.
        lonely.order("connect")
        first.do("await_pending")
        assert first.do("update")["size"] == 1
        assert lonely.expect("failed")["error"] == "Refused"
        peers = join([first], start_peers(1, master.address))
        all_do(peers, "collective")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize(("listen", "host"), [("[::1]:0", "[::1]"), ("[::]:0", "[::1]"), ("[::]:0", "127.0.0.1")])
def test_ipv6(start_master, start_peers, listen, host):
    master = start_master(listen)
    peers = join([], start_peers(2, f"{host}:{master.port}"))
    assert {len(each["ring"]) for each in all_do(peers, "collective")} == {2}


def test_host_names(start_master, start_peers):
    master = start_master("localhost:0")
    peers = join([], start_peers(2, f"localhost:{master.port}", announce="localhost"))
    assert {len(each["ring"]) for each in all_do(peers, "collective")} == {2}


def test_a_name_that_does_not_exist():
    with pytest.raises(MasterLost, match=r"no-such-name\.invalid"):
        Communicator("no-such-name.invalid:48148").connect(n_attempts=1)


def test_the_port_of_a_peer_can_be_set(master, start_peers):
    held, port = closed_port()
    held.close()
    (peer,) = start_peers(1, master.address, listen=f"127.0.0.1:{port}")
    assert peer.do("connect")["port"] == port


def test_silence_is_ended_on_a_deadline(monkeypatch):
    assert Strangers.__init__.__defaults__ == (STRANGERS_MAX, HELLO_TIMEOUT_S)
    monkeypatch.setattr(Strangers.__init__, "__defaults__", (STRANGERS_MAX, 0.2))
    with (
        MasterNode("127.0.0.1:0") as master,
        socket.create_connection(("127.0.0.1", master.port), timeout=HANG_S) as sock,
    ):
        sock.sendall(preamble(Purpose.CONTROL)[:6])
        assert sock.recv(1) == b""
