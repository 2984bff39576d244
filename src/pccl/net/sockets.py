"""Making sockets: options, listening, accepting, addresses, and letting go of them in forked children.

Owns every `socket()` and `accept()` of the control plane, so that each socket has our options and none outlives us in a
forked child. Must not know what is sent on a socket.
"""

import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
import threading
from pathlib import Path
from weakref import WeakSet

from pccl.core.rules.schedule import NEAR_S, SEGMENT_BYTES_FAR
from pccl.errors import UsageError
from pccl.uplink import Uplink

_KEEPALIVE_IDLE_S = 15
_KEEPALIVE_INTERVAL_S = 5
"""Probe often enough that several probes get lost before a connection counts as dead; they cost 40 bytes each."""

_PROBES_MAX = 127
_MILLISECONDS_MAX = 2**31 - 1
"""What the kernel takes."""

LISTEN_BACKLOG = 4096
"""Connections the kernel keeps for us while the loop is busy: as many as peers may come back at once, and two seconds
of a flood of 2,000 a second. One that finds no room dials again after one second, and after three."""

_BIND_ATTEMPTS = 16
"""A port that the kernel chose for one address of a name may be taken on the next; each try has a new one."""

_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
Resolved = tuple[socket.AddressFamily, SocketAddress]

# ── forked children ──────────────────────────────────────────────────────────────────────────────────────────────────

_ours: "WeakSet[socket.socket]" = WeakSet()
_birth = threading.Lock()
"""Held from the system call that makes a socket to its entry in `_ours`, and by `fork`: no child is born in between."""


def _close_in_child() -> None:
    """A data loader that is forked off holds copies of our sockets: while it lives, our death would close nothing.

    Closed without `shutdown`, which would end the parent's connection too, and detached first, so that the child's
    garbage collector does not close a descriptor number that is used for something else by then."""
    for sock in list(_ours):
        descriptor = sock.detach()
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # Already closed: nothing is kept alive.
                os.close(descriptor)
    _ours.clear()
    _birth.release()


os.register_at_fork(before=_birth.acquire, after_in_parent=_birth.release, after_in_child=_close_in_child)


def make(family: socket.AddressFamily, connection_dead_s: float) -> socket.socket:
    """A socket to connect with, with our options. Raises `OSError`."""
    sock = _make(family)
    try:
        _tune(sock, connection_dead_s)
    except OSError:
        sock.close()
        raise
    return sock


def _make(family: socket.AddressFamily) -> socket.socket:
    with _birth:
        sock = socket.socket(family, socket.SOCK_STREAM)
        _ours.add(sock)
    sock.setblocking(False)
    return sock


def accept(listener: socket.socket, connection_dead_s: float) -> tuple[socket.socket, str] | None:
    """The next connection and the address it comes from; None when there is none (any more). Raises `OSError`."""
    with _birth:
        try:
            sock, address = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return None
        _ours.add(sock)
    sock.setblocking(False)
    try:
        _tune(sock, connection_dead_s)
    except OSError:
        sock.close()
        raise
    return sock, plain_host(address[0])


def out_of_descriptors(error: OSError) -> bool:
    """True when accepting failed for want of resources: wait and accept again."""
    return error.errno in _OUT_OF_DESCRIPTORS


def in_words(error: OSError) -> str:
    """What happened, without the number of the error; and what helps, where that is not plain."""
    words = error.strerror or str(error)
    return f"{words}: raise the limit on descriptors (ulimit -n)" if error.errno == errno.EMFILE else words


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tune(sock: socket.socket, connection_dead_s: float) -> None:
    # A vote is one small segment; waiting for more to send with it would cost a round trip each.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A machine that lost power sends nothing, not even an end of file: idle connections must ask.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle_s = max(1, min(_KEEPALIVE_IDLE_S, int(connection_dead_s / 4)))
    interval_s = max(1, min(_KEEPALIVE_INTERVAL_S, int(connection_dead_s / 12)))
    probes = max(1, min(_PROBES_MAX, int((connection_dead_s - idle_s) / interval_s)))
    for name, value in (("TCP_KEEPIDLE", idle_s), ("TCP_KEEPINTVL", interval_s), ("TCP_KEEPCNT", probes)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    # With data in flight there are no keep-alive probes, and retransmission alone goes on for a quarter of an hour.
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = min(_MILLISECONDS_MAX, int(connection_dead_s * 1000))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


LOOPBACK_BUFFER_BYTES = 1024 * 1024
"""Send and receive buffer of a lane inside one machine. Nothing is ever long in flight there: two segments each way are
enough for both ends to be at work, and bytes in a small buffer are still in the cache when they are read. Of 256 KiB,
512 KiB and 1 MiB the last was the fastest for one lane, by a third over the first."""


FAR_UNSENT_BYTES = 2 * SEGMENT_BYTES_FAR
"""Of a lane that leads far, what may wait in the kernel and is not sent yet. What waits there can go no other way: by
default that is megabytes, seconds of a lane that has lost something, while other lanes are done. The kernel asks for
more when less than half is left, one segment: at 100 Mbit/s that is 5 ms of work, and a thread that moves bytes comes
by within one; a segment that is begun then is taken whole."""


ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
SO_MAX_PACING_RATE = 47
"""Of `asm-generic/socket.h`, which Python does not name. TCP paces by itself since Linux 4.13."""


def check_uplink(uplink: Uplink) -> None:
    """Raises `UsageError` where the kernel does not do what is asked for."""
    if uplink.max_upload_mbps and sys.platform != "linux":
        raise UsageError(
            "max_upload_mbps (PCCL_MAX_UPLOAD_MBPS) must be 0 on this system: only Linux paces; leave it out"
        )
    if not uplink.congestion_control:
        return
    with _make(socket.AF_INET) as sock:
        try:
            _control_congestion(sock, uplink.congestion_control)
        except OSError as error:
            allowed = ALLOWED.read_text().strip() if ALLOWED.exists() else "nothing else than its default"
            raise UsageError(
                f"congestion_control (PCCL_CONGESTION_CONTROL) must be one that this kernel allows ({allowed}), got "
                f"{uplink.congestion_control!r} ({in_words(error)}); choose one of these, or let root load it "
                f"(modprobe tcp_{uplink.congestion_control}) and add it to net.ipv4.tcp_allowed_congestion_control"
            ) from None


def _control_congestion(sock: socket.socket, name: str) -> None:
    if not hasattr(socket, "TCP_CONGESTION"):
        raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def pace(sock: socket.socket, bytes_s: float) -> None:
    """From now on the connection sends no faster."""
    with contextlib.suppress(OSError):  # Broken already.
        sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("@Q", max(1, int(bytes_s))))


def tune_lane(sock: socket.socket, congestion_control: str = "") -> None:
    """Options for a connection that carries tensors.

    Between machines buffers are left to the kernel, which grows them with the bandwidth-delay product (a size set by
    hand would end that), and so is congestion control. Inside one machine there is neither delay nor congestion: small
    buffers stay in the cache, and a control that paces (bbr) would more than halve the rate. Of a near link a
    collective uses one lane, so there is no other that segments could go by."""
    if congestion_control:
        with contextlib.suppress(OSError):  # It was allowed when it was looked at: this connection has broken since.
            _control_congestion(sock, congestion_control)
    if not _is_loopback(sock):
        if hasattr(socket, "TCP_NOTSENT_LOWAT") and round_trip_us(sock) > NEAR_S * 1e6:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, FAR_UNSENT_BYTES)
        return
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, LOOPBACK_BUFFER_BYTES)
    if not congestion_control:
        with contextlib.suppress(OSError):  # Not allowed here: slower, not wrong.
            _control_congestion(sock, "reno")


_UNKNOWN_ROUND_TRIP = (1 << 32) - 1
_MIN_ROUND_TRIP = struct.Struct("=148xI")
"""Where Linux has `tcpi_min_rtt` in its `tcp_info`, in microseconds, since 4.6; the layout only ever grows."""


def round_trip_us(sock: socket.socket) -> int:
    """The shortest round trip that the kernel has seen on a connection; 0 where it does not tell. Measured below all
    processes: a busy machine does not make its neighbour seem far."""
    if sys.platform != "linux":
        return 0
    try:
        facts = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_ROUND_TRIP.size)
    except OSError:
        return 0  # Broken already.
    if len(facts) < _MIN_ROUND_TRIP.size:
        return 0
    (shortest,) = _MIN_ROUND_TRIP.unpack(facts)
    return int(shortest) if shortest != _UNKNOWN_ROUND_TRIP else 0


def _is_loopback(sock: socket.socket) -> bool:
    try:
        host = plain_host(sock.getpeername()[0])
    except OSError:
        return False  # Broken already.
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def plain_host(host: str) -> str:
    """An IPv4 address that came in through an IPv6 socket, as others can dial it."""
    try:
        mapped = ipaddress.IPv6Address(host.partition("%")[0]).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)


# ── listening ────────────────────────────────────────────────────────────────────────────────────────────────────────


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on one port of every address of `host`; port 0 lets the kernel choose it. Raises `OSError`."""
    for _ in range(_BIND_ATTEMPTS):
        try:
            return _listen_once(host, port)
        except OSError as error:
            if port != 0 or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"no port is free on all addresses of {host}")


def _listen_once(host: str, port: int) -> list[socket.socket]:
    listeners: list[socket.socket] = []
    try:
        for family, address in _listening_addresses(host):
            chosen = listeners[0].getsockname()[1] if listeners else port
            with contextlib.suppress(_AddressMissing):
                listeners.append(_listen_on(family, (address[0], chosen, *address[2:])))
        if not listeners:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of this machine")
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _listening_addresses(host: str) -> list[Resolved]:
    if host == "":
        # One socket for both families, so that a port chosen by the kernel is one port.
        host = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return look_up(host, 0, socket.AI_PASSIVE)


class _AddressMissing(OSError):
    """A name has an address that this machine does not; another one of it may do."""


def _listen_on(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    try:
        sock = _make(family)
    except OSError as error:  # IPv6 may be compiled out or switched off.
        raise _AddressMissing(error.errno, error.strerror) from error
    try:
        # The port of a master that just ended must be free for the next one while old connections fade out.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
        sock.bind(address)
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _AddressMissing(error.errno, error.strerror) from error
        raise
    return sock


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def look_up(host: str, port: int, flags: int) -> list[Resolved]:
    """The addresses of a host; may wait for a name server. Raises `OSError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except ValueError as error:  # `UnicodeError` is one: an empty or too long part of a name, or a null in it.
        raise OSError(errno.EINVAL, f"{host!r} is not a host name") from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))  # type: ignore[misc]


def is_loopback(host: str) -> bool:
    """Only processes of this machine can reach this address. A name is looked up nowhere: only `localhost` is known."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def own_address() -> str:
    """The address under which other machines most likely reach this one: that of the route to the internet. No packet
    is sent for it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737: an address that no machine has
        except OSError:
            return "127.0.0.1"
        found: str = probe.getsockname()[0]
        return found
