"""The limit on what a peer sends to others, divided among the lanes that are in use.

Owns the rate of each lane where there is a limit. Must not know what is sent.
"""

import socket
from collections.abc import Iterable, Mapping

from pccl.net import sockets

LaneKey = tuple[int, int]

PARCELS_SHARE = 0.125
"""Of the limit, for the lanes of parcels together: they may be in use beside others, and carry little."""


class Pacing:
    """Of all lanes of one peer. Without a limit nothing is done."""

    def __init__(self, max_upload_mbps: float) -> None:
        self._bytes_s = max_upload_mbps * 1e6 / 8
        self._lent: dict[LaneKey, socket.socket] = {}
        self._parcels: dict[LaneKey, socket.socket] = {}

    def lend(self, lanes: Mapping[LaneKey, socket.socket]) -> None:
        """These are sent on from now on; the others get less."""
        if self._bytes_s:
            self._lent |= lanes
            self._divide(self._lent, 1 - PARCELS_SHARE)

    def give_back(self, keys: Iterable[LaneKey]) -> None:
        """These are not sent on any more; the others get more."""
        if self._bytes_s:
            for key in keys:
                self._lent.pop(key, None)
            self._divide(self._lent, 1 - PARCELS_SHARE)

    def carry_parcels(self, key: LaneKey, sock: socket.socket) -> None:
        """This one is for parcels, as long as it stands."""
        if self._bytes_s:
            self._parcels = {each: known for each, known in self._parcels.items() if known.fileno() >= 0}
            self._parcels[key] = sock
            self._divide(self._parcels, PARCELS_SHARE)

    def _divide(self, lanes: Mapping[LaneKey, socket.socket], share: float) -> None:
        for sock in lanes.values():
            sockets.pace(sock, self._bytes_s * share / len(lanes))
