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


FEW_SENT, FAR_US = 16_000_000, 40_000
"""Where lanes change nothing: such a run lasts a hundred round trips, of which windows that grow are a part."""

COLD_TRIPS = 16
"""Round trips that the first run over new links takes longer."""

LOSS, MUCH_LOSS = 0.001, 0.03

MENDED_S = 2.0
"""How long a run takes where nothing is lost any more: long beside luck, and short enough for many."""


class Way(Enum):
    """What is seen on a link that has as many lanes as fill it."""

    QUEUE = "what is too much waits in a queue, and little is lost"
    SHALLOW = "its queue is so short that windows do not show it, and what is too much is lost"
    CLEAN = "nothing is ever lost"
    FULL = "what is too much waits in a queue, and as much is lost as before"
    DEAF = "losses change nothing, as under bbr, nor do lanes"
    FAST = "the same, and so much is lost that nothing else would be as fast"
    MENDED = "as with a short queue at first; later nothing is lost any more, over however few lanes"


class Pipe(Struct, frozen=True):
    """All links of a play."""

    way: Way
    full: int
    """So many lanes fill it."""
    long_runs: int = 0
    """So many runs at first are of four times as many bytes, as where a state is pulled."""
    mended_at: int = 0
    """The first run without a loss."""

    def run_s(self, lanes: int, nth: int, cold: bool) -> float:
        """How long a run takes; `cold`: it is the first one over its links."""
        if self.way is Way.MENDED and nth >= self.mended_at:
            return MENDED_S
        full = 1 if self.way is Way.CLEAN else self.full
        warming_s = COLD_TRIPS * FAR_US / 1e6 if cold and self._deaf else 0.0
        return WORK_S * self._length(nth) / max(1, min(lanes, full)) + warming_s

    def flow(self, lanes: int, nth: int) -> Flow:
        """What the kernel has counted at the end of it."""
        held_ms = int(self.run_s(lanes, nth, False) * lanes * 1000)
        lossless = {
            Way.CLEAN: True,
            Way.QUEUE: lanes >= self.full,
            Way.MENDED: nth >= self.mended_at,
        }
        lost = 0.0 if lossless.get(self.way) else MUCH_LOSS if self.way is Way.FAST else LOSS
        sent = (FEW_SENT if self._deaf else SENT) * self._length(nth)
        trip_us = FAR_US if self._deaf else ROUND_TRIP_US
        return Flow(sent, int(sent * lost), held_ms, held_ms, 0, trip_us, trip_us * (10 if self.queue(lanes) else 1))

    def queue(self, lanes: int) -> bool:
        """One stands."""
        return lanes >= self.full and self.way in (Way.QUEUE, Way.FULL)

    @property
    def _deaf(self) -> bool:
        return self.way in (Way.DEAF, Way.FAST)

    def _length(self, nth: int) -> int:
        return 4 if nth <= self.long_runs else 1


def draw(random: Random) -> Pipe | None:
    """Of most seeds none: then kernels tell nothing."""
    if random.random() > 0.25:
        return None
    pipe = Pipe(random.choice((Way.QUEUE, Way.SHALLOW, Way.SHALLOW, Way.CLEAN)), random.choice((1, 1, 2, 6, 12)))
    # Drawn thereafter, so that the others stay the runs that they were.
    if random.random() < 0.5:
        return pipe
    ways = (Way.SHALLOW, Way.SHALLOW, Way.FULL, Way.FULL, Way.DEAF, Way.DEAF, Way.FAST, Way.MENDED, Way.MENDED)
    way = random.choice(ways)
    full = 1 if way in (Way.DEAF, Way.FAST) else 12 if way is Way.MENDED else pipe.full
    long_runs = random.choice((1, 2, 3)) if way is Way.SHALLOW else 0
    return Pipe(way, full, long_runs, random.randrange(4, 10))


def with_lanes_max(identity: Identity, pipe: Pipe | None) -> Identity:
    """With what the descriptors of this peer allow."""
    if pipe is None:
        return identity
    random = Random(identity.peer)
    return structs.replace(identity, lanes_max=random.choice((0, 5)) if random.random() < 0.05 else 16)
