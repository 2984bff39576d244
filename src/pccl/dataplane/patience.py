"""How long an attempt or a transfer may go on: time uses its patience up, and what moves gives some back.

Owns when one has stalled. `native/patience.hpp` is its twin. Pure: it is told how much time has passed. Must not know
what the bytes are.

That any byte is progress would let one neighbour hold a collective for ever, with a byte now and then. That so many
bytes must come in so long would blame honest ones: in a ring of a thousand, a tensor of a few bytes takes minutes, all
of them round trips; and a peer whose previous one is slow has nothing to send. So what counts is the attempt as a
whole, both ways and on all lanes together, and each of its parts pays for some time:

- It begins with `stall_s`, and never has more. Time takes from it; at zero it has stalled. With nothing moving that is
  after `stall_s`, as ever, and a machine that was stopped and comes back within that costs no peer anything.
- Each byte pays for as long as it takes at the least rate, `BYTES_MIN_S`.
- Each segment that is complete pays for `SEGMENT_S` more: a hop of a ring that is all round trips takes less. Where
  there are few segments they pay for more, so that each of a tiny tensor between two peers pays for all of `stall_s`.
- Bytes of earlier attempts pay for nothing.

So an attempt lasts no longer than its bytes do at the least rate, two seconds for each segment, and five times
`stall_s`. Every peer of the ring comes to the same end at the same time, wherever it stands, and none is blamed for
what its previous peer did not send: the attempt fails, its lanes that stand in the middle of a segment are remade.
"""

BYTES_MIN_S = 8_900
"""Bytes a second, both ways and on all lanes of an attempt together. A tenth of what one lane reaches with a round trip
of 200 ms and a loss of 1 % (Mathis: 1,460 B / 0.2 s * 1.22 / sqrt(0.01) = 89 kB/s), so that no honest link meets it; as
both directions count, and segments besides, 4 kB/s each way are enough."""

SEGMENT_S = 2.0
"""A segment crosses a link in half a round trip; one that was lost is sent again within a second."""

SPREAD = 4
"""All segments together pay for at least this many times `stall_s`: several machines may stand still one after the
other while a small tensor travels."""

TURN_MAX_S = 0.5
"""What one turn of a loop may cost, which sleeps for 0.2 s at most: if it took longer, this process stood still, and
what others sent meanwhile is still unread."""


class Patience:
    """What is left of it."""

    def __init__(self, stall_s: float, segments: int, bytes_min_s: float = BYTES_MIN_S) -> None:
        """`stall_s`: 0 for any amount of it. `bytes_min_s`: 0 if any byte is progress."""
        self._stall_s = self._left_s = stall_s
        self._byte_s = 1 / bytes_min_s if bytes_min_s else stall_s
        self._segment_s = max(SEGMENT_S, SPREAD * stall_s / max(1, segments))
        self._idle_s = 0.0

    def spend(self, seconds: float, nbytes: int = 0, segments: int = 0) -> None:
        """So much time has passed, so many bytes of it have moved, so many of its segments are complete."""
        seconds = min(seconds, TURN_MAX_S)
        self._idle_s = 0.0 if nbytes else self._idle_s + seconds
        earned_s = nbytes * self._byte_s + segments * self._segment_s
        self._left_s = min(self._left_s + earned_s, self._stall_s) - seconds

    @property
    def cause(self) -> str:
        """Why it is over; empty while it is not."""
        if self._stall_s <= 0 or self._left_s >= 0:
            return ""
        idle = self._idle_s >= self._stall_s
        return "no byte moved for too long" if idle else "too few bytes moved for too long"
