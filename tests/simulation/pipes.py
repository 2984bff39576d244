"""What limits the bytes between peers: the windows of lanes that lose packets, and the way itself.

Owns the model of a link in figures, from which come how long a run takes and what the kernel would count. Does not know
runs: see `plane.py`. All links of a play are alike.
"""

from enum import Enum
from random import Random

from msgspec import Struct, structs

from pccl.core.fields import Flow, Identity

WORK_S = 4.0
"""How long a run takes over one lane: long beside what messages and luck add to it."""

ROUND_TRIP_US = 10_000
"""Of neighbours that are far enough for a collective to get more than one lane."""
SENT = 64_000_000


class Way(Enum):
    """What is seen on a link that has as many lanes as fill it."""

    QUEUE = "what is too much waits in a queue, and little is lost"
    SHALLOW = "its queue is so short that windows do not show it, and what is too much is lost"
    CLEAN = "nothing is ever lost"


class Pipe(Struct, frozen=True):
    """All links of a play."""

    way: Way
    full: int
    """So many lanes fill it."""

    def run_s(self, lanes: int) -> float:
        """How long a run takes."""
        return WORK_S / max(1, min(lanes, 1 if self.way is Way.CLEAN else self.full))

    def flow(self, lanes: int) -> Flow:
        """What the kernel has counted at the end of it."""
        held_ms = int(self.run_s(lanes) * lanes * 1000)
        full = lanes >= self.full
        lost = {Way.QUEUE: 0.0 if full else 0.001, Way.SHALLOW: 0.001, Way.CLEAN: 0.0}[self.way]
        queue_us = ROUND_TRIP_US * 10 if full and self.way is Way.QUEUE else ROUND_TRIP_US
        return Flow(SENT, int(SENT * lost), held_ms, held_ms, 0, ROUND_TRIP_US, queue_us)


def draw(random: Random) -> Pipe | None:
    """Of most seeds none: then kernels tell nothing."""
    if random.random() > 0.25:
        return None
    return Pipe(random.choice((Way.QUEUE, Way.SHALLOW, Way.SHALLOW, Way.CLEAN)), random.choice((1, 1, 2, 6, 12)))


def with_lanes_max(identity: Identity, pipe: Pipe | None) -> Identity:
    """With what the descriptors of this peer allow."""
    if pipe is None:
        return identity
    random = Random(identity.peer)
    return structs.replace(identity, lanes_max=random.choice((0, 5)) if random.random() < 0.05 else 16)
