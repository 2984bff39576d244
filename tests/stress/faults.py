"""Which faults strike, when and whom: drawn from the seed.

Owns the kinds of faults and how often each comes. A new kind is a method here and a line in `WEIGHTS`. Must not know
what survivors are expected to do.
"""

import random
import signal
from collections.abc import Callable

from tests.stress.doom import Point
from tests.stress.fleet import CONTROL, PeerChild
from tests.stress.options import MASTER_AWAY_S, Options

KILLS = {"random": 40, "point": 40, "two": 12, "all but one": 2, "all": 1}
STOPS = {"short stop": 5, "long stop": 3}
"""Long stops make all peers wait, so that fewer other faults fit into the same time."""

CUTS = {"reset": 20, "reset all": 5, "close": 10, "stall": 10, "half-open": 5, "black hole": 5}
"""What the network does to connections. The last two may make all peers wait as well."""

FEW_LEFT = 0.15
"""How often the victim may be the last but one."""

MOVED_BYTES_MAX = 1 << 23
"""Points at some byte lie below: what a peer sends and receives in a collective of a few megabytes."""

SHORT = 0.4
"""Of the limit on silence: short stops must cost no peer its place, not even on a busy machine."""

LONG = (1.5, 2.0)
"""Of the same: long stops must."""

MASTERS = {"master": 15}
"""All wait for the next one."""

CONTROL_CUT = 0.2
"""Of all cuts, where connections to the master are cut too. Only a long silence may cost a peer its place."""

HOLE = (0.1, 1.5)
"""Of the limit on lanes that pass no bytes: black holes that end before and after one side has given up."""

SPARED_MAX = 12
"""Times that a point may be passed before: about as often as in one step, so that every kind of call is struck."""

POINT_S = 3.0
"""A peer that shall die at a point of a collective, and has not come to it by then, is killed where it is: not every
point lies in every step."""

NEWCOMERS_STRUCK = 0.15
NEWCOMER_S = (0.005, 0.1)
"""About as long as joining takes: waiting for the others' votes, a trial, a few lanes."""

After = Callable[[float, Callable[[], None]], None]
Cut = Callable[..., None]


class Faults:
    """Strikes peers. `after` has something done later, `cut` strikes a connection."""

    def __init__(self, options: Options, after: After, cut: Cut) -> None:
        self._draw = random.Random(f"faults/{options.seed}")
        self._options = options
        self._after = after
        self._cut = cut
        self.weights = {
            **KILLS,
            **(STOPS if options.stop else {}),
            **(CUTS if options.cut else {}),
            **(MASTERS if options.master else {}),
        }

    def pause(self, least_s: float, most_s: float) -> float:
        """Until the next fault."""
        return self._draw.uniform(least_s, most_s)

    def join_delay(self) -> float:
        """Until a spare takes the place of the dead peer: at once as often as not."""
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
        (kind,) = self._draw.choices(list(self.weights), list(self.weights.values()))
        if kind in MASTERS:
            return kind
        if kind in CUTS:
            self._cut_connection(kind)
            return kind
        strong = [peer for peer in peers if peer.strong]
        alive = [peer for peer in peers if peer.strong or peer.stage == "joining"]
        kept = 1 if self._draw.random() < FEW_LEFT else 2
        count = 2 if kind == "two" else 1
        if len(strong) < kept + count:
            return ""
        if kind in ("all but one", "all"):
            self._kill_together(strong, kind)
            return kind
        if kind == "random":
            self._kill(self._draw.choice(alive), "at a random moment")
        elif kind == "two":
            self._kill_together(self._draw.sample(strong, 2), "two at once")
        elif kind == "point":
            self._doom(self._draw.choice(strong))
        else:
            self._stop(self._draw.choice(strong), long=kind == "long stop")
        return kind

    def _kill_together(self, victims: list[PeerChild], how: str) -> None:
        for victim in victims[1:] if how == "all but one" else victims:
            self._kill(victim, how)

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
        seconds = self._options.silence_s * (self._draw.uniform(*LONG) if long else self._draw.uniform(0.05, SHORT))
        victim.stopped, victim.kick_due, victim.late_s, victim.steps_back = True, long, seconds, 0
        victim.child.signal(signal.SIGSTOP)
        self._after(seconds, lambda: self._resume(victim))

    def _resume(self, victim: PeerChild) -> None:
        if victim.child.process.poll() is None:
            victim.stopped = False
            victim.child.signal(signal.SIGCONT)

    def master_delay(self) -> float:
        """From the death of a master to the start of the next one."""
        return self._draw.uniform(*MASTER_AWAY_S)

    def _cut_connection(self, kind: str) -> None:
        """Which of them is left to the network, which alone knows what there is to cut."""
        least, most = (0.05, SHORT) if kind == "stall" else HOLE
        seconds = self._options.stall_s * self._draw.uniform(least, most)
        sides = self._draw.choice([[0], [1], [0, 1]])
        control = self._options.master and self._draw.random() < CONTROL_CUT
        self._cut(
            kind=kind, doors=CONTROL if control else "peer", pick=self._draw.random(), sides=sides, seconds=seconds
        )
