"""Which faults strike, when and whom: drawn from the seed.

Owns the kinds of faults and how often each comes. A new kind is a method here and a line in `WEIGHTS`. Must not know
what survivors are expected to do.
"""

import random
import signal
from collections.abc import Callable

from pccl.cli.stress.doom import Point
from pccl.cli.stress.fleet import PeerChild

WEIGHTS = {"random": 40, "point": 40, "two": 12, "short stop": 5, "long stop": 3}
"""Long stops make everybody wait, so that fewer other faults fit into the same time."""

STOPS = ("short stop", "long stop")

FEW_LEFT = 0.15
"""How often the victim may be the last but one."""

MOVED_BYTES_MAX = 1 << 23
"""Points at some byte lie below: what a peer sends and receives in a collective of a few megabytes."""

SHORT = 0.4
"""Of the limit on silence: short stops must cost nobody its place, on a busy machine neither."""

LONG = (1.5, 2.0)
"""Of the same: long stops must."""

SPARED_MAX = 12
"""Times that a point may be passed before: about as often as in one step, so that every kind of call is struck."""

POINT_S = 3.0
"""A peer that shall die at a point of a collective, and has not come to it by then, is killed where it is: not every
point lies in every step."""

NEWCOMERS_STRUCK = 0.15
NEWCOMER_S = (0.005, 0.1)
"""About as long as joining takes: waiting for the others' votes, a trial, a few lanes."""

After = Callable[[float, Callable[[], None]], None]


class Faults:
    """Strikes peers. `after` has something done later."""

    def __init__(self, seed: int, silence_s: float, stops: bool, after: After) -> None:
        self._draw = random.Random(f"faults/{seed}")
        self._silence_s = silence_s
        self._after = after
        kinds = [kind for kind in WEIGHTS if stops or kind not in STOPS]
        self._kinds, self._weights = kinds, [WEIGHTS[kind] for kind in kinds]

    def pause(self, least_s: float, most_s: float) -> float:
        """Until the next fault."""
        return self._draw.uniform(least_s, most_s)

    def join_delay(self) -> float:
        """Until somebody takes the place of the dead: at once as often as not."""
        return self._draw.choice([0.0, self._draw.uniform(0.0, 0.5)])

    def greet(self, newcomer: PeerChild) -> None:
        """Let something happen to a newcomer now and then, soon: joining does not take long."""
        if self._draw.random() < NEWCOMERS_STRUCK:
            self._after(self._draw.uniform(*NEWCOMER_S), lambda: self._kill_joining(newcomer))

    def _kill_joining(self, newcomer: PeerChild) -> None:
        if newcomer.stage == "joining" and newcomer.child.process.poll() is None:
            self._kill(newcomer, "while it joined")

    def strike(self, peers: list[PeerChild]) -> str:
        """Let something happen to one of them, or two; what, or nothing if there are too few left."""
        (kind,) = self._draw.choices(self._kinds, self._weights)
        strong = [peer for peer in peers if peer.strong]
        alive = [peer for peer in peers if peer.strong or peer.stage == "joining"]
        kept = 1 if self._draw.random() < FEW_LEFT else 2
        count = 2 if kind == "two" else 1
        if len(strong) < kept + count:
            return ""
        if kind == "random":
            self._kill(self._draw.choice(alive), "at a random moment")
        elif kind == "two":
            for victim in self._draw.sample(strong, 2):
                self._kill(victim, "two at once")
        elif kind == "point":
            self._doom(self._draw.choice(strong))
        else:
            self._stop(self._draw.choice(strong), long=kind == "long stop")
        return kind

    def _kill(self, victim: PeerChild, how: str) -> None:
        victim.doomed = how
        victim.child.signal(signal.SIGKILL)

    def _doom(self, victim: PeerChild) -> None:
        point = self._draw.choice(list(Point))
        victim.doomed = point.value
        # Most runs are short: every order of magnitude is as likely.
        moved = int(MOVED_BYTES_MAX ** self._draw.random())
        self._after(POINT_S, lambda: self._kill_overdue(victim))
        victim.child.order("die", point=point.value, moved_bytes=moved, spared=self._draw.randrange(SPARED_MAX))

    def _kill_overdue(self, victim: PeerChild) -> None:
        if victim.child.process.poll() is None:
            self._kill(victim, "at a random moment")

    def _stop(self, victim: PeerChild, long: bool) -> None:
        seconds = self._silence_s * (self._draw.uniform(*LONG) if long else self._draw.uniform(0.05, SHORT))
        victim.stopped, victim.kick_due, victim.late_s, victim.steps_back = True, long, seconds, 0
        victim.child.signal(signal.SIGSTOP)
        self._after(seconds, lambda: self._resume(victim))

    def _resume(self, victim: PeerChild) -> None:
        if victim.child.process.poll() is None:
            victim.stopped = False
            victim.child.signal(signal.SIGCONT)
