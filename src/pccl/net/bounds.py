"""How much of a process the network may use: descriptors, strangers, and the time of a connection that is dead.

Owns the arithmetic of descriptors. Must not know what is sent on a connection.
"""

import contextlib
import resource
from dataclasses import dataclass

from pccl.config import CONNECTION_DEAD_S
from pccl.core.limits import MasterLimits
from pccl.core.rules.lanes import LANES_MAX
from pccl.errors import UsageError
from pccl.uplink import UNLIMITED, Uplink

STRANGERS_MAX = 1024
"""Connections at once that have not said who they are (or are being told goodbye). A thousand peers that come back
after a restart are strangers for one round trip. Past this the oldest of the address that has most goes: a flood of
silent connections pushes out its own (`listening.Strangers`)."""

_LINKS_AT_ONCE = 4
"""While a new ring is tried the old one stands: two neighbours in each. In a mesh the old one are all other peers."""

_WIDE_LINKS_AT_ONCE, _WIDE_CALLERS_AT_ONCE = 4, 3
"""Links that have as many lanes as the group has come to need: two neighbours in each of two rings, or the three of a
group of four (`core/master/widths.py`), which may all dial at once."""

_CALLERS_AT_ONCE = 2
"""Both neighbours of a new ring may dial all their lanes in the same instant."""

_UNLIMITED = 2**20
"""What an unlimited number of descriptors is counted as."""


@dataclass(frozen=True)
class Bounds:
    """What the shell of a peer or a master puts up with."""

    connection_dead_s: float = CONNECTION_DEAD_S
    """An end that is out of reach is given up after this."""
    strangers_max: int = STRANGERS_MAX
    lanes_max: int = 0
    """To each of a few neighbours, where the master chooses the number; 0 for no more than are asked for."""
    uplink: Uplink = UNLIMITED


def raise_descriptor_limit() -> None:
    """Use as many descriptors as the administrator allows: the soft limit is there for programs that call `select`.

    For a master, whose process is ours. A peer lives in the process of a trainer, where any library may call `select`,
    which overwrites memory when it meets a descriptor above 1,023: there the limit is the trainer's to raise, and
    `peer_bounds` makes do with what it finds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # Kept as it is where the system forbids even this.
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def peer_bounds(lanes: int, connection_dead_s: float) -> Bounds:
    """The bounds of a peer with this many lanes to a neighbour; 0 when the group decides.

    Of the descriptors of its process strangers get an eighth, lanes offered too early another one (both more if that is
    what its neighbours dial at once), and a quarter stays the trainer's, whatever comes in: so a stranger cannot keep a
    training script from opening its next file. Of that quarter a collective takes one while it runs. Raises
    `UsageError` when the lanes do not fit into the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
    master = MasterLimits()
    expected = lanes or master.default_lanes
    per_link = expected + 1  # the express lane
    meshed = expected <= master.mesh_lanes_max
    links = master.mesh_peers_max + 1 if meshed else _LINKS_AT_ONCE
    strangers = max(min(descriptors // 8, STRANGERS_MAX), _CALLERS_AT_ONCE * per_link)
    least = links * per_link + 2 * _CALLERS_AT_ONCE * per_link
    if least > descriptors - descriptors // 4:
        raise UsageError(
            f"p2p_connection_pool_size (PCCL_LANES): {expected} lanes to each neighbour can take {least} descriptors "
            f"while the ring changes, and this process may have {descriptors}, of which a quarter is left to the "
            f"trainer: raise the limit (ulimit -n {least + least // 3 + 1}), or use fewer lanes"
        )
    if lanes:
        return Bounds(connection_dead_s, strangers)
    spare = descriptors - descriptors // 4 - links * per_link
    widest = min(LANES_MAX, spare // (_WIDE_LINKS_AT_ONCE + 2 * _WIDE_CALLERS_AT_ONCE) - 1)
    return Bounds(connection_dead_s, max(strangers, _WIDE_CALLERS_AT_ONCE * (widest + 1)), max(0, widest))
