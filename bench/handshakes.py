"""What a flood of TLS handshakes does to a master with certificates, where no token is proved before TLS.

    python bench/handshakes.py [--how hello finished] [--rate 2000] [--seconds 30]

The master and the flood run as processes of their own; the flood comes from another address of this machine
(127.0.0.2). `hello` connections send the first bytes of a handshake and then nothing, so that the master signs;
`finished` ones go through all of it without a certificate. Meanwhile two peers vote again and again, and the status is
asked for on a fresh connection each time, which takes what a peer needs to be let in. Prints a JSON line for each; the
first one is without a flood. Needs the command `openssl`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import selectors
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

from flooders import FLOOD_ADDRESS, KEPT
from floods import VOTE_EVERY_S, of_votes, resident_mb

sys.path.append(str(Path(__file__).parents[1]))

from control import cpu_seconds

from pccl import Communicator, PCCLError
from pccl.config import Address
from pccl.core.messages.observers import AskStatus
from pccl.credentials import CertificateFiles
from pccl.net.observing import ask
from pccl.security import tls
from pccl.security.entrance import make_guard
from pccl.wire.framing import PREAMBLE_BYTES, Purpose, preamble
from tests.security.own_ca import OwnCA


class End:
    """One connection of the flood."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._skipped = PREAMBLE_BYTES

    def go_on(self, data: bytes = b"") -> bytes:
        """What it sends next."""
        self._incoming.write(data[self._skipped :])
        self._skipped = 0 if data else self._skipped
        with contextlib.suppress(ssl.SSLError):
            self._tls.do_handshake()
        return self._outgoing.read()


def flood(port: int, how: str, rate: float, seconds: float) -> None:
    """In a process of its own; prints how many connections there were in a second."""
    began, made, kept, context = time.monotonic(), 0, deque[socket.socket](), tls.dialling_context()
    first = preamble(Purpose.CONTROL_CERTIFIED) + End(context).go_on()
    waiting = selectors.DefaultSelector()
    while (elapsed := time.monotonic() - began) < seconds:
        for key, _ in waiting.select(0 if made <= rate * elapsed else 0.002):
            sock = key.fileobj
            assert isinstance(sock, socket.socket), "only sockets are waited for"
            with contextlib.suppress(OSError):
                if data := sock.recv(65536):
                    sock.send(key.data.go_on(data))
                    continue
            waiting.unregister(sock)
        if made > rate * elapsed:
            continue
        sock = socket.socket()
        sock.bind((FLOOD_ADDRESS, 0))
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.connect(("127.0.0.1", port))
        end = End(context) if how == "finished" else None
        with contextlib.suppress(OSError):
            sock.send(first if end is None else preamble(Purpose.CONTROL_CERTIFIED) + end.go_on())
            if end is not None:
                waiting.register(sock, selectors.EVENT_READ, end)
        made += 1
        kept.append(sock)
        if len(kept) > KEPT:
            oldest = kept.popleft()
            with contextlib.suppress(KeyError, ValueError):
                waiting.unregister(oldest)
            oldest.close()
    print(made / seconds, flush=True)


def votes_of(peers: list[Communicator], over: threading.Event) -> list[float]:
    """Both ask again and again until it is over; how long each time took."""
    taken: list[float] = []

    def vote(peer: Communicator, record: bool) -> None:
        while not over.is_set():
            began = time.monotonic()
            with contextlib.suppress(PCCLError):  # It is over.
                peer.are_peers_pending()
            if record:
                taken.append(time.monotonic() - began)
            time.sleep(VOTE_EVERY_S)

    for place, peer in enumerate(peers):
        threading.Thread(target=vote, args=(peer, place == 0), daemon=True).start()
    return taken


def measure(arguments: argparse.Namespace, how: str, ca: OwnCA) -> str:
    master, peer = ca.master(), ca.peer()
    options = [text for name, path in master.items() for text in (f"--{name}", str(path))]
    command = [sys.executable, "-m", "pccl.cli", "master", "--listen", "127.0.0.1:0", *options]
    over, answers, most = threading.Event(), list[float](), 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None, "a pipe was asked for"
        port = int(process.stdout.readline().partition(" and ")[0].rpartition(":")[2])
        first, second = (Communicator(f"127.0.0.1:{port}", listen="127.0.0.1", **peer) for _ in range(2))
        with first:
            joining = threading.Thread(target=second.connect)
            joining.start()
            while first.world_size < 2:
                first.update_topology()
            joining.join()
            votes = votes_of([first, second], over)
            before, cpu = resident_mb(process.pid), cpu_seconds(process.pid)
            flooding = [sys.executable, __file__, "--flood", str(port), "--how", how]
            flooding += ["--rate", str(arguments.rate if how != "none" else 0), "--seconds", str(arguments.seconds)]
            guard = make_guard("", CertificateFiles(**peer))
            with subprocess.Popen(flooding, stdout=subprocess.PIPE, text=True) as flooder:
                while flooder.poll() is None:
                    began = time.monotonic()
                    asyncio.run(ask(Address("127.0.0.1", port), AskStatus(), 30.0, guard))
                    answers.append(time.monotonic() - began)
                    most = max(most, resident_mb(process.pid))
                    time.sleep(0.1)
                assert flooder.stdout is not None, "a pipe was asked for"
                rate = float(flooder.stdout.read() or 0)
            spent = (cpu_seconds(process.pid) - cpu) / arguments.seconds
            over.set()
            second.close()
        process.kill()
    facts: dict[str, object] = {"flood_per_s": round(rate), "grown_mb": round(most - before, 1), "cpu": round(spent, 2)}
    facts |= of_votes(votes) | {"answers": len(answers), "answer_max_s": round(max(answers), 3) if answers else None}
    return json.dumps({"bench": "handshakes", "at": "certified master", "how": how, **facts})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--how", nargs="+", default=["none", "hello", "finished"])
    parser.add_argument("--rate", type=float, default=2000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--flood", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.flood:
        flood(arguments.flood, arguments.how[0], arguments.rate, arguments.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        ca = OwnCA(Path(folder) / "ca")
        for how in arguments.how:
            print(measure(arguments, how, ca), flush=True)


if __name__ == "__main__":
    main()
