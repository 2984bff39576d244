"""What a peer tells of its calls: a line for each that takes long, one for many that do not, and the numbers of all.

Owns the counters and when a line is due. Must not know how a call is carried out.
"""

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass

from pccl.logs import Teller
from pccl.net.flight import Flight
from pccl.types import ReduceInfo, count_peers

ALONE_S = 1.0
"""A round that takes this long has a line of its own."""

TOGETHER_S = 10.0
"""Faster ones are summed up in a line each so many seconds: a thousand a second are no news one by one."""

WAITED_S = 0.05
"""A shorter wait is the way of the messages, and names no peer."""


@dataclass
class _Sum:
    """Rounds that are told together."""

    first: int
    began_at: float
    count: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    sent_bytes: int = 0


class Rounds:
    """The calls of one peer."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._last: tuple[ReduceInfo, float] | None = None
        """The last round, and how long it waited."""
        self._seconds = self._waited_s = 0.0
        """Of all rounds."""
        self._sum: _Sum | None = None
        self._waited: Counter[str] = Counter()
        """For whom the rounds of the sum waited, and how long."""
        self._peers = 0

    def ended(self, tag: int, outcome: ReduceInfo | BaseException, flight: Flight | None) -> None:
        """A call is over; `flight` is that of its last part."""
        with self._lock:
            if isinstance(outcome, BaseException):
                self._numbers["failures"] += 1
                return
            self._numbers["rounds"] += 1
            self._numbers["retries"] += outcome.attempts - 1
            waited_s = min(outcome.seconds, flight.waited_s or 0.0) if flight is not None else 0.0
            whom = flight if flight is not None and flight.waited_for and waited_s >= WAITED_S else None
            self._count(outcome, waited_s)
            number, self._peers = self._numbers["rounds"], outcome.local_world_size
            if outcome.seconds >= ALONE_S:
                self._tell_sum()
                self._tell_one(number, tag, outcome, waited_s, whom)
            else:
                self._add(number, outcome, waited_s, whom)

    def _count(self, info: ReduceInfo, waited_s: float) -> None:
        self._last = info, waited_s
        self._numbers["sent_bytes"] += info.tx_bytes
        self._numbers["received_bytes"] += info.rx_bytes
        self._numbers["repeated_bytes"] += info.repeated_bytes
        self._seconds += info.seconds
        self._waited_s += waited_s

    def _tell_one(self, number: int, tag: int, info: ReduceInfo, waited_s: float, whom: Flight | None) -> None:
        waited = "" if whom is None else f", waited {waited_s:.1f} s for {whom.waited_for_name or whom.waited_for[:8]}"
        rate = _rate(info.tx_bytes, info.seconds - waited_s)
        sentence = f"round {number}: {count_peers(info.local_world_size)}, {info.seconds:.1f} s{waited}{rate}"
        facts = {"tag": tag, "seconds": info.seconds, "bytes": info.tx_bytes}
        named = [whom.waited_for] if whom is not None else []
        self._teller.tell("collective", logging.INFO, "round", sentence, waited_for=named, **facts)

    def _add(self, number: int, info: ReduceInfo, waited_s: float, whom: Flight | None) -> None:
        now = time.monotonic()
        if self._sum is None:
            self._sum = _Sum(number, now - info.seconds)
        added = self._sum
        added.count += 1
        added.seconds += info.seconds
        added.waited_s += waited_s if whom is not None else 0.0
        added.sent_bytes += info.tx_bytes
        if whom is not None:
            self._waited[whom.waited_for_name or whom.waited_for[:8]] += round(waited_s * 1e6)
        if now - added.began_at >= TOGETHER_S:
            self._tell_sum()

    def _tell_sum(self) -> None:
        added, self._sum = self._sum, None
        most, self._waited = self._waited.most_common(1), Counter()
        if added is None:
            return
        took = time.monotonic() - added.began_at
        waited = f", waited {added.waited_s:.1f} s, most for {most[0][0]}" if most else ""
        numbers = f"{added.first} to {added.first + added.count - 1}" if added.count > 1 else str(added.first)
        rate = _rate(added.sent_bytes, added.seconds - added.waited_s)
        name = "rounds" if added.count > 1 else "round"
        sentence = f"{name} {numbers}: {count_peers(self._peers)}, {added.count} in {took:.1f} s{waited}{rate}"
        self._teller.tell("collective", logging.INFO, "rounds", sentence, seconds=took, bytes=added.sent_bytes)

    def close(self) -> None:
        """Tell what is left to be told."""
        with self._lock:
            self._tell_sum()

    def metrics(self) -> dict[str, float]:
        """Numbers for a dashboard: counters end in `_total`, the others are of the last round."""
        with self._lock:
            counted = {f"pccl_{name}_total": float(self._numbers[name]) for name in _COUNTED}
            summed = {
                "pccl_round_seconds_total": self._seconds,
                "pccl_round_waited_seconds_total": self._waited_s,
            }
            return {**counted, **summed, **self._last_round()}

    def _last_round(self) -> dict[str, float]:
        seconds, waited_s, mbps = 0.0, 0.0, 0.0
        if self._last is not None:
            info, waited_s = self._last
            seconds, mbps = info.seconds, info.tx_bytes * 8e-6 / max(info.seconds - waited_s, 1e-9)
        return {
            "pccl_round_seconds": seconds,
            "pccl_round_waited_seconds": waited_s,
            "pccl_round_sent_mbps": mbps,
        }


_COUNTED = ("rounds", "retries", "failures", "sent_bytes", "received_bytes", "repeated_bytes")


def _rate(sent_bytes: int, seconds: float) -> str:
    """In megabits a second; nothing where that says nothing."""
    return f", {sent_bytes * 8e-6 / seconds:.0f} Mbit/s" if sent_bytes and seconds > 0 else ""
