"""Who may look on while the peers of this process work: traces, and tools that let a process die at a chosen point.

Owns the list of watchers, which is empty unless such a tool adds one. Must not know what a watcher is for.
"""

from pccl.core.effects.peer_effects import PeerEffect
from pccl.dataplane.plane import DataPlane


class Watcher:
    """Does nothing; override what is of interest. All methods are called in the control thread of the peer, which waits
    until they return, and none may raise."""

    def listening(self, port: int) -> None:
        """The peer's port for lanes is open; the peer has not announced it yet."""

    def before(self, effect: PeerEffect, plane: DataPlane) -> None:
        """This effect is about to be carried out."""

    def after(self, effect: PeerEffect, plane: DataPlane) -> None:
        """It has been, or has begun if it takes time."""


watchers: list[Watcher] = []
"""Of every peer that this process starts from now on, and of those it has."""
