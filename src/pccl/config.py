"""Settings: what was passed as an argument, else the environment (`PCCL_…`), else the default.

Owns the one place that reads the environment. What is wrong with a setting is said before any byte moves, by a
`UsageError` that names it. Must not know what the settings do.
"""

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from pccl.core.limits import MasterLimits, PeerLimits
from pccl.errors import UsageError

DEFAULT_PORT = 48148
"""PCCL's."""

LANES_MAX = 1024
DATA_PLANES = ("native", "reference")
"""The reference one is the readable one: slow, and of use where no compiler was."""

GROUP_MAX = 2**32 - 1
"""What the `Join` message can carry."""

_LOG_LEVELS = {
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
    """Limits that may be passed to `MasterNode`; see `core.limits` for what each means and why it is what it is."""

    silence_s: float
    candidate_silence_s: float
    link_timeout_s: float
    redial_s: float
    avoid_s: float
    explain_after_s: float
    default_lanes: int
    peers_max: int
    tags_max: int


class PeerLimitSettings(TypedDict, total=False):
    """Limits that may be passed to `Communicator`; see `core.limits` for what each means and why it is what it is."""

    master_silence_s: float
    dial_timeout_s: float
    early_offer_s: float
    early_offers_max: int
    stall_s: float


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

    @classmethod
    def resolve(cls, listen: str, limits: MasterLimitSettings) -> "MasterConfig":
        address = parse_address("listen_address", listen)
        return cls(address, _limits(MasterLimits(), limits))


@dataclass(frozen=True)
class PeerConfig:
    """Everything a peer can be told."""

    master: Address
    group: int
    lanes: int
    """Lanes per neighbour; 0 leaves it to the group."""
    listen: Address
    announce: Address
    """Where neighbours shall dial this peer; what is left out is where it listens, seen from the master."""
    limits: PeerLimits

    @classmethod
    def resolve(
        cls, address: str, group: int, lanes: int, places: tuple[str, str], limits: PeerLimitSettings
    ) -> "PeerConfig":
        """`places` are the listen and the announce address; empty means: not passed."""
        listen, announce = places
        master = parse_address("address", address)
        if not master.host or not master.port:
            raise UsageError(f"address: {address!r} must name the master's host and port")
        return cls(
            master,
            _integer("peer_group", group, 0, GROUP_MAX),
            _integer("p2p_connection_pool_size (PCCL_LANES)", lanes or _environment("PCCL_LANES", "0"), 0, LANES_MAX),
            _place("listen", "PCCL_LISTEN", listen),
            _place("announce", "PCCL_ANNOUNCE", announce),
            _limits(PeerLimits(), limits),
        )


def parse_address(setting: str, text: str, *, port_required: bool = True) -> Address:
    """`host:port`, `[IPv6]:port`, `:port` and, where no port is needed, `host` or `[IPv6]` alone."""
    host, colon, port = text.rpartition(":")
    if text.endswith("]") or not colon:
        host, colon, port = text, "", ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{setting}: {text!r}: write an IPv6 address in brackets, like [::1]:{DEFAULT_PORT}")
    if not port and (port_required or colon):
        raise UsageError(f"{setting}: {text!r} has no port; write host:port, like 127.0.0.1:{DEFAULT_PORT}")
    if len(host) > 255 or any(character.isspace() or character in "[]" for character in host):
        raise UsageError(f"{setting}: {host!r} is no host name or address")
    return Address(host, _integer(f"{setting}: the port of {text!r}", port or 0, 0, 65535))


def choose_data_plane(name: str) -> str:
    """The data plane to use; empty means: not passed."""
    chosen = name or _environment("PCCL_DATA_PLANE", DATA_PLANES[0])
    if chosen not in DATA_PLANES:
        raise UsageError(f"data_plane (PCCL_DATA_PLANE): {chosen!r} is none of {', '.join(DATA_PLANES)}")
    return chosen


def configure_logging() -> None:
    """Obey `PCCL_LOG_LEVEL` if it is set; else leave the `pccl` logger to the program.

    By default Python prints what is WARNING and above, and that is where a wait is told of: a training script that
    stands still says on whom it waits, without anybody having asked for it beforehand. PCCL prints errors only, and a
    run that waits for a lost peer then looks like any other."""
    name = _environment("PCCL_LOG_LEVEL", "")
    if not name:
        return
    level = _LOG_LEVELS.get(name.upper())
    if level is None:
        raise UsageError(f"PCCL_LOG_LEVEL: {name!r} is none of {', '.join(_LOG_LEVELS)}")
    logger = logging.getLogger("pccl")
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s pccl %(levelname)s %(message)s"))
        logger.addHandler(handler)


def _place(setting: str, variable: str, passed: str) -> Address:
    return parse_address(f"{setting} ({variable})", passed or _environment(variable, ""), port_required=False)


def _environment(name: str, default: str) -> str:
    return os.environ.get(name, "") or default


def _limits(defaults: Limits, passed: Mapping[str, Any]) -> Limits:
    values: dict[str, Any] = {}
    for name in defaults.__struct_fields__:
        value = passed.get(name)
        if value is None:
            value = _environment(f"PCCL_{name.upper()}", "") or getattr(defaults, name)
        setting = f"{name} (PCCL_{name.upper()})"
        if isinstance(getattr(defaults, name), float):
            values[name] = _seconds(setting, value)
        else:
            values[name] = _integer(setting, value, 1, 2**31)
    unknown = sorted(set(passed) - set(values))
    if unknown:
        raise UsageError(f"there is no setting {unknown[0]!r}; known are {', '.join(values)}")
    return type(defaults)(**values)


def _seconds(setting: str, value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not (0 < seconds < math.inf):
        raise UsageError(f"{setting}: {value!r} is no number of seconds above 0")
    return seconds


def _integer(setting: str, value: object, least: int, most: int) -> int:
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not (least <= number <= most):
        raise UsageError(f"{setting}: {value!r} is no whole number from {least} to {most}")
    return number
