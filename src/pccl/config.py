"""Settings: what was passed as an argument, else the environment (`PCCL_…`), else the default.

Owns how a setting is found and checked. What is wrong with one is reported before any byte moves, by a `UsageError`
that names it. Must not know what the settings do.
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, TypeVar

from pccl.arguments import integer, seconds
from pccl.called import find_name, find_party
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.credentials import (
    NOT_PASSED,
    TOKEN_LIKE,
    CertificateFiles,
    CertificateSettings,
    find_certificates,
    find_token,
)
from pccl.environment import look_up
from pccl.errors import UsageError
from pccl.threads import find_threads
from pccl.uplink import UNLIMITED, Uplink

DEFAULT_PORT = 48148
"""PCCL's."""

LANES_MAX = 1024
"""What the messages that wire two neighbours can carry."""

PEERS_MAX = 65536
"""What a `Topology` message can carry."""

CONNECTION_DEAD_S = 60.0
"""A connection whose other end is out of reach is given up after this, by either end's kernel.

The kernel answers for a process that is busy or stopped, so this limit only meets a machine that is off or suspended,
or a network that is down. It applies whether or not other peers wait for that one, so it must not be stricter than the
limits on silence, which apply only if they do: an interruption of less than a minute costs no peer its place.
And not much longer either: by then TCP tries only once a minute, and every collective waits for it."""

SECONDS_MIN = 0.01
"""A limit below is less than a turn of a busy event loop: a core with one would do nothing but look at the clock."""

CONNECTION_DEAD_MIN_S = 5.0
"""TCP sends again after one second and three: below this, two lost segments in a row would be a death."""

SERVE_BYTES_S = 10_000_000
"""What a peer gives visitors of its bandwidth: 80 Mbit/s are little beside a data centre's link, and three holders
bring a newcomer 10 GB in six minutes. Who trains behind a home's uplink lowers it."""

SERVE_BYTES_MIN_S = 65_536
"""With less, a lane might wait for a turn until the visitor takes it for dead."""

DATA_PLANES = ("native", "reference")
"""The reference one is the readable one: slow, and of use where no compiler was."""

GROUP_MAX = 2**32 - 1
HOST_MAX = 255
ANNOUNCED_HOST = re.compile(r"[0-9A-Za-z._:%-]*")
"""What the `Join` message can carry."""

_MOST = {"default_lanes": LANES_MAX, "peers_max": PEERS_MAX}
"""Whole numbers that are bounded by more than their size."""

_MAY_BE_OFF = ("vote_timeout_s", "undecided_s")
"""Limits of which 0 means that there is none."""

_SWITCHES = {"1": True, "on": True, "0": False, "off": False}

LOG_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERR": logging.ERROR,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "NONE": logging.CRITICAL + 1,
}

Limits = TypeVar("Limits", MasterLimits, PeerLimits)


class MasterLimitSettings(TypedDict, total=False):
    """Limits that may be passed to `MasterNode`; see `core.limits` for what each means and why it is what it is. The
    last one is about sockets, which a core does not know: see `CONNECTION_DEAD_S`."""

    silence_s: float
    candidate_silence_s: float
    vote_timeout_s: float
    link_timeout_s: float
    redial_s: float
    avoid_s: float
    undecided_s: float
    reunion_s: float
    newborn_s: float
    explain_after_s: float
    default_lanes: int
    mesh_peers_max: int
    mesh_lanes_max: int
    spare_redial_s: float
    peers_max: int
    candidates_max: int
    address_candidates_max: int
    tags_max: int
    connection_dead_s: float


class PeerLimitSettings(TypedDict, total=False):
    """Limits that may be passed to `Communicator`; see `core.limits` for what each means and why it is what it is. The
    last two are about sockets, which a core does not know: see `CONNECTION_DEAD_S` and `SERVE_BYTES_S`."""

    master_silence_s: float
    master_timeout_s: float
    master_redial_s: float
    dial_timeout_s: float
    lanes_max: int
    early_offer_s: float
    early_offers_max: int
    stall_s: float
    connection_dead_s: float
    serve_bytes_s: int


@dataclass(frozen=True)
class Address:
    """A host (empty: any) and a port (0: any)."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class MasterConfig:
    """Everything a master can be told."""

    listen: Address
    limits: MasterLimits
    connection_dead_s: float
    secret_file: Path | None = None
    """Where its secret lies; None for a master with certificates, or one that lets in all who reach it."""
    certificates: CertificateFiles | None = None
    """Of an own CA, in place of a secret."""

    @classmethod
    def resolve(
        cls,
        listen: str,
        limits: MasterLimitSettings,
        secret: str | os.PathLike[str] | None = None,
        certificates: CertificateSettings = NOT_PASSED,
    ) -> "MasterConfig":
        address = parse_address("listen_address", listen, port_required=False)
        if not address.port and not listen.endswith(":0"):
            address = Address(address.host, DEFAULT_PORT)
        file = look_up("PCCL_SECRET_FILE") if secret is None else os.fspath(secret)
        secret_file = Path(file).expanduser() if file else None
        files = find_certificates(certificates, "secret (PCCL_SECRET_FILE)" if secret_file else "")
        return cls(address, _limits(MasterLimits(), limits), _connection_dead_s(limits), secret_file, files)


class Places(NamedTuple):
    """Where a peer is, and with which others, in the words of its user; empty means: not passed."""

    listen: str = ""
    announce: str = ""
    name: str | None = None
    token: str | None = None
    certificates: CertificateSettings = NOT_PASSED
    party: str | None = None
    party_size: int | None = None
    congestion_control: str = ""
    max_upload_mbps: float = 0.0
    lane_threads: int = 0


@dataclass(frozen=True)
class PeerConfig:
    """Everything a peer can be told."""

    master: Address
    name: str
    """What people call this peer."""
    group: int
    lanes: int
    """Lanes per neighbour; 0 leaves it to the group."""
    listen: Address
    announce: Address
    """Where neighbours shall dial this peer; what is left out is where it listens, seen from the master."""
    limits: PeerLimits
    connection_dead_s: float
    serve_bytes_s: int
    """What visitors that fetch the shared state may have of our bandwidth; 0 for nothing."""
    token: str = field(default="", repr=False)
    """What admits this peer, and pins its master; empty where the master has no secret."""
    certificates: CertificateFiles | None = None
    """Of an own CA, in place of a token."""
    party: str = ""
    """To which this peer belongs; empty if it is one of its own."""
    party_size: int = 1
    uplink: Uplink = UNLIMITED
    threads: int = 1
    """For each collective."""

    @classmethod
    def resolve(
        cls, address: str | None, group: int, lanes: int, places: "Places", limits: PeerLimitSettings
    ) -> "PeerConfig":
        token, party = find_token(address, places.token), find_party(places.party, places.party_size)
        return cls(
            find_master(address),
            find_name(places.name),
            integer("peer_group", group, 0, GROUP_MAX),
            integer("p2p_connection_pool_size (PCCL_LANES)", lanes or look_up("PCCL_LANES", "0"), 0, LANES_MAX),
            _place("listen", "PCCL_LISTEN", places.listen),
            _announced(_place("announce", "PCCL_ANNOUNCE", places.announce)),
            _limits(PeerLimits(), limits, "serve_bytes_s"),
            _connection_dead_s(limits),
            _serve_bytes_s(limits),
            token,
            find_certificates(places.certificates, "token (PCCL_TOKEN)" if token else ""),
            *party,
            Uplink.resolve(places.congestion_control, places.max_upload_mbps),
            find_threads(places.lane_threads, party[1]),
        )


def parse_address(setting: str, text: str, *, port_required: bool = True) -> Address:
    """`host:port`, `[IPv6]:port`, `:port` and, where no port is needed, `host` or `[IPv6]` alone."""
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon:
        host, colon, port = text, "", ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(
            f"{setting} must have an IPv6 address in brackets, got {text!r}; write it like [::1]:{DEFAULT_PORT}"
        )
    if not port and (port_required or colon):
        raise UsageError(f"{setting} must have a port, got {text!r}; write host:port, like 127.0.0.1:{DEFAULT_PORT}")
    return Address(_host(setting, host), integer(f"{setting}: the port in {text!r}", port or 0, 0, 65535))


def find_master(address: str | None) -> Address:
    """The address of the master: what was passed, else that of the environment."""
    text = look_up("PCCL_MASTER") if address is None else address
    if not isinstance(text, str) or not text.strip():
        raise UsageError(
            f"address must be the master's host:port, got {text!r}; pass it, or set PCCL_MASTER, like "
            f"PCCL_MASTER=127.0.0.1:{DEFAULT_PORT}"
        )
    place = text.partition("#")[0]
    if TOKEN_LIKE.search(place):
        raise UsageError(
            "address must be the master's host:port, got what may be a token in its place; write pccl://host:port#token"
        )
    return parse_master(place)  # No error below may show a token.


def parse_master(text: str) -> Address:
    """The address of the master; its port is the usual one unless another is given."""
    if "," in text:
        raise UsageError(
            f"address must be one host:port, got {text!r}; give the master one name, which is looked up at every "
            "dial: a master that moves to another machine is found behind it"
        )
    scheme, separator, rest = text.strip().rpartition("://")
    if separator and scheme != "pccl":
        raise UsageError(f"address must be host:port, got {text!r}; write {rest}")
    master = parse_address("address", rest, port_required=False)
    if not master.host or text.strip().endswith(":0"):
        raise UsageError(f"address must have the master's host and port, got {text!r}; write host:port")
    return Address(master.host, master.port or DEFAULT_PORT)


def _host(setting: str, host: str) -> str:
    """The host as it is written on the wire and asked for: in ASCII, whatever it was."""
    if len(host) > HOST_MAX or any(not character.isprintable() or character in " []" for character in host):
        raise UsageError(f"{setting} must have a host name or an IP address, got {host!r}")
    try:
        return host.encode("idna").decode("ascii") if host else host
    except UnicodeError as error:
        raise UsageError(f"{setting} must have a host name or an IP address, got {host!r}: {error}") from error


def _announced(address: Address) -> Address:
    if not ANNOUNCED_HOST.fullmatch(address.host):
        raise UsageError(
            f"announce (PCCL_ANNOUNCE) must be made of letters, digits, '.', '-' and '_', got {address.host!r}; "
            "announce another name, or an IP address"
        )
    return address


def choose_data_plane(name: str) -> str:
    """The data plane to use; empty means: not passed."""
    chosen = name or look_up("PCCL_DATA_PLANE", DATA_PLANES[0])
    if chosen not in DATA_PLANES:
        raise UsageError(f"data_plane (PCCL_DATA_PLANE) must be one of {', '.join(DATA_PLANES)}, got {chosen!r}")
    return chosen


def choose_lane_tls(given: str) -> bool:
    """Whether the bytes of lanes are sealed, where there is a token; empty means: not passed."""
    chosen = given or look_up("PCCL_LANE_TLS", "on")
    if chosen not in ("on", "off"):
        raise UsageError(f"lane_tls (PCCL_LANE_TLS) must be on or off, got {chosen!r}")
    return chosen == "on"


def switched_on(setting: str, passed: bool | None) -> bool:
    """A setting that is on unless it is switched off; None means: not passed."""
    variable = f"PCCL_{setting.upper()}"
    text = look_up(variable, "1").lower()
    if text not in _SWITCHES:
        raise UsageError(f"{setting} ({variable}) must be one of {', '.join(_SWITCHES)}, got {text!r}")
    return _SWITCHES[text] if passed is None else passed


def _place(setting: str, variable: str, passed: str) -> Address:
    return parse_address(f"{setting} ({variable})", passed or look_up(variable, ""), port_required=False)


def _limits(defaults: Limits, passed: Mapping[str, Any], *others: str) -> Limits:
    values: dict[str, Any] = {}
    for name in defaults.__struct_fields__:
        setting, value = _setting(name, passed, getattr(defaults, name))
        if isinstance(getattr(defaults, name), float):
            values[name] = seconds(setting, value, 0.0 if name in _MAY_BE_OFF else SECONDS_MIN)
        else:
            values[name] = integer(setting, value, 1, _MOST.get(name, 2**31))
    known = (*values, "connection_dead_s", *others)
    unknown = sorted(set(passed) - set(known))
    if unknown:
        raise UsageError(f"a setting must be one of {', '.join(known)}, got {unknown[0]!r}")
    return type(defaults)(**values)


def _connection_dead_s(passed: Mapping[str, Any]) -> float:
    setting, value = _setting("connection_dead_s", passed, CONNECTION_DEAD_S)
    return seconds(setting, value, CONNECTION_DEAD_MIN_S)


def _serve_bytes_s(passed: Mapping[str, Any]) -> int:
    setting, value = _setting("serve_bytes_s", passed, SERVE_BYTES_S)
    number = integer(setting, value, 0, 2**63 - 1)
    if 0 < number < SERVE_BYTES_MIN_S:
        raise UsageError(f"{setting} must be 0 (serve no visitors) or at least {SERVE_BYTES_MIN_S}, got {number}")
    return number


def _setting(name: str, passed: Mapping[str, Any], default: float) -> tuple[str, object]:
    """What to call a setting in an error, and its value."""
    variable = f"PCCL_{name.upper()}"
    value = passed.get(name)
    return f"{name} ({variable})", (look_up(variable, "") or default) if value is None else value
