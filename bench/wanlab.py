"""A wide-area network on one machine: hosts in network namespaces, joined by links with a delay, a rate and faults.

    with WanLab(Wan(hosts=4, round_trip_ms=80, rate_mbit=400)) as lab:
        subprocess.Popen([*lab.inside(0), "python3", "peer.py"])     # runs on host 0, whose address is lab.address(0)

Needs root, iproute2 and the tun device. Each host has one access link: all that it sends shares its rate, waits in one
queue, and arrives half a round trip later. A full queue drops, as a router does. The kernel hands over up to 64 KB at a
time (segmentation offload), which is why one Python thread forwards more than two gigabits per second. With loss or
reordering packets are those of a wire, 1,500 bytes: a lost one of 64 KB would hit the whole window of one connection.
Then all hosts together carry about 450 Mbit/s. Only namespaces that this process made are touched, and they are gone
when the `with` block ends.
"""

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import secrets
import select
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

# From linux/if_tun.h and linux/sched.h.
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
CLONE_NEWNET = 0x40000000

OFFLOAD_HEADER_BYTES = 10
"""`struct virtio_net_hdr` before each packet: which checksums and cuts are still to be made."""

DESTINATION_LAST_BYTE = OFFLOAD_HEADER_BYTES + 19
PACKET_BYTES_MAX = 65_536 + OFFLOAD_HEADER_BYTES
BURST_PACKETS = 32
"""Read from one host before looking at the others again."""

REORDERED_S = 0.004
"""How much later a reordered packet comes: dozens of others overtake it at 100 Mbit/s."""

LOOK_S = 0.05
"""How soon the end of the lab is noticed."""

ROUTER_NICENESS = -15
"""A real router does not wait for the CPUs of the hosts."""


class LabFailed(Exception):
    """The network could not be made; the sentence says why."""


@dataclass(frozen=True)
class Wan:
    """The network. `queue_ms` is what a host's access link holds back before it drops;
    `congestion` is the hosts' default congestion control, this machine's when empty. `round_trips_ms` is by host and
    host, where `round_trip_ms` is not the same for all, and `rates_mbit` by host, where `rate_mbit` is not. `loss` and
    `reordering` are shares of all packets; one that is reordered comes `REORDERED_S` late, after others. `jitter_ms` is
    by how much more than half a round trip a packet takes at most, in its order."""

    hosts: int
    round_trip_ms: float
    rate_mbit: float
    queue_ms: float = 100.0
    congestion: str = ""
    round_trips_ms: tuple[tuple[float, ...], ...] = ()
    rates_mbit: tuple[float, ...] = ()
    loss: float = 0.0
    reordering: float = 0.0
    jitter_ms: float = 0.0

    def rate(self, host: int) -> float:
        """What its access link sends, in Mbit/s."""
        return self.rates_mbit[host] if self.rates_mbit else self.rate_mbit

    @property
    def slowest_mbit(self) -> float:
        """What a ring of all hosts cannot exceed."""
        return min(self.rate(host) for host in range(self.hosts))

    def delay_s(self, host: int, to: int) -> float:
        """On the way from one to another."""
        return (self.round_trips_ms[host][to] if self.round_trips_ms else self.round_trip_ms) / 2e3


class WanLab:
    """The hosts, and the thread that is the network between them. Names of namespaces begin with `prefix`."""

    def __init__(self, wan: Wan, prefix: str = "pcclwan") -> None:
        self.wan = wan
        self.dropped_packets = 0
        self.sent_bytes = [0] * wan.hosts
        self.slowed = 1.0
        """The share of their rates that all links have now: changed while it runs."""
        self._name = f"{prefix}{secrets.token_hex(3)}"
        self._made: list[int] = []
        self._devices: list[int] = []
        self._stop = threading.Event()
        self._router = threading.Thread(target=self._route, name="wan", daemon=True)

    def inside(self, host: int) -> list[str]:
        """What to put before a command so that it runs on this host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def namespace(self, host: int) -> str:
        """By which a process of root can enter it."""
        return f"{self._name}h{host}"

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def __enter__(self) -> Self:
        try:
            for host in range(self.wan.hosts):
                self._make(host)
        except BaseException:
            self._remove()
            raise
        self._router.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._router.join()
        self._remove()

    def _make(self, host: int) -> None:
        name = f"{self._name}h{host}"
        _ip("netns", "add", name)
        self._made.append(host)
        self._devices.append(_tun_inside(name, as_on_a_wire=self.wan.loss > 0 or self.wan.reordering > 0))
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "wan0")
        _ip("-n", name, "link", "set", "wan0", "up", "txqueuelen", "5000")
        if self.wan.congestion:
            setting = f"net.ipv4.tcp_congestion_control={self.wan.congestion}"
            if subprocess.run([*self.inside(host), "sysctl", "-qw", setting], check=False).returncode != 0:
                words = "net.ipv4.tcp_allowed_congestion_control says what is allowed"
                raise LabFailed(f"this machine does not let the hosts use {self.wan.congestion}: {words}")

    def _remove(self) -> None:
        for device in self._devices:
            os.close(device)
        for host in self._made:
            subprocess.run(["ip", "netns", "del", f"{self._name}h{host}"], check=False)

    def _route(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), ROUTER_NICENESS)
        network = _InFlight(self.wan)
        with select.epoll() as poll:
            for device in self._devices:
                poll.register(device, select.EPOLLIN)
            while not self._stop.is_set():
                for host, packet in network.arrived(time.monotonic()):
                    with contextlib.suppress(BlockingIOError):  # A host that does not read loses packets.
                        os.write(self._devices[host], packet)
                for device, _ in poll.poll(network.wait_s(time.monotonic())):
                    self._take(self._devices.index(device), network)

    def _take(self, host: int, network: "_InFlight") -> None:
        for _ in range(BURST_PACKETS):
            try:
                packet = os.read(self._devices[host], PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if packet[OFFLOAD_HEADER_BYTES] >> 4 != 4:
                continue  # The kernel's own IPv6 announcements.
            if network.send(host, packet, time.monotonic(), self.slowed):
                self.sent_bytes[host] += len(packet) - OFFLOAD_HEADER_BYTES
            else:
                self.dropped_packets += 1


class _InFlight:
    """Packets between hosts, by the time of their arrival."""

    def __init__(self, wan: Wan) -> None:
        self._wan = wan
        self._link_free_at = [0.0] * wan.hosts
        self._order = 0
        self._packets: list[tuple[float, int, int, bytes]] = []
        self._random = random.Random(0)
        self._last_arrival: dict[tuple[int, int], float] = {}

    def send(self, host: int, packet: bytes, now: float, slowed: float) -> bool:
        """False when the packet is lost."""
        to = packet[DESTINATION_LAST_BYTE] - 1
        starts = max(now, self._link_free_at[host])
        if not 0 <= to < self._wan.hosts or starts - now > self._wan.queue_ms / 1e3:
            return False
        if self._wan.loss and self._random.random() < self._wan.loss:
            return False
        bits = (len(packet) - OFFLOAD_HEADER_BYTES) * 8
        self._link_free_at[host] = starts + bits / (self._wan.rate(host) * slowed * 1e6)
        self._order += 1
        arrives = self._link_free_at[host] + self._wan.delay_s(host, to) + self._late_s(host, to)
        heapq.heappush(self._packets, (arrives, self._order, to, packet))
        return True

    def _late_s(self, host: int, to: int) -> float:
        """Beyond its delay, by jitter or because others overtake it."""
        if self._wan.reordering and self._random.random() < self._wan.reordering:
            return REORDERED_S
        if not self._wan.jitter_ms:
            return 0.0
        usual = self._link_free_at[host] + self._wan.delay_s(host, to)
        arrives = max(
            self._last_arrival.get((host, to), 0.0), usual + self._random.uniform(0, self._wan.jitter_ms / 1e3)
        )
        self._last_arrival[host, to] = arrives
        return arrives - usual

    def arrived(self, now: float) -> list[tuple[int, bytes]]:
        packets = []
        while self._packets and self._packets[0][0] <= now:
            _, _, host, packet = heapq.heappop(self._packets)
            packets.append((host, packet))
        return packets

    def wait_s(self, now: float) -> float:
        return min(LOOK_S, max(0.0, self._packets[0][0] - now)) if self._packets else LOOK_S


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _tun_inside(namespace: str, as_on_a_wire: bool) -> int:
    """A tun device that belongs to the namespace, held by this process. `as_on_a_wire`: with packets of 1,500 bytes."""
    devices: list[int] = []

    def make() -> None:
        with open(f"/run/netns/{namespace}", "rb") as entry:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(entry.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace}")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", b"wan0", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | (0 if as_on_a_wire else TUN_F_TSO4))
        devices.append(device)

    thread = threading.Thread(target=make)  # Of its own: a thread that entered a namespace stays there.
    thread.start()
    thread.join()
    if not devices:
        raise OSError(f"no tun device in the network namespace {namespace}")
    return devices[0]
