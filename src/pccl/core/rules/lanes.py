"""How many lanes the links of a group shall have, from what its peers measured: a pure rule, and what it remembers.

A window that losses keep small bounds what one connection carries, however much the way could: more lanes carry more.
A window that is full of what waits in a queue does not: then the way is full. So the number grows while losses press
and no queue stands, is kept only if the rate grew with it by more than warming explains, and falls when nothing was
lost for long. A wrong guess costs two collectives at another number, and the next one waits twice as long.

Does not know links, peers or messages. Rules: docs/protocol.md, "Lanes".
"""

from collections.abc import Iterable

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

PACKET_BYTES = 1448
FAR = 3
"""A lane that is so many times as fast as losses allow reno or cubic is not limited by them: its end takes no notice of
them (bbr), or all were lost at once, when windows had become larger than the way."""

QUEUE_SHARE, QUEUE_MIN_S = 0.25, 0.005
"""A round trip that is by so much longer than the shortest one is a queue: the way is full."""

BUSY_MIN, LIMITED_MIN = 0.5, 0.5
"""A lane that had nothing in flight for half of its time is not what all wait for. One that was held up for half of
its busy time by a buffer of fixed length carries no more than that per round trip, as with losses."""

GAIN = 1.05
"""A change that brings less than this is none; rates over the internet differ by more from one minute to the next."""

LOOKS = 2
"""Collectives before a change, and before it is judged: the first one begins with small windows."""

WARMING_TRIPS = 20
"""Round trips that windows which begin small cost a collective, at most."""

ALONE_TRIPS = 200
"""What lasts so many tells by itself: warming explains no more than a tenth of it, and to see it once more is slow."""

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
    def trips(self) -> float:
        """How many round trips it lasted."""
        return self.seconds * 1e6 / self.flow.shortest_us

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
        return self.trips >= ROUND_TRIPS_MIN and self.flow.sent >= self.lanes * LANE_BYTES_MIN

    @property
    def presses(self) -> bool:
        """Windows are kept small by losses, or by buffers, while the way has room. Not where neighbours are near: a
        collective gets one lane there. What losses allow is what reno or cubic do (RFC 9438, 5.2)."""
        flow, lost, trip_s = self.flow, max(LOST_MIN, self.lost), self.flow.shortest_us / 1e6
        allowed = max(1.22 / lost**0.5, 1.05 * (trip_s / lost) ** 0.75) * PACKET_BYTES / trip_s
        slowed = self.lost >= LOST_MIN and self.rate <= FAR * allowed * self.lanes
        held_up = slowed or flow.limited_ms >= LIMITED_MIN * max(1, flow.busy_ms)
        room = flow.smoothed_us / 1e6 - trip_s <= max(QUEUE_MIN_S, QUEUE_SHARE * trip_s)
        return held_up and room and trip_s > NEAR_S and flow.busy_ms >= BUSY_MIN * flow.held_ms

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


Looks = dict[int, tuple[Look, ...]]
"""By length, the last that were seen with one number: as many as a trial has, of which the best counts here and there,
or rates that go up and down would be a gain."""


def to_beat(looks: tuple[Look, ...]) -> float:
    """The rate that another number is compared with; 0 if that is not known yet. One look that lasted counts as if it
    had been warm."""
    if len(looks) >= LOOKS:
        return max(each.rate for each in looks)
    return sum(each.rate / (1 - WARMING_TRIPS / each.trips) for each in looks if each.trips >= ALONE_TRIPS)


class Tuner(Struct):
    """The number of one group."""

    lanes: int
    least: int
    """What the group began with: it never has fewer."""
    reason: str = ""
    """Of the last change, in words."""
    looks: Looks = {}
    """With the present number, over the present links."""
    before: int = 0
    """While a number is tried, the one before, ..."""
    _compared: Looks = {}
    """... and what was seen with it."""
    _unlike: int = 0
    _quiet: int = 0
    _held_until: float = 0.0
    _hold_s: float = HOLD_S

    def judge(self, seen: Look, most: int, now: float) -> str:
        """Choose a number for what comes next; why, if it is another one."""
        if not seen.enough or seen.lanes != self.lanes:
            return ""
        looks = self.looks[seen.length] = (*self.looks.get(seen.length, ()), seen)[-LOOKS:]
        verdict = self._verify(looks, now) if self.before else ""
        if verdict or self.before:
            return verdict
        self._quiet = 0 if seen.flow.resent else self._quiet + 1
        if now < self._held_until or not to_beat(looks):
            return ""
        wanted = self.lanes
        if seen.presses:
            # What is too short for more lanes could not tell of them.
            wanted = max(self.lanes, min(self.lanes * FACTOR, most, seen.flow.sent // LANE_BYTES_MIN))
        elif self._quiet >= QUIET:
            wanted = max(self.least, self.lanes // 2)
        if wanted == self.lanes:
            return ""
        self.before, self._compared, self._unlike = self.lanes, self.looks, 0
        self.lanes, self.looks, self._quiet = wanted, {}, 0
        return seen.explain()

    def _verify(self, looks: tuple[Look, ...], now: float) -> str:
        """Whether the number that is tried stays, if that is known; why, if it goes back."""
        before, tried = self._compared.get(looks[-1].length, ()), self.lanes
        rate, best = to_beat(before), max(each.rate for each in looks)
        if not rate:
            self._unlike += 1
            if self._unlike < UNLIKE:
                return ""
            self._go_back(now, 0.0)
            return f"nothing of this length was seen with {self.lanes}"
        if best >= rate * (GAIN if tried > self.before else 1 / GAIN):
            self.before, self._hold_s = 0, HOLD_S
        elif len(looks) >= LOOKS:
            self._go_back(now, self._hold_s)
            return f"with {tried} it was {best / max(each.rate for each in before):.2f} times as fast"
        return ""

    def _go_back(self, now: float, rest_s: float) -> None:
        self.lanes, self.looks, self.before = self.before, self._compared, 0
        self._held_until, self._hold_s = now + rest_s, min(HOLD_MAX_S, max(self._hold_s, rest_s * 2))

    def give_up(self, now: float) -> None:
        """Links of so many lanes could not be made."""
        self.before, self._compared = self.least, {}
        self._go_back(now, self._hold_s)
