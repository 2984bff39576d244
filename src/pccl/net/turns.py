"""Turns: what a master may be made to compute by connections that have not proved themselves.

Owns the budgets, for each line and for all, and whose turn it is. Must not know what is computed.

A handshake costs up to a millisecond, of which its sender pays little: 2,000 a second would take the master a core or
two. Where the door has no knock (`security/certified.py`) anybody can ask for them, elsewhere anybody with a token. So
each step of one waits in the line of its address and token, the lines take turns, one step goes between two turns of
the loop, and the time that it took is paid from the budgets of its line and of all. When these are used up the lines
wait. A connection that proves itself gives back what it cost: a thousand peers that come back at once wait for one
another, and not for the budget. A line can do so only so often, or a token would open the door to as many handshakes as
its holder likes.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

EACH_SHARE, EACH_BURST_S = 0.05, 0.25
"""Of a core, for one address: 50 failed handshakes a second without end, and 250 at once; less with large RSA keys."""

ALL_SHARE, ALL_BURST_S = 0.2, 0.5
"""Of a core, for all together: four addresses that flood leave the master as it is for its members, and the line of
another address has its turn after one step of each of theirs."""

GIVEN_BACK_PER_S, GIVEN_BACK_BURST = 20.0, 4096.0
"""Connections of one line that prove themselves and so cost nothing: all peers of the largest run (`peers_max`) from
behind one router, and then twenty a second, which no commands or restarts of honest ones reach."""

ADDRESSES_KEPT = 4096
"""Whose budgets are remembered; those that are full again are forgotten first."""

Clock = Callable[[], float]


class Budget:
    """Seconds of work, or whatever else may be spent; refilled at a steady rate. Pure: it is told the time."""

    def __init__(self, share: float, burst: float, now: float) -> None:
        self._share, self._burst = share, burst
        self._left, self._at = burst, now

    def left(self, now: float) -> float:
        """What is in it; below 0 if the last step cost more than there was."""
        self._left = min(self._burst, self._left + (now - self._at) * self._share)
        self._at = now
        return self._left

    def spend(self, amount: float) -> None:
        """Less than nothing is a refund."""
        self._left -= amount

    def wait_s(self, now: float) -> float:
        """Until there is something in it."""
        return max(0.0, -self.left(now) / self._share)

    def full(self, now: float) -> bool:
        """Nothing of it is in use."""
        return self.left(now) >= self._burst


class _Account(NamedTuple):
    """Of one line."""

    work: Budget
    given_back: Budget


class Turns:
    """The lines. Lives in one event loop."""

    def __init__(self, clock: Clock = time.monotonic, cost_clock: Clock = time.thread_time) -> None:
        self._clock, self._cost_clock = clock, cost_clock
        self._lines: dict[str, dict[int, Callable[[], None]]] = {}
        """By address, whose turn is next first; in each, connections in the order in which they came."""
        self._all = Budget(ALL_SHARE, ALL_BURST_S, clock())
        self._each: dict[str, _Account] = {}
        self._origins: dict[int, str] = {}
        self._spent: dict[int, float] = {}
        """By connection, what its steps have cost."""
        self._next: asyncio.Handle | None = None

    def ask(self, number: int, origin: str, step: Callable[[], None]) -> None:
        """Call this when it is the turn of this connection."""
        self._origins[number] = origin
        first = origin not in self._lines
        self._lines.setdefault(origin, {})[number] = step
        if first:  # The next turn may be that of a line that has to wait for its budget.
            self.stop()
            self._next = asyncio.get_running_loop().call_soon(self._take_turn)

    def pay(self, number: int, origin: str, step: Callable[[], None]) -> None:
        """Call this now: it costs too little to wait, and is paid like a turn."""
        self._origins[number] = origin
        self._run(number, origin, step)

    def refund(self, number: int) -> None:
        """It has proved itself, in the step that goes on now or before."""
        if number in self._origins:
            asyncio.get_running_loop().call_soon(self._give_back, number)

    def _give_back(self, number: int) -> None:
        origin, spent, now = self._origins.get(number), self._spent.pop(number, 0.0), self._clock()
        if origin is None or (account := self._account(origin, now)).given_back.wait_s(now):
            return
        account.given_back.spend(1.0)
        account.work.spend(-spent)
        self._all.spend(-spent)

    def forget(self, number: int) -> None:
        """It is gone."""
        self._spent.pop(number, None)
        line = self._lines.get(origin := self._origins.pop(number, ""), {})
        if line.pop(number, None) is not None and not line:
            del self._lines[origin]

    def stop(self) -> None:
        """No turn is taken any more."""
        if self._next is not None:
            self._next.cancel()

    def _take_turn(self) -> None:
        loop, now = asyncio.get_running_loop(), self._clock()
        self._next = None
        if not self._lines:
            return
        pause_s = self._all.wait_s(now)
        if not pause_s:
            ready = next((origin for origin in self._lines if not self._account(origin, now).work.wait_s(now)), None)
            if ready is not None:
                self._next = loop.call_soon(self._take_turn)
                self._run_first(ready)
                return
            pause_s = min(self._account(origin, now).work.wait_s(now) for origin in self._lines)
        self._next = loop.call_later(pause_s, self._take_turn)

    def _run_first(self, origin: str) -> None:
        line = self._lines.pop(origin)
        number = next(iter(line))
        step = line.pop(number)
        if line:
            self._lines[origin] = line  # Behind the others.
        self._run(number, origin, step)

    def _run(self, number: int, origin: str, step: Callable[[], None]) -> None:
        began = self._cost_clock()
        step()
        cost = self._cost_clock() - began
        self._all.spend(cost)
        self._account(origin, self._clock()).work.spend(cost)
        if number in self._origins:
            self._spent[number] = self._spent.get(number, 0.0) + cost

    def _account(self, origin: str, now: float) -> _Account:
        if origin not in self._each and len(self._each) >= ADDRESSES_KEPT:
            for each in [each for each, (work, back) in self._each.items() if work.full(now) and back.full(now)]:
                del self._each[each]
        fresh = _Account(Budget(EACH_SHARE, EACH_BURST_S, now), Budget(GIVEN_BACK_PER_S, GIVEN_BACK_BURST, now))
        return self._each.setdefault(origin, fresh)
