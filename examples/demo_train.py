"""A minute of training with a kill and a join, live: `make demo-train`.

A master and three peers train the char-GPT of `diloco_char_gpt.py`; one is killed, another comes later, and the loss
goes on falling. At the end all that are left say the same digest.
"""

import subprocess
import sys
import threading
from pathlib import Path

from pccl import MasterNode

HERE = Path(__file__).parent
# With three as the least, the two that are left would wait for the newcomer instead of going on.
ROUNDS, KILL_AT, JOIN_AT, MIN_PEERS = (int(each) for each in (sys.argv[1:5] or (60, 15, 25, 1)))


class Peer:
    def __init__(self, name, address):
        self.name, self.round, self.moved = name, 0, threading.Condition()
        command = [sys.executable, "-u", str(HERE / "diloco_char_gpt.py"), address]
        command += ["--rounds", str(ROUNDS), "--min-peers", str(MIN_PEERS)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if not line.startswith("round ") or self.name == "anna":
                print(f"{self.name}: {line}", end="", flush=True)
            with self.moved:
                self.round = int(line.split()[1].rstrip(":")) if line.startswith("round ") else self.round
                self.moved.notify_all()
        with self.moved:
            self.round = ROUNDS
            self.moved.notify_all()

    def reach(self, number):
        with self.moved:
            self.moved.wait_for(lambda: self.round >= number)


with MasterNode("127.0.0.1:0") as master:
    place = f"127.0.0.1:{master.port}"
    peers = {name: Peer(name, place) for name in ("anna", "bert", "carl")}
    peers["anna"].reach(KILL_AT)
    print("--- carl is killed ---", flush=True)
    peers["carl"].process.kill()
    peers["anna"].reach(JOIN_AT)
    print("--- dora joins ---", flush=True)
    peers["dora"] = Peer("dora", place)
    for peer in peers.values():
        peer.process.wait()
        peer.thread.join()

digests = {peer.lines[-1].split()[-1] for name, peer in peers.items() if name != "carl"}
print(f"--- {len(peers) - 1} peers end with {len(digests)} digest ---")
sys.exit(len(digests) != 1)
