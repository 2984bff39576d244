"""What a doctor finds out about this machine alone: installation, settings, descriptors, buffers, the port.

Each check gives findings and changes nothing. Must not know a master.
"""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pccl
from pccl.cli.version import native_part
from pccl.config import PeerConfig
from pccl.core.limits import MasterLimits, PeerLimits
from pccl.credentials import TOKEN_LIKE
from pccl.environment import VARIABLES, look_up, misspelt
from pccl.errors import UsageError
from pccl.net.bounds import peer_bounds
from pccl.release import release
from pccl.views.doctor import FAIL, OK, WARN, Finding, Setting

BUFFER_MIN = 1024 * 1024
"""Bytes that a socket's buffer may grow to: 100 Mbit/s over 80 ms need as much. Linux allows four to six times that."""

SLOW_START_AFTER_IDLE = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
"""Of this network namespace."""
SHRINKS_NOT = "sysctl -w net.ipv4.tcp_slow_start_after_idle=0"


def installation() -> Iterator[Finding]:
    """Which pccl this is, whether another one is in the way, and the native part."""
    yield Finding("release", OK, f"pccl {release()}, Python {platform.python_version()}")
    others = [*_foreign_packages(), *_foreign_commands()]
    for where in others:
        yield Finding(
            "foreign pccl",
            WARN,
            f"another pccl is at {where}",
            "remove it (pip uninstall pypccl), or take its folder off PYTHONPATH and PATH: scripts may get it instead",
        )
    native, plane = native_part(), look_up("PCCL_DATA_PLANE", "native")
    if not native.startswith("missing"):
        yield Finding("native part", OK, native)
    elif plane == "reference":
        yield Finding("native part", OK, f"{native}, and not needed for PCCL_DATA_PLANE=reference")
    else:
        fix = "install a C++20 compiler and pip install again, or set PCCL_DATA_PLANE=reference, which is slow"
        yield Finding("native part", FAIL, native, fix)


def _foreign_packages() -> Iterator[str]:
    """Folders of this name on the path of Python that are not ours, and what else is installed under it."""
    ours = Path(pccl.__file__).resolve().parent
    for entry in dict.fromkeys(sys.path):
        package = Path(entry or ".") / "pccl"
        if (package / "__init__.py").is_file() and package.resolve() != ours:
            yield str(package)
    for name in ("pypccl",):
        try:
            yield f"the installed distribution {name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _foreign_commands() -> Iterator[str]:
    """A command `pccl` that comes before that of this Python."""
    ours = Path(sys.prefix) / "bin" / "pccl"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        command = Path(folder or ".") / "pccl"
        if command.exists() and ours.exists() and command.resolve() == ours.resolve():
            return
        if command.is_file() and os.access(command, os.X_OK):
            yield str(command)
            return


def variables() -> Iterator[Finding]:
    """Those that nothing reads."""
    wrong = misspelt()
    for name, nearest in wrong:
        fix = f"did you mean {nearest}?" if nearest else "unset it; docs/tuning.md lists all that there are"
        yield Finding("variables", WARN, f"{name} is set, and nothing reads it", fix)
    if not wrong:
        count = sum(name in os.environ for name in VARIABLES)
        yield Finding("variables", OK, f"{count} set, all of them known")


def descriptors(config: PeerConfig) -> Finding:
    """Whether lanes fit into the limit of this process."""
    try:
        bounds = peer_bounds(config.lanes, config.connection_dead_s)
    except UsageError as error:
        return Finding("descriptors", FAIL, str(error), "raise the limit in the shell that starts the peer: ulimit -n")
    return Finding("descriptors", OK, f"enough for all lanes, and {bounds.strangers_max} strangers at a time")


def buffers() -> Finding:
    """Whether the kernel lets a connection have as much in flight as a long way needs."""
    small = []
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            most = int(Path(f"/proc/sys/net/ipv4/{name}").read_text().split()[-1])
        except (OSError, ValueError, IndexError):
            return Finding("buffers", OK, "this system does not say")
        if most < BUFFER_MIN:
            small.append(f"net.ipv4.{name} is {most} bytes at most")
    if small:
        return Finding("buffers", WARN, "; ".join(small), 'sysctl -w net.ipv4.tcp_rmem="4096 131072 6291456", and wmem')
    return Finding("buffers", OK, "the kernel lets them grow")


def pauses() -> Finding:
    """Whether connections keep their windows while they are silent. A hint: most systems do not, and nothing breaks."""
    try:
        shrinks = SLOW_START_AFTER_IDLE.read_text().strip() != "0"
    except OSError:
        return Finding("pauses", OK, "this system does not say")
    if shrinks:
        return Finding("pauses", OK, f"windows shrink in them; {SHRINKS_NOT} keeps them, where rounds are far apart")
    return Finding("pauses", OK, "windows stay as they are")


def settings(address: str | None) -> list[Setting]:
    """All that is in force, and where each came from."""
    limits = {
        f"PCCL_{name.upper()}": getattr(kind, name)
        for kind in (MasterLimits(), PeerLimits())
        for name in kind.__struct_fields__
    }
    found = []
    for name in VARIABLES:
        given = _shown(name, os.environ.get(name, ""))
        default = f"{limits[name]:g}" if name in limits else ""
        found.append(Setting(name, given or default, "environment" if given else "default"))
    if address:
        found[VARIABLES.index("PCCL_MASTER")] = Setting("PCCL_MASTER", _shown("PCCL_MASTER", address), "argument")
    return found


def _shown(name: str, value: str) -> str:
    """A setting without what admits: reports of a doctor are pasted into questions."""
    if name == "PCCL_TOKEN":
        return "(a token)" if value else ""
    if name != "PCCL_MASTER":
        return value
    place, separator, token = value.partition("#")
    return TOKEN_LIKE.sub("(a token)", place) + (f"{separator}(a token)" if token else separator)
