"""How many round trips it takes to connect, and to make a link again that broke, in the clear and with a token.

    python bench/round_trips.py [--near 0.02] [--far 0.2] [--tries 3]

What is far away is the master when a peer connects, alone or to a run that lets it in, and each peer's port for lanes
when a link is made again; all else is on this machine. Each is done over both distances, and what counts is the slope:
by how much longer it takes over the far way, in round trips. So what is computed meanwhile, and what either side waits
for by its clock, is not counted; of each distance the shortest of a few tries. TCP's own round trip is one of them.
Prints a JSON line for each.
"""

import argparse
import contextlib
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from far import FarAway

from pccl import Communicator, MasterNode

PATIENCE_S = 60.0


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as found:
        port: int = found.getsockname()[1]
        return port


def connect(secret: str, round_trip_s: float) -> float:
    """The first peer of a run, whose master is that far away."""
    with MasterNode("127.0.0.1:0", secret=secret, newborn_s=0.01) as master:
        place = f"127.0.0.1:{FarAway(round_trip_s).lead(master.port)}"
        peer = Communicator(place, listen="127.0.0.1", token=master.token or None)
        began = time.perf_counter()
        with peer:
            return time.perf_counter() - began


def join(secret: str, round_trip_s: float) -> float:
    """A second peer, whose master is that far away; the first one, which lets it in, is near, and so is their link."""
    with MasterNode("127.0.0.1:0", secret=secret, newborn_s=0.01) as master, contextlib.ExitStack() as stack:
        token, place = master.token or None, f"127.0.0.1:{FarAway(round_trip_s).lead(master.port)}"
        first, second = (
            stack.enter_context(contextlib.closing(Communicator(address, listen="127.0.0.1", token=token)))
            for address in (f"127.0.0.1:{master.port}", place)
        )
        first.connect()
        began = time.perf_counter()
        let_in(first, second)
        return time.perf_counter() - began


def let_in(first: Communicator, second: Communicator) -> None:
    """Returns when the second one is."""
    joining = threading.Thread(target=second.connect)
    joining.start()
    while first.world_size < 2:
        first.update_topology()
    joining.join()


def remake(secret: str, round_trip_s: float) -> float:
    """The link of two peers breaks, between which it is that far; the master is near."""
    far = FarAway(round_trip_s)
    with MasterNode("127.0.0.1:0", secret=secret, newborn_s=0.01) as master, contextlib.ExitStack() as stack:
        peers = []
        for host in ("127.0.0.71", "127.0.0.72"):  # Where no other connection of this machine takes the port meanwhile.
            port = free_port(host)
            places = {"listen": f"{host}:{port}", "announce": f"127.0.0.1:{far.lead(port, host)}"}
            asked = {"p2p_connection_pool_size": 1, "token": master.token or None, **places}
            peers.append(stack.enter_context(contextlib.closing(Communicator(f"127.0.0.1:{master.port}", **asked))))
        peers[0].connect()
        let_in(*peers)
        before = max(wait_for(lambda: links(peers), "a first link"))
        far.cut()
        began = time.perf_counter()
        wait_for(lambda: min(links(peers), default=0) > before and links(peers), "another link")
        return time.perf_counter() - began


def links(peers: list[Communicator]) -> list[int]:
    """The number of the link at each peer; none unless all of its lanes stand at both."""
    ends = [list(peer._membership.core._links._ends.values()) for peer in peers]
    return [each[0].spec.number for each in ends] if all(each and each[0].complete for each in ends) else []


def wait_for(found: Callable[[], list[int]], what: str) -> list[int]:
    until = time.monotonic() + PATIENCE_S
    while not (numbers := found()):
        assert time.monotonic() < until, f"{what} does not come"
        time.sleep(0.0005)
    return numbers


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--near", type=float, default=0.02, help="seconds")
    options.add_argument("--far", type=float, default=0.2, help="seconds")
    options.add_argument("--tries", type=int, default=3)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for work in (connect, join, remake):
            for secret in ("", str(Path(folder) / "secret")):
                near, far = (min(work(secret, way) for _ in range(chosen.tries)) for way in (chosen.near, chosen.far))
                slope = (far - near) / (chosen.far - chosen.near)
                facts = {"what": work.__name__, "token": bool(secret), "round_trips": round(slope, 2)}
                print(json.dumps({**facts, "near_ms": round(near * 1e3, 1), "far_ms": round(far * 1e3, 1)}), flush=True)


if __name__ == "__main__":
    main()
