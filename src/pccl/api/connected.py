"""What every call of a Communicator begins with: is this peer in a run, and is this the process that joined it?

Owns these checks and the membership that they are about. Must not know the calls.
"""

import os

from pccl.api.membership import Membership
from pccl.config import PeerConfig
from pccl.dataplane.plane import DataPlane
from pccl.dataplane.tensors.pool import Pool
from pccl.errors import UsageError


class Connected:
    """One peer's membership, from `connect` to `close`."""

    def __init__(self, config: PeerConfig, data_plane: DataPlane) -> None:
        self._config = config
        self._data_plane = data_plane
        self._process = os.getpid()
        self._membership: Membership | None = None
        self._staging = Pool()
        self._closed = False
        self._known_size = 0
        """Of our group, as the caller knows it: as of its last call that could tell."""

    def _learn_size(self) -> None:
        if self._membership is not None:
            self._known_size = self._membership.group_size

    def _connected(self, call: str) -> Membership:
        self._check_open(call)
        if self._membership is None:
            raise UsageError(f"{call}: call connect first")
        return self._membership

    def _check_outside(self, call: str, n_attempts: int) -> None:
        self._check_open(call)
        if self._membership is not None:
            raise UsageError(f"{call}: this Communicator is connected already; build a new one to join again")
        if n_attempts < 1:
            raise UsageError(f"{call}: n_attempts must be at least 1, got {n_attempts}")

    def _check_open(self, call: str) -> None:
        self._check_process()
        if self._closed:
            raise UsageError(f"{call}: this Communicator was closed; build a new one")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UsageError("this Communicator belongs to the process that built it, not to its forked children")
