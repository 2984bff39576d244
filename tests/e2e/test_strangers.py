"""Whatever else connects to our ports: garbage, silence, other versions, neighbours that cannot be dialled."""

import random
import socket
import struct
import threading
from contextlib import ExitStack

import pytest

from pccl import Communicator, MasterLost, MasterNode, ProtocolError
from pccl.net.listening import STRANGERS_MAX, Strangers
from pccl.wire.framing import HEADER_BYTES, MAGIC, PREAMBLE_BYTES, VERSION, Purpose, frame, parse_refusal, preamble
from tests.e2e.harness import all_do, join

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


def flood(address, seed, stage):
    """Connections that stay open: some say all sorts of things, and more than may be strangers at once say nothing."""
    rng = random.Random(seed)
    for number in range(400):
        sock = stage.enter_context(socket.create_connection(address, timeout=10))
        portion = GARBAGE[number % len(GARBAGE)] if number % 3 else rng.randbytes(rng.randrange(200))
        try:
            sock.sendall(portion)
        except OSError:
            continue  # It was shown the door already.
    for _ in range(STRANGERS_MAX + 100):
        stage.enter_context(socket.create_connection(address, timeout=10))


def closed_port():
    """A port on which nobody listens, and nobody will while it is held."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    return held, held.getsockname()[1]


def test_a_master_under_a_flood_admits_a_peer(master, start_peers):
    first, second = start_peers(2, master.address)
    first.do("connect")
    with ExitStack() as stage:
        host, _, port = master.address.rpartition(":")
        flood((host, int(port)), 1, stage)
        peers = join([first], [second])
        assert {each["size"] for each in all_do(peers, "update")} == {2}


def test_a_peer_under_a_flood_gets_its_lanes(master, start_peers):
    first, second = start_peers(2, master.address)
    port = first.do("connect")["port"]
    with ExitStack() as stage:
        flood(("127.0.0.1", port), 2, stage)
        peers = join([first], [second])
        all_do(peers, "collective")


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
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(OTHER_VERSION + b"whatever the next version says")
        head, words = read_refusal(sock)
    assert head[:4] == MAGIC
    assert f"version {VERSION + 1}" in words
    assert f"version {VERSION}:" in words


def test_a_peer_of_another_version_is_told_so_by_a_peer(master, start_peers):
    (peer,) = start_peers(1, master.address)
    port = peer.do("connect")["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(OTHER_VERSION)
        _, words = read_refusal(sock)
    assert f"version {VERSION + 1}" in words


def answer_once(listener, answer):
    def serve():
        sock, _ = listener.accept()
        with sock:
            receive(sock, PREAMBLE_BYTES)
            sock.sendall(answer)

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
        thread.join(5.0)
    assert all(word in str(raised.value) for word in words)


def test_a_peer_is_no_master(master, start_peers):
    (peer,) = start_peers(1, master.address)
    port = peer.do("connect")["port"]
    with pytest.raises(ProtocolError, match="the port of a peer"):
        Communicator(f"127.0.0.1:{port}").connect()


def test_a_listener_that_hangs_up_is_tried_again():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = answer_once(listener, b"")
        with pytest.raises(MasterLost, match="without a word"):
            Communicator(f"127.0.0.1:{listener.getsockname()[1]}").connect(n_attempts=1)
        thread.join(5.0)


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
    monkeypatch.setattr(Strangers.__init__, "__defaults__", (1024, 0.2))
    with MasterNode("127.0.0.1:0") as master, socket.create_connection(("127.0.0.1", master.port), timeout=10) as sock:
        sock.sendall(preamble(Purpose.CONTROL)[:6])
        assert sock.recv(1) == b""
