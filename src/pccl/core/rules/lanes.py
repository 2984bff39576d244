"""How many lanes the links of a group shall have, from what its peers measured: a pure rule, and what it remembers.

A window that losses keep small bounds what one connection carries, however much the way could: more lanes carry more.
A window that is full of what waits in a queue does not: then the way is full. So the number grows while losses press
and no queue stands, is kept only if the rate grew with it, and falls when nothing was lost for long. A wrong guess
costs two collectives at another number, and the next one waits twice as long.

Does not know links, peers or messages. Rules: docs/protocol.md, "Lanes".
"""

from collections.abc import Iterable
from math import inf

from msgspec import Struct

from pccl.core.fields import Flow
from pccl.core.rules.schedule import NEAR_S

LANES_MAX = 256
"""No link is given more, unless its users ask for it: with 1 % of packets lost at 80 ms they carry some 400 Mbit/s.
What the descriptors of a process allow is mostly less (`net/bounds.py`)."""

FACTOR = 4
"""Two steps from the default lead to where plain streams fill a link of 100 Mbit/s that loses 0.1 %: each costs links
that are made again, and a start with small windows."""

ROUND_TRIPS_MIN = 16
"""Something shorter is over before windows have found their size."""

LANE_BYTES_MIN = 128 * 1024
"""Sent on each lane on average: with less, most of a lane's windows were never full."""

LOST_MIN = 2e-5
"""Below this share of bytes sent again, one lane carries 100 Mbit/s over 30 ms by itself: no reason for more."""

QUEUE_SHARE, QUEUE_MIN_S = 0.25, 0.005
"""A round trip that is by so much longer than the shortest one is a queue: the way is full."""

BUSY_MIN, LIMITED_MIN = 0.5, 0.5
"""A lane that had nothing in flight for half of its time is not what all wait for. One that was held up for half of
its busy time by a buffer of fixed length carries no more than that per round trip, as with losses."""

GAIN = 1.05
"""A change that brings less than this is none; rates over the internet differ by more from one minute to the next."""

LOOKS = 2
"""Collectives before a change is judged: the first one begins with small windows."""

UNLIKE = 4
"""Collectives of a length that was never seen before a change, until it is taken back to see them there: what lengths
take turns in a step was seen then."""

QUIET = 8
"""Collectives without a loss, one after the other, before fewer lanes are tried."""

HOLD_S, HOLD_MAX_S = 60.0, 3600.0
"""Pause after a change that brought nothing, doubled each time: ways change by the minute, and a link that is what it
is costs two collectives an hour."""


class Look(Struct, frozen=True):
    """What was measured from when a group began to send until it was silent, on its slowest link."""

    lanes: int
    seconds: float
    flow: Flow

    @property
    def rate(self) -> float:
        """Bytes per second."""
        return self.flow.sent / self.seconds

    @property
    def length(self) -> int:
        """A power of two: rates of what is as long are comparable. It does not change at a power of two itself, nor at
        what a ring sends of one, so that some bytes more or less of a usual tensor make no other length."""
        return (self.flow.sent * 6 // 7).bit_length()

    @property
    def lost(self) -> float:
        """The share of bytes that were sent again."""
        return self.flow.resent / max(1, self.flow.sent)

    @property
    def enough(self) -> bool:
        """It lasted long enough, and enough was sent, to tell anything."""
        long = self.seconds >= ROUND_TRIPS_MIN * self.flow.shortest_us / 1e6 > 0
        return long and self.flow.sent >= self.lanes * LANE_BYTES_MIN

    @property
    def presses(self) -> bool:
        """Windows are kept small by losses, or by buffers, while the way has room. Not where neighbours are near: a
        collective gets one lane there."""
        flow, shortest_s = self.flow, self.flow.shortest_us / 1e6
        queue_s = flow.smoothed_us / 1e6 - shortest_s
        held_up = self.lost >= LOST_MIN or flow.limited_ms >= LIMITED_MIN * max(1, flow.busy_ms)
        room = queue_s <= max(QUEUE_MIN_S, QUEUE_SHARE * shortest_s)
        return held_up and room and shortest_s > NEAR_S and flow.busy_ms >= BUSY_MIN * flow.held_ms

    def explain(self) -> str:
        """The figures, in words."""
        lane_mbps = self.rate * 8 / 1e6 / self.lanes
        trip = f"round trip {self.flow.smoothed_us / 1e3:.0f} of {self.flow.shortest_us / 1e3:.0f} ms"
        return f"{self.lost * 100:.2g} % lost, {lane_mbps:.3g} Mbit/s a lane, {trip}"


def look(flows: Iterable[Flow], lanes: int, seconds: float) -> Look | None:
    """On the slowest of these links, which is the one whose lanes were busy for most of their time."""
    known = [flow for flow in flows if flow.sent and flow.shortest_us]
    if not known or seconds <= 0:
        return None
    return Look(lanes, seconds, max(known, key=lambda flow: (flow.busy_ms / max(1, flow.held_ms), flow.resent)))


class Change(Struct):
    """A number that is tried, and what it is compared with."""

    before: int
    rates: dict[int, tuple[float, ...]]
    looks: int = 0
    unlike: int = 0
    gain: float = 0.0


class Tuner:
    """The number of one group."""

    def __init__(self, lanes: int, least: int) -> None:
        self.lanes = lanes
        self.least = least
        """What the group began with: it never has fewer."""
        self.reason = ""
        """Of the last change, in words."""
        self._change: Change | None = None
        self._rates: dict[int, tuple[float, ...]] = {}
        """By length, the last that were seen with the present number, unless that is on trial: as many as a trial has,
        of which the best counts here and there, or rates that go up and down would be a gain."""
        self._quiet = 0
        self._held_until = -inf
        self._hold_s = HOLD_S

    def judge(self, seen: Look, most: int, now: float) -> str:
        """Choose a number for what comes next; why, if it is another one."""
        if not seen.enough or seen.lanes != self.lanes:
            return ""
        if self._change is not None:
            verdict = self._verify(self._change, seen, now)
            if verdict is None or verdict:
                return verdict or ""
        self._rates[seen.length] = (*self._rates.get(seen.length, ()), seen.rate)[-LOOKS:]
        self._quiet = 0 if seen.flow.resent else self._quiet + 1
        if now < self._held_until:
            return ""
        wanted = self.lanes
        if seen.presses:
            # What is too short for more lanes could not tell of them.
            wanted = max(self.lanes, min(self.lanes * FACTOR, most, seen.flow.sent // LANE_BYTES_MIN))
        elif self._quiet >= QUIET:
            wanted = max(self.least, self.lanes // 2)
        if wanted == self.lanes:
            return ""
        self._change = Change(self.lanes, self._rates)
        self.lanes, self._rates, self._quiet = wanted, {}, 0
        return seen.explain()

    def _verify(self, change: Change, seen: Look, now: float) -> str | None:
        """Why the number goes back; empty if it stays, None if that is not known yet."""
        before = change.rates.get(seen.length)
        if before is None:
            change.unlike += 1
            if change.unlike < UNLIKE:
                return None
            self._restore(change.before, change.rates)
            return f"nothing of this length was seen with {change.before}"
        change.looks += 1
        change.gain = max(change.gain, seen.rate / max(before))
        if change.gain >= (GAIN if self.lanes > change.before else 1 / GAIN):
            self._change, self._hold_s = None, HOLD_S
            return ""
        if change.looks < LOOKS:
            return None
        tried = self.lanes
        self._go_back(change.before, now, change.rates)
        return f"with {tried} it was {change.gain:.2f} times as fast"

    def _restore(self, lanes: int, rates: dict[int, tuple[float, ...]]) -> None:
        self._change, self.lanes, self._rates = None, lanes, rates

    def _go_back(self, lanes: int, now: float, rates: dict[int, tuple[float, ...]]) -> None:
        self._restore(lanes, rates)
        self._held_until, self._hold_s = now + self._hold_s, min(HOLD_MAX_S, self._hold_s * 2)

    def give_up(self, now: float) -> None:
        """Links of so many lanes could not be made."""
        self._go_back(self.least, now, {})
